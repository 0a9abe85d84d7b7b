"""Whether a GPU computes what plain torch computes: the kernels, attention at sizes that a server
reaches, and whole networks, whose tokens are judged by the scores of a network without any of ours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

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
from runtime.attention import Span
from runtime.cache import BlockTable, KVPool, KVShape
from runtime.gpu import selfcheck
from runtime.gpu.comparison import TOLERANCE, Heads
from runtime.gpu.paged import PagedAttention, sent_alone
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
    most, rows = (70, 3) if options.tiny else (16_000, 256)
    decodes = [(int(start), 1) for start in rng.integers(0, most, rows)]
    mixed = [*decodes[: rows // 8], (0, most // 8), (most // 2, most // 16), (most // 3, 2)]
    grouped = Heads(16, 8, 128, 16, str(options.dtype).removeprefix("torch."))
    wide = Heads(4, 1, 256, 16, grouped.dtype)
    cases: list[tuple[str, Heads, Sequence[tuple[int, int]], int | None, int]] = [
        (f"{rows} rows of up to {most} keys", grouped, decodes, None, 0),
        (f"{len(mixed)} rows, three of prompts", grouped, mixed, None, 0),
        ("a window of 512 keys", wide, mixed, 512 if most > 512 else 20, 0),
        (f"{rows} rows, heads of 256", wide, decodes, None, 0),
        ("8 drafts a row", grouped, decodes[: rows // 8 + 1], None, 8),
        ("one row of 16 splits", grouped, [(most - 1, 1)], None, 0),
    ]
    if options.tiny:
        grouped = wide = Heads(2, 1, 16, 16, "float32")
        cases = [(name, grouped, its, window, n) for name, _, its, window, n in cases]
    for name, heads, its, window, drafts in cases:
        start_s = time.monotonic()
        try:
            found = _differs(heads, its, window, drafts, options.device)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        checked(emit, name, found, start_s)


def _differs(
    heads: Heads,
    rows: Sequence[tuple[int, int]],
    window: int | None,
    drafts: int,
    device: torch.device,
) -> str | None:
    """Rows of (tokens before, new tokens) over scattered blocks beside float64. A draft is a row
    of its own over its sequence's blocks. What no token wrote holds NaN."""
    size, dtype = heads.block_tokens, getattr(torch, heads.dtype)
    counts = [-(-(start + count + drafts) // size) for start, count in rows]
    shape = KVShape(1, heads.kv_heads, heads.head_dim, dtype, device, size, (window,))
    pool = KVPool(shape, sum(counts))
    blocks = np.split(np.random.default_rng(1).permutation(sum(counts)), np.cumsum(counts)[:-1])
    spans, first = list[Span](), 0
    for (start, count), its in zip(rows, blocks, strict=True):
        table = BlockTable(its.tolist())
        for new, at in [(count, start), *((1, start + count + i) for i in range(drafts))]:
            spans.append(Span(first, new, at, table))
            first += new
    generator = torch.Generator(device).manual_seed(0)
    keys, values = pool.slots(0)
    for half in (keys, values):
        half.normal_(generator=generator)
        for (start, _), span in zip(rows, spans[:: 1 + drafts], strict=True):
            unwritten = span.table.slots(start, len(span.table.blocks) * size, size)
            half[torch.from_numpy(unwritten).to(device)] = torch.nan
    fused = torch.empty(
        first, heads.heads + 2 * heads.kv_heads, heads.head_dim, dtype=dtype, device=device
    ).normal_(generator=generator)
    q, k, v = fused.split_with_sizes([heads.heads, heads.kv_heads, heads.kv_heads], 1)
    positions = np.concatenate([np.arange(s.start, s.start + s.length) for s in spans])
    tile_tokens = queries_per_tile(dtype, heads.head_dim) // (heads.heads // heads.kv_heads)
    found = PagedAttention(sent_alone(positions, spans, shape, tile_tokens), pool)(0, q, k, v)
    worst, largest = 0.0, 1.0
    for span in spans:
        own = slice(span.first, span.first + span.length)
        slots = span.table.slots(0, span.start + span.length, size)
        seen = torch.from_numpy(slots).to(device)
        expected = _exact(q[own], keys[seen], values[seen], span.start, window)
        worst = max(worst, float((found[own] - expected).abs().nan_to_num(torch.inf).max()))
        largest = max(largest, float(expected.abs().max()))
    allowed = TOLERANCE[dtype] * largest
    return None if worst <= allowed else f"differs by {worst:.2g}, allowed: {allowed:.2g}"


def _exact(q: Tensor, k: Tensor, v: Tensor, start: int, window: int | None) -> Tensor:
    """One row in float64: q `[T, H, D]` from position `start`, k and v `[L, kv_heads, D]`."""
    at = torch.arange(len(k), device=q.device)
    own = start + torch.arange(len(q), device=q.device)[:, None]
    seen = at <= own
    if window is not None:
        seen &= at > own - window
    q, k, v = (t.double().transpose(0, 1) for t in (q, k, v))
    return F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=seen, enable_gqa=True
    )[0].transpose(0, 1)


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
