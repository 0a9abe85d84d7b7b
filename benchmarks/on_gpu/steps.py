"""What the time of an iteration is spent on: the device's own limits, then decode steps taken
apart, single kernels beside torch's, prefills, and the profiler's table."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.bare import Job, run_bare
from benchmarks.on_gpu.points import Emit, Value
from benchmarks.on_gpu.timing import device_s, wait
from benchmarks.on_gpu.work import NAMES, SAMPLING, SLACK, Decoding, Models, Options
from kernels.gpu.paged import queries_per_tile
from runtime.executor import Executor
from runtime.gpu.comparison import Heads, LayerCase
from runtime.gpu.paged import PagedAttention
from runtime.sampling.sampler import StagedBatch
from scheduling.policies.stall_free import StallFree
from seams import Opening, Step

ROWS = (1, 8, 32, 64, 128, 256)
CONTEXTS = (128, 1024)
PREFILLS = ((1, 1024), (8, 512), (1, 4096))  # prompts, tokens of each
PREFILL_TOKENS = 8192  # of an iteration that admits requests, so that its activations are bounded
STEPS = 48  # of a served request
PROFILED = 3  # steps
KERNEL_ROWS = (64, 256)
KERNEL_KEYS = 1024
SIZE = 8192  # of the square matrices of the largest product


def device(options: Options, emit: Emit) -> None:
    """What the device is, and the two speeds that no work exceeds."""
    on, name, memory = options.device, "cpu", None
    if options.on_gpu:
        of = torch.cuda.get_device_properties(on)
        name, memory = of.name, round(of.total_memory / 2**30, 1)
    numbers = torch.empty(2**10 if options.tiny else 2**30, dtype=torch.uint8, device=on).random_()
    to = torch.empty_like(numbers)
    copy_s = device_s(lambda: to.copy_(numbers), on)
    size = 16 if options.tiny else SIZE
    a = torch.randn(size, size, dtype=options.dtype, device=on)
    product_s = device_s(lambda: a @ a, on, 5)
    row: dict[str, Value] = {"device": name, "GiB": memory, "torch": torch.__version__}
    row |= {"copy GB/s": 2 * numbers.numel() / copy_s / 1e9}
    row |= {f"{size}^3 product TFLOP/s": 2 * size**3 / product_s / 1e12}
    emit("the device", row)


def decodes(options: Options, emit: Emit, name: str, gb_s: float | None) -> None:
    """Steps of the dynamic layout, each part by itself. `gb_s`: the copy bandwidth."""
    rows_of, contexts = (ROWS, CONTEXTS) if not options.tiny else ((2,), (20,))
    models = Models(options, name, max(rows_of), max(contexts) + SLACK)
    graphs = options.kernel
    model = models.get(graphs=graphs)
    assert model.gpu is not None
    for context in contexts:
        for rows in rows_of:
            try:
                step = Decoding(model, rows, context, SAMPLING["greedy"])
                step()
                # the first iteration's wait is not the host's: the device is idle when it starts
                host_s, launch_s = [], []
                for _ in range(options.times):
                    wait(options.device)
                    start_s = time.perf_counter()
                    pending = model.start(step.steps(), ())
                    launch_s.append(time.perf_counter() - start_s)
                    wait(options.device)
                    start_s = time.perf_counter()
                    pending.result()
                    host_s.append(launch_s[-1] + time.perf_counter() - start_s)
                    step.at += 1
                replay = model.gpu.graphs.replay_newest if model.gpu.graphs is not None else step
                seconds = device_s(replay, options.device, options.times)
            except Exception as error:
                emit("left out", {"what": f"{name}, {rows} rows", "why": repr(error)})
                continue
            finally:
                model.forget()
            needed = models.weight_bytes + rows * context * model.shape.token_bytes
            emit(
                f"decode steps of {name}, ms",
                {
                    "rows": rows,
                    "keys": context,
                    "network on the device": 1000 * seconds,
                    "share of bandwidth": needed / seconds / 1e9 / gb_s if gb_s else None,
                    "host, all": 1000 * statistics.median(host_s),
                    "host, until launched": 1000 * statistics.median(launch_s),
                    **_drawn(models, rows),
                    "served, lookahead": _served_ms(models, rows, context, 1, graphs),
                    "served, none": _served_ms(models, rows, context, 0, graphs),
                },
            )


def _drawn(models: Models, rows: int) -> dict[str, Value]:
    """ms of drawing for all rows, the head left out."""
    width, on = models.network.config.n_embd, models.options.device
    hidden = torch.randn(rows, width, dtype=models.dtype, device=on)
    with torch.inference_mode():
        return _drawing(models.options, models.network.head(hidden))


def _drawing(options: Options, logits: Tensor) -> dict[str, Value]:
    """ms for logits `[rows, V]`, by the way to draw."""
    rows, vocabulary = logits.shape
    found: dict[str, Value] = {}
    for name, sampling in SAMPLING.items():
        openings = [Opening(i, (0,), 1, sampling) for i in range(rows)]
        batch = StagedBatch(openings, vocabulary, options.device, kernel=options.kernel)
        draw = partial(batch.draw, logits)
        found[f"draw {name}"] = 1000 * device_s(draw, options.device, options.times)
    return found


def _served_ms(
    models: Models, rows: int, context: int, lookahead: int, graphs: bool
) -> float | None:
    """Median duration of the engine's iterations in which all rows decode."""
    budget = max(rows + 1, PREFILL_TOKENS)
    spare = -(-rows * context // (budget - rows))  # iterations until the last one is admitted
    outputs = min(SLACK - 8, (3 if models.options.tiny else STEPS) + spare)
    work = [Job([1 + i % 90] * context, outputs) for i in range(rows)]
    try:
        run = run_bare(
            models.get(graphs=graphs), StallFree(budget), "dynamic", work, rows,
            lookahead=lookahead,
        )  # fmt: skip
    except Exception:
        return None
    found = [r.duration_s for r in run.tally.iterations if r.batch_size == r.num_tokens == rows]
    return 1000 * statistics.median(found) if found else None


def kernels(options: Options, emit: Emit) -> None:
    """Single kernels beside torch's own over the same numbers: attention over contiguous keys,
    drawing beside a sort."""
    shapes = ((2, 1, 16),) if options.tiny else ((16, 16, 64), (32, 8, 64), (16, 8, 128))
    keys, chunk = (20, 10) if options.tiny else (KERNEL_KEYS, 512)
    rows_of = (2,) if options.tiny else KERNEL_ROWS
    for heads in shapes:
        cases = [(rows, 1) for rows in rows_of] + [(max(1, rows_of[0] // 8), chunk)]
        for rows, new in cases:
            emit("attention, ms", _attention(options, rows, keys, new, *heads))
    for rows in rows_of:
        for vocabulary in (97,) if options.tiny else (50_257, 151_936):
            logits = torch.randn(rows, vocabulary, dtype=options.dtype, device=options.device) * 3
            sort_s = device_s(partial(torch.sort, logits, -1), options.device, options.times)
            row: dict[str, Value] = {"rows": rows, "vocabulary": vocabulary}
            row |= _drawing(options, logits) | {"torch.sort": 1000 * sort_s}
            emit("drawing, ms", row)


def _attention(
    options: Options, rows: int, keys: int, new: int, heads: int, kv_heads: int, dim: int
) -> dict[str, Value]:
    """`rows` of `keys`, of which `new` are computed, beside torch's SDPA."""
    on, dtype = options.device, options.dtype
    shape = Heads(heads, kv_heads, dim, 16, str(dtype).removeprefix("torch."))
    tile_tokens = queries_per_tile(dtype, dim) // (heads // kv_heads)
    case = LayerCase([(keys - new, new)] * rows, shape, tile_tokens, on, 0)
    by = PagedAttention(case.packed, case.pool)
    ours_s = device_s(lambda: by(0, *case.split()), on, options.times)
    wide = torch.randn(3, rows, heads, keys, dim, dtype=dtype, device=on)
    query, lone = wide[0][:, :, -new:], wide[1:, :, :kv_heads].contiguous()
    mask: Tensor | None = None
    if new > 1:
        mask = torch.ones(new, keys, dtype=torch.bool, device=on).tril(keys - new)
    theirs_s = device_s(
        lambda: F.scaled_dot_product_attention(
            query, lone[0], lone[1], attn_mask=mask, enable_gqa=heads != kv_heads
        ),
        on,
        options.times,
    )
    name = "decode" if new == 1 else f"prefill of {new}"
    shown = f"{heads}:{kv_heads} heads of {dim}, {keys} keys"
    return {
        **{"kernel": name, "rows": rows, "of": shown},
        **{"ours": 1000 * ours_s, "torch, contiguous": 1000 * theirs_s},
    }


def prefills(options: Options, emit: Emit) -> None:
    """Prompts computed at once."""
    cases = ((1, 20), (2, 10)) if options.tiny else PREFILLS
    for name in NAMES[:1] if options.tiny else NAMES:
        models = Models(options, name, 1, max(n * tokens for n, tokens in cases) + SLACK)
        parameters = sum(p.numel() for p in models.network.parameters())
        for prompts, tokens in cases:
            call = partial(_prefill, models.get(graphs=False), prompts, tokens)
            seconds = device_s(call, options.device, min(3, options.times))
            row: dict[str, Value] = {"network": name, "prompts": prompts, "tokens": tokens}
            row |= {"ms": 1000 * seconds, "tokens/s": prompts * tokens / seconds}
            row |= {"TFLOP/s": 2 * parameters * prompts * tokens / seconds / 1e12}
            emit("prefills", row)
        del models, call


def _prefill(model: Executor, prompts: int, tokens: int) -> None:
    each, ids = -(-tokens // model.block_tokens), range(prompts)
    model.open([Opening(i, [1 + i] * tokens, tokens, SAMPLING["greedy"]) for i in ids])
    blocks = [range(i * each, (i + 1) * each) for i in ids]
    model.start([Step(i, 0, tokens, True, blocks[i]) for i in ids], ()).result()
    model.forget()


def profiled(options: Options, emit: Emit) -> None:
    """What the profiler finds in decode steps."""
    models = Models(options, NAMES[0], 64, CONTEXTS[0] + SLACK)
    rows = 2 if options.tiny else 64
    step = Decoding(models.get(graphs=options.kernel), rows, 20, SAMPLING["top_p 0.9"])
    step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if options.on_gpu else [])]
    with profile(activities=activities) as recorded:
        for _ in range(PROFILED):
            step()
        wait(options.device)
    spent = [(e.self_device_time_total or 0, e.count, e.key) for e in recorded.key_averages()]
    for spent_us, count, key in sorted(spent, reverse=True)[:12]:
        row: dict[str, Value] = {"kernel": key[:60], "us": spent_us, "calls": count}
        emit(f"the profiler, {PROFILED} steps of {rows} rows", row)
