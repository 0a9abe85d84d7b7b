"""Where the kernels beside attention differ on a device from the plain torch that defines them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.layers import MULTIPLE
from runtime.sampling.sampler import Sampler, drawing_of
from seams import Opening, Sampling

VOCABULARY, SEEDS = 20_011, 4
WIDTH, ROWS = 1_000, 3  # of what a layer computes
HEAD_DIM = 100
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
    """What layers compute between matrix products, against float64."""
    from kernels.gpu import layers  # part of torch's CUDA build only

    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, ROWS, WIDTH, generator=random).to(device, dtype)
    gain, shift = torch.randn(2, WIDTH, generator=random).to(device, dtype)
    summed, normed = layers.add_norm(x, y, gain, shift, 1e-5)
    exact = summed.double()
    expected = {
        "a sum": (summed, x.double() + y.double()),
        "a norm": (normed, F.layer_norm(exact, (WIDTH,), gain.double(), shift.double(), 1e-5)),
        "a GELU": (
            layers.bias_gelu(x, shift), F.gelu(x.double() + shift.double(), approximate="tanh")
        ),
    }  # fmt: skip
    expected |= _of_a_decoder(layers, x, y, gain.float())
    for name, (found, by_torch) in expected.items():
        error = (found.double() - by_torch).abs() / by_torch.abs().clamp(min=1)
        worst = float(error.max())
        if not worst <= ROUNDING[dtype]:
            return f"{name} differs by {worst:.2g}, allowed: {ROUNDING[dtype]:.2g}"
    return None


def _of_a_decoder(
    kernels: Any, x: Tensor, y: Tensor, gain: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """What is found and what is expected, by name."""

    def rms_norm(of: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(of.double(), of.shape[-1:], weight.double(), 1e-5)

    summed, normed = kernels.add_rms_norm(x, y, gain, 1e-5)
    gate, up = x.double().chunk(2, dim=-1)
    heads = x.clone().view(ROWS, -1, HEAD_DIM)
    angles = gain[: HEAD_DIM // 2] * torch.arange(ROWS, device=x.device)[:, None]
    cos, sin = angles.cos(), angles.sin()
    weight = gain[:HEAD_DIM]
    first, second = rms_norm(heads, weight).chunk(2, dim=-1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    turned = torch.cat([first * c - second * s, second * c + first * s], dim=-1)
    kernels.rotate(heads[:, :7], heads[:, 7:], cos, sin, weight, weight, 1e-5, 1.0)
    return {
        "an RMSNorm": (normed, rms_norm(summed, gain)),
        "a gate of SiLU": (kernels.gated(x, False), F.silu(gate) * up),
        "a gate of GELU": (kernels.gated(x, True), F.gelu(gate, approximate="tanh") * up),
        "a rotation": (heads, turned),
    }


def draws_differ(device: torch.device, dtype: torch.dtype) -> str | None:
    """Drawn tokens, for every setting: each is a batch of its own, since a batch is drawn by the
    forms of the kernels that its rows need."""
    random = torch.Generator().manual_seed(1)
    for asked in ASKED:
        rows = [Opening(i, [i, 5, i], 2, Sampling(seed=i, **asked)) for i in range(SEEDS)]
        wide = 3 * torch.randn(SEEDS, VOCABULARY + -VOCABULARY % MULTIPLE, generator=random)
        logits = wide.to(device, dtype).narrow(1, 0, VOCABULARY)  # as of PaddedHead
        scores = drawing_of(rows, VOCABULARY, device).scores(logits)
        best = scores.topk(2)
        differs = Sampler(kernel=True).draw(logits, rows) != best.indices[:, 0]
        differs &= best.values[:, 0] - best.values[:, 1] > TIE
        for row, one in zip(rows, differs.tolist(), strict=True):
            if one:
                return f"the token drawn with {row.sampling} differs"
    return None
