"""Where the kernels beside attention differ on a device from the plain torch that defines them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from runtime.gpu.layers import MULTIPLE
from runtime.sampling.drawing import perturbed
from runtime.sampling.sampler import Sampler, asked_of, history_of
from seams import Opening, Sampling

VOCABULARY, SEEDS = 20_011, 4
WIDTH, ROWS = 1_000, 3  # of what a layer computes
TIE = 1e-3  # between the best two scores: rounding may decide
# relative to the value, or to 1: rounding of inputs and of results
ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 50},
    {"min_p": 0.02, "top_p": 0.8, "typical_p": 0.9},
    {"temperature": 0.0, "frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "top_k": 20},
)


def others_differ(device: torch.device, dtype: torch.dtype) -> str | None:
    return layers_differ(device, dtype) or draws_differ(device, dtype)


def layers_differ(device: torch.device, dtype: torch.dtype) -> str | None:
    """Sum and norm, bias and GELU, against float64."""
    from kernels.gpu.layers import add_norm, bias_gelu  # part of torch's CUDA build only

    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, ROWS, WIDTH, generator=random).to(device, dtype)
    gain, shift = torch.randn(2, WIDTH, generator=random).to(device, dtype)
    summed, normed = add_norm(x, y, gain, shift, 1e-5)
    exact = summed.double()
    expected = {
        "a sum": (summed, x.double() + y.double()),
        "a norm": (normed, F.layer_norm(exact, (WIDTH,), gain.double(), shift.double(), 1e-5)),
        "a GELU": (
            bias_gelu(x, shift), F.gelu(x.double() + shift.double(), approximate="tanh")
        ),
    }  # fmt: skip
    for name, (found, by_torch) in expected.items():
        error = (found.double() - by_torch).abs() / by_torch.abs().clamp(min=1)
        worst = float(error.max())
        if not worst <= ROUNDING[dtype]:
            return f"{name} differs by {worst:.2g}, allowed: {ROUNDING[dtype]:.2g}"
    return None


def draws_differ(device: torch.device, dtype: torch.dtype) -> str | None:
    """Drawn tokens, for every setting: each is a batch of its own, since a batch is drawn by the
    forms of the kernels that its rows need."""
    random = torch.Generator().manual_seed(1)
    for asked in ASKED:
        rows = [Opening(i, [i, 5, i], 2, Sampling(seed=i, **asked)) for i in range(SEEDS)]
        wide = 3 * torch.randn(SEEDS, VOCABULARY + -VOCABULARY % MULTIPLE, generator=random)
        logits = wide.to(device, dtype).narrow(1, 0, VOCABULARY)  # as of PaddedHead
        scores = perturbed(logits, asked_of(rows, VOCABULARY, device), history_of(rows, device))
        best = scores.topk(2)
        differs = Sampler(kernel=True).draw(logits, rows) != best.indices[:, 0]
        differs &= best.values[:, 0] - best.values[:, 1] > TIE
        for row, one in zip(rows, differs.tolist(), strict=True):
            if one:
                return f"the token drawn with {row.sampling} differs"
    return None
