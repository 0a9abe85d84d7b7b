"""Whether a GPU computes what plain torch computes: the kernels, attention at sizes that a server
reaches, and whole networks, whose tokens are judged by the scores of a network without any of ours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.bare import Job, run_bare
from benchmarks.on_gpu.points import AGREES, Emit, Value
from benchmarks.on_gpu.work import NAMES, SAMPLING, Models, Options, network
from engine.speculation import Speculation
from kernels.gpu.paged import queries_per_tile
from models.networks import Network
from runtime.gpu import selfcheck
from runtime.gpu.comparison import Heads, differs
from runtime.gpu.paged import PagedAttention
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from seams import Policy

CHECKED = (  # the shapes of GPT-2 medium, Llama 3.2 1B, Qwen3 0.6B, and float32
    Heads(16, 16, 64, 16, "bfloat16"),
    Heads(32, 8, 64, 16, "bfloat16"),
    Heads(16, 8, 128, 16, "bfloat16"),
    Heads(32, 8, 64, 16, "float32"),
)
TRITON = "a kernel of Triton's runs"
CONTEXT = 1024  # of the whole networks
LIMIT, OUTPUT_TOKENS, MOST_DRAFTS = 4, 24, 8
PROMPTS = (3, 600, 17, 256, 255, 90, 400, 31)  # tokens; two fill a block and one more


def checked(emit: Emit, name: str, found: str | None, start_s: float) -> None:
    seconds = round(time.monotonic() - start_s, 1)
    emit("checks", {"check": name, "found": found or AGREES, "seconds": seconds})


def self_checks(options: Options, emit: Emit) -> None:
    """The server's own, side by side: each compiles for seconds, in a process of its own. This
    process does not occupy the GPU."""

    def check(heads: Heads) -> None:
        start_s = time.monotonic()
        found = selfcheck.check(options.device, heads)
        name = f"{heads.heads}:{heads.kv_heads} heads of {heads.head_dim}, {heads.dtype}"
        checked(emit, name, found.kernel, start_s)
        if options.on_gpu and found.kernel is None:
            checked(emit, f"{name}, as a graph", found.graphs, time.monotonic())

    shapes = (Heads(2, 1, 16, 16, "float32"),) if options.tiny else CHECKED
    with ThreadPoolExecutor(len(shapes)) as pool:
        list(pool.map(check, shapes))


def attention(options: Options, emit: Emit) -> None:
    """The sizes that the self-check is too short for."""
    rng = np.random.default_rng(0)
    most, rows = (70, 3) if options.tiny else (16_000, 32)
    longest = [(int(start), 1) for start in rng.integers(0, most, rows)]
    many = [(int(start), 1) for start in rng.integers(0, most // 8, 8 * rows)]
    mixed = [*longest[: rows // 8], (0, most // 8), (most // 2, most // 16), (most // 3, 2)]
    grouped = Heads(16, 8, 128, 16, _name(options.dtype))
    wide = Heads(4, 1, 256, 16, grouped.dtype)
    if options.tiny:
        grouped = wide = Heads(2, 1, 16, 16, "float32")
    for name, heads, its in (
        (f"{rows} rows of up to {most} keys", grouped, longest),
        (f"{len(many)} rows of up to {most // 8} keys", grouped, many),
        (f"{len(mixed)} rows, three of prompts", grouped, mixed),
        ("a window", replace(wide, window=most // 32 + 2), mixed),
        (f"{rows} rows, heads of 256", wide, longest),
        ("one row of 16 splits", grouped, [(most - 1, 1)]),
    ):
        start_s = time.monotonic()
        dtype: torch.dtype = getattr(torch, heads.dtype)
        tile_tokens = queries_per_tile(dtype, heads.head_dim) // (heads.heads // heads.kv_heads)
        try:
            found = differs(PagedAttention, tile_tokens, heads, options.device, [its])
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        checked(emit, name, found, start_s)


def networks(options: Options, emit: Emit) -> None:
    """Greedy tokens of prompts and decodes together, judged by a network without kernels, cache or
    batch, in float32 and with the same weights: how far below the best score a token lies. In
    bfloat16 products of other sizes round differently, so the plain network in bfloat16 stands
    beside."""
    for name in NAMES[:2] if options.tiny else NAMES:
        for dtype in dict.fromkeys([torch.float32, options.dtype]):
            try:
                _network(options, emit, name, dtype)
            except Exception as error:
                emit("left out", {"what": f"{name}, {dtype}", "why": repr(error)})


def _network(options: Options, emit: Emit, name: str, dtype: torch.dtype) -> None:
    models = Models(options, name, LIMIT, CONTEXT, dtype)
    prompts = PROMPTS[:2] if options.tiny else PROMPTS
    rng = np.random.default_rng(0)
    work = [
        Job(rng.integers(0, models.vocab_size, min(count, 40 if options.tiny else count)).tolist(),
            2 if options.tiny else OUTPUT_TOKENS)
        for count in prompts
    ]  # fmt: skip
    graphs = options.kernel
    ways = [("eager", False, 0), ("eager, lookahead", False, 1)]
    if graphs:
        ways += [("graphs", True, 0), ("graphs, lookahead", True, 1)]
    ways.append(("drafts", graphs, 1))
    outputs: dict[str, list[list[int]]] = {}
    drawn: dict[str, list[list[int]]] = {}
    for way, graphs, ahead in ways:
        for kept, sampling in ((outputs, "greedy"), (drawn, "temperature 1")):
            policy: Policy = Orca()
            model = models.get(graphs=graphs)
            speculation = Speculation(MOST_DRAFTS, Predictor()) if way == "drafts" else None
            kept[way] = run_bare(
                model, policy, "dynamic", work, LIMIT, SAMPLING[sampling],
                lookahead=ahead, speculation=speculation,
            ).outputs  # fmt: skip
            model.forget()
    del models, model
    plain = network(options.config(name, CONTEXT), dtype, options.device)
    with torch.inference_mode():
        rounded = [_scores(plain, job, outputs["eager"][i]) for i, job in enumerate(work)]
        exact = plain.float()
        for way, found in outputs.items():
            scores = [_scores(exact, job, out) for job, out in zip(work, found, strict=True)]
            row: dict[str, Value] = {"network": name, "dtype": _name(dtype), "way": way}
            row |= _judged(scores, [torch.tensor(out) for out in found])
            row["others than eager"] = _others(found, outputs["eager"])
            row["at temperature 1"] = _others(drawn[way], drawn["eager"])
            emit("tokens beside a plain network in float32", row)
        scores = [_scores(exact, job, outputs["eager"][i]) for i, job in enumerate(work)]
        row = {"network": name, "dtype": _name(dtype), "way": "plain torch"}
        row |= _judged(scores, [found.argmax(-1).cpu() for found in rounded])
        emit("tokens beside a plain network in float32", row)


def _scores(plain: Network, job: Job, output: Sequence[int]) -> Tensor:
    """Logits `[tokens of the output, V]` from which each was chosen."""
    device = plain.wte.weight.device
    ids = torch.tensor([*job.prompt, *output[:-1]], device=device)
    hidden = plain(ids, torch.arange(len(ids), device=device), _whole)
    logits: Tensor = plain.head(hidden[len(job.prompt) - 1 :])
    return logits


def _whole(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence from its start, `[T, H, D]`, by torch."""
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(
        0, 1
    )


def _judged(scores: Sequence[Tensor], chosen: Sequence[Tensor]) -> dict[str, Value]:
    gaps = torch.cat(
        [
            (of.amax(-1) - of.gather(-1, tokens.to(of.device)[:, None])[:, 0]).float().cpu()
            for of, tokens in zip(scores, chosen, strict=True)
        ]
    )
    spread = float(torch.cat([of.float().std(-1).cpu() for of in scores]).mean())
    return {
        "tokens": len(gaps),
        "not the best": int((gaps > 0).sum()),
        "furthest below": float(gaps.max()),
        "scores' deviation": spread,
    }


def _others(found: Sequence[Sequence[int]], beside: Sequence[Sequence[int]]) -> int:
    """Requests whose tokens are others."""
    return sum(a != b for a, b in zip(found, beside, strict=True))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
