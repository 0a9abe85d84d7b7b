"""The parts of the GPU benchmark. Each runs in a process of its own and reports point by point."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.bare import POLICY_OF, Job, run_bare
from benchmarks.on_gpu.points import (
    Bandwidth,
    Check,
    Facts,
    LeftOut,
    Played,
    Point,
    Prefill,
    StepTime,
)
from benchmarks.on_gpu.timing import launches_of, synchronisations_of, timed
from benchmarks.on_gpu.work import (
    FEWEST_REQUESTS,
    Decoding,
    Models,
    Options,
    blocks_each,
)
from engine.speculation import Speculation
from generate.modes import ModeName
from requested import Sampling
from runtime.gpu import selfcheck
from runtime.gpu.choice import resolve_device
from runtime.gpu.comparison import Heads
from scheduling.prediction.predictor import Predictor
from seams import Opening, Step

Emit = Callable[[Point], None]

SELF_CHECKED = (  # beside the model's own
    Heads(16, 16, 64, 16, "float16"),
    Heads(16, 16, 64, 16, "float32"),
    Heads(32, 8, 128, 16, "bfloat16"),
)
SAMPLING: dict[str, Callable[[int], Sampling]] = {  # by row
    "greedy": lambda _: Sampling(temperature=0),
    "temperature 1": lambda row: Sampling(seed=row),
    "top_p 0.9": lambda row: Sampling(seed=row, top_p=0.9),
}
SAME_ROWS = (1, 3, 17, 256)  # for which graphs are compared with eager iterations
SAME_STEPS = 8
DRAFTED_ROWS, MOST_DRAFTS = 4, 8
TRITON = "a kernel of Triton's runs"
OWN_HEADS = "attention, the model's own shape"


def find_device(name: str) -> torch.device:
    """With an index if it is a GPU. Raises runtime.gpu.choice.DeviceError."""
    return resolve_device(name).device


def use(device: torch.device) -> None:
    """Triton launches on it from then on; this process occupies it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def facts(options: Options, emit: Emit) -> None:
    """The device as torch sees it."""
    found = {"name": "cpu", "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    if options.on_gpu:
        of = torch.cuda.get_device_properties(options.device)
        free, total = torch.cuda.mem_get_info(options.device)
        found |= {
            "name": of.name,
            "capability": f"{of.major}.{of.minor}",
            "multiprocessors": str(of.multi_processor_count),
            "memory": f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        }
    emit(Facts("device", found))


def triton(options: Options, emit: Emit) -> None:
    """The smallest kernel: if it fails, no other one can run."""
    start_s = time.monotonic()
    try:
        from benchmarks.on_gpu.trivial import add_one

        found = "agrees" if add_one(options.device) else "a wrong sum"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    emit(Check(TRITON, found, time.monotonic() - start_s))


def check(options: Options, emit: Emit) -> None:
    """The attention kernel beside plain torch, by the server's own self-check. It needs the GPU's
    memory, or the GPU alone, so this process does not occupy it."""
    config = options.config
    heads = Heads(config.n_head, config.n_head, config.head_dim, 16, options.dtype_name)
    for one in [heads] if options.tiny else [heads, *SELF_CHECKED]:
        start_s = time.monotonic()
        found = selfcheck.check(options.device, one)
        shape = f"{one.heads}:{one.kv_heads} heads of {one.head_dim}, {one.dtype}"
        name = OWN_HEADS if one is heads else f"attention, {shape}"
        emit(Check(name, found.kernel or "agrees", time.monotonic() - start_s))
        if options.on_gpu and found.kernel is None:
            emit(Check(f"{name}, replayed as a graph", found.graphs or "agrees", 0.0))


def bandwidth(options: Options, emit: Emit) -> None:
    """Bytes a second that a copy on the device reads and writes."""
    numbers = torch.empty(
        2**10 if options.tiny else 2**30, dtype=torch.uint8, device=options.device
    )
    numbers.random_()
    to = torch.empty_like(numbers)
    found = timed(lambda: to.copy_(numbers), options.device, 10, repeats=5)
    emit(Bandwidth(2 * numbers.numel() / min(found.wall_s) / 1e9))


def steps(options: Options, emit: Emit, gb_s: float | None) -> None:
    """Decode steps of the dynamic layout: rows, contexts, ways to sample, eager and as graphs."""
    models = Models(options)
    ways = (True, False) if options.kernel else (False,)
    cases = [(context, "greedy", graphs) for graphs in ways for context in options.contexts]
    cases += [(options.contexts[0], sampling, options.kernel) for sampling in list(SAMPLING)[1:]]
    for context, sampling, graphs in cases:
        for rows in options.limits:
            name = f"{rows} rows of {context}, {sampling}, {'graphs' if graphs else 'eager'}"
            try:
                emit(_step(models, rows, context, sampling, graphs, gb_s))
            except Exception as error:
                emit(LeftOut(f"a step of {name}", f"{type(error).__name__}: {error}"))


def _step(
    models: Models, rows: int, context: int, sampling: str, graphs: bool, gb_s: float | None
) -> StepTime:
    options = models.options
    model = models.get("dynamic", graphs=graphs)
    step = Decoding(model, rows, context, [SAMPLING[sampling](row) for row in range(rows)])
    try:
        for _ in range(3):
            step()
        found = timed(step, options.device, 2 if options.tiny else 20, options.repeats)
        seconds = sorted(found.wall_s)[len(found.wall_s) // 2]
        needed = models.weight_bytes + rows * context * model.shape.token_bytes
        share = launches = synchronisations = None
        if options.on_gpu:
            share = needed / seconds / 1e9 / gb_s if gb_s else None
            synchronisations = synchronisations_of(step)
            try:
                launches = launches_of(step)
            except RuntimeError:  # the profiler is not permitted: the timing counts all the same
                launches = None
        return StepTime(
            rows, context, sampling, graphs, found.wall_s, found.event_s, needed, share,
            launches, synchronisations, found.peak_bytes,
        )  # fmt: skip
    finally:
        model.forget()


def prefill(options: Options, emit: Emit) -> None:
    """Prompts computed at once."""
    model = Models(options).get("dynamic", graphs=options.kernel)
    for prompts in (1, min(4, max(options.limits))):
        tokens = options.contexts[-1]
        try:
            each = blocks_each(model, prompts, tokens)
        except RuntimeError as error:
            emit(LeftOut(f"a prefill of {prompts} x {tokens}", str(error)))
            continue

        def call(prompts: int = prompts, tokens: int = tokens, each: int = each) -> None:
            ids = range(prompts)
            model.open([Opening(i, [1 + i] * tokens, tokens, Sampling(temperature=0)) for i in ids])
            blocks = [range(i * each, (i + 1) * each) for i in ids]
            model.start([Step(i, 0, tokens, True, blocks[i]) for i in ids], ()).result()

        call()
        found = timed(call, options.device, 1 if options.tiny else 5, options.repeats)
        model.forget()
        emit(Prefill(tokens, prompts, found.wall_s, found.event_s, found.peak_bytes))


def same(options: Options, emit: Emit) -> None:
    """Graphs draw the tokens that eager iterations draw, and so does planning ahead."""
    models = Models(options)
    counts = sorted({min(rows, max(options.limits)) for rows in SAME_ROWS})
    for rows in counts if options.kernel else []:
        start_s = time.monotonic()
        name = f"graphs draw eager's tokens, {rows} rows"
        try:
            drawn = [_drawn(models, rows, graphs) for graphs in (False, True)]
        except Exception as error:
            emit(LeftOut(name, f"{type(error).__name__}: {error}"))
            continue
        found = "agrees" if drawn[0] == drawn[1] else "other tokens"
        emit(Check(name, found, time.monotonic() - start_s))
    limit = min(32, max(options.limits))
    work = options.jobs(models.network.config.vocab_size, limit, equal=False)
    for name, sampling in SAMPLING.items():
        start_s = time.monotonic()
        model = models.get("dynamic", graphs=options.kernel)
        runs = [
            run_bare(
                model, POLICY_OF["dynamic"](), "dynamic", work, limit, sampling(0), lookahead=ahead
            )
            for ahead in (0, 1)
        ]
        differ = sum(a != b for a, b in zip(runs[0].outputs, runs[1].outputs, strict=True))
        found = "agrees" if not differ else f"{differ} of {len(work)} requests have other tokens"
        emit(Check(f"lookahead draws the same tokens, {name}", found, time.monotonic() - start_s))


def drafts(options: Options, emit: Emit) -> None:
    """How many tokens are others with drafts than without: a product of more rows may round
    differently."""
    limit = min(DRAFTED_ROWS, max(options.limits))
    for dtype in dict.fromkeys([options.dtype, torch.float32]):
        models = Models(replace(options, dtype=dtype))
        model = models.get("dynamic", graphs=options.kernel)
        work = options.jobs(models.network.config.vocab_size, limit, equal=False)
        for name in ("greedy", "temperature 1"):
            plain, drafted = (
                run_bare(
                    model, POLICY_OF["dynamic"](), "dynamic", work, limit, SAMPLING[name](0),
                    lookahead=1, speculation=speculation,
                )
                for speculation in (None, Speculation(MOST_DRAFTS, Predictor()))
            )  # fmt: skip
            pairs = list(zip(plain.outputs, drafted.outputs, strict=True))
            others = [sum(a != b for a, b in zip(*pair, strict=True)) for pair in pairs]
            records = drafted.tally.iterations
            found = {
                "accepted": sum(record.accepted_drafts for record in records),
                "rejected": sum(record.rejected_drafts for record in records),
                "tokens": sum(map(len, plain.outputs)),
                "other tokens": sum(others),
                "requests": len(work),
                "requests with other tokens": sum(map(bool, others)),
            }
            of = f"drafts, {name}, {str(dtype).removeprefix('torch.')}"
            emit(Facts(of, {key: str(value) for key, value in found.items()}))


def _drawn(models: Models, rows: int, graphs: bool) -> list[list[int]]:
    """The tokens of each step."""
    options, model = models.options, models.get("dynamic", graphs=graphs)
    own = [SAMPLING["temperature 1"](row) for row in range(rows)]
    try:
        step = Decoding(model, rows, options.contexts[0], own)
        for _ in range(2 if options.tiny else SAME_STEPS):
            step()
        return step.tokens
    finally:
        model.forget()


def modes(options: Options, emit: Emit, *, equal: bool, graphs: bool) -> None:
    """The modes in turns at each limit, on the same requests; nobatch once."""
    models = Models(options)
    lengths = "equal" if equal else "mixed"
    sides: list[tuple[ModeName, int]] = [("static", 0), ("dynamic", 0), ("dynamic", 1)]
    for limit in options.limits:
        work = options.jobs(models.network.config.vocab_size, limit, equal=equal)
        if limit == options.limits[0]:
            _play(models, emit, lengths, limit, graphs, [("nobatch", 0)], work[:FEWEST_REQUESTS])
        _play(models, emit, lengths, limit, graphs, sides, work)


def _play(
    models: Models,
    emit: Emit,
    lengths: str,
    limit: int,
    graphs: bool,
    sides: list[tuple[ModeName, int]],
    work: Sequence[Job],
) -> None:
    seconds: dict[tuple[ModeName, int], list[float]] = {side: [] for side in sides}
    outputs: dict[tuple[ModeName, int], list[list[int]]] = {}
    try:
        for number in range(
            -1, models.options.repeats
        ):  # the first one warms, with all rows of the limit
            for mode, ahead in sides[:: -1 if number % 2 else 1]:
                model = models.get(mode, graphs=graphs)
                jobs = work[:limit] if number < 0 else work
                run = run_bare(model, POLICY_OF[mode](), mode, jobs, limit, lookahead=ahead)
                if number >= 0:
                    seconds[mode, ahead].append(run.seconds)
                    outputs[mode, ahead] = run.outputs
    except Exception as error:
        emit(LeftOut(f"{lengths} lengths at {limit}", f"{type(error).__name__}: {error}"))
        return
    for (mode, ahead), found in seconds.items():
        same_tokens = None
        if mode == "dynamic":
            pairs = zip(outputs[mode, ahead], outputs["static", 0], strict=True)
            same_tokens = sum(ours == theirs for ours, theirs in pairs) / len(work)
        tokens = sum(map(len, outputs[mode, ahead]))
        emit(Played(lengths, mode, limit, graphs, ahead, len(work), tokens, found, same_tokens))
