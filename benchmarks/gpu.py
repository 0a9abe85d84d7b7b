"""The three modes on a GPU, from a bare checkout.

    python benchmarks/gpu.py

It needs torch 2.11 and Triton 3.6, or newer, numpy and safetensors, and downloads nothing. First
the attention kernel is compared with plain torch, then decode steps are timed, then the modes
run the same work at batch limits of 1 to 256: GPT-2 medium's shape, random weights, all requests
present at once, eager and with CUDA graphs. After every part `gpu.json` and `gpu.svg` are written
again, so an interrupted run keeps its results.
"""

from __future__ import annotations

import sys
from pathlib import Path

if (
    not __package__
):  # run as a file: this folder has a package `http`, which would hide Python's own
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import faulthandler
import json
import math
import platform
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bare import Job, offline_work, run_bare
from benchmarks.gpu_picture import picture
from generate.modes import Mode
from gpt.cache import KVPool, KVShape
from gpt.checkpoint import SHAPES, random_network
from gpt.executor import Executor
from gpt.gpu.device import Device
from gpt.gpu.selfcheck import Heads, why_not
from gpt.network import GPT, GPTConfig, init_weights
from model import DTYPES, DynamicBatchingServerModel, ServerModel, best_dtype
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import Opening, Policy, Sampling, Step

DTYPES_ON_GPU = ["auto", "float32", "bfloat16", "float16"]
LIMITS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
CONTEXT = 256  # tokens that each row of a timed step has computed
ROUNDS = 2  # batches' worth of requests that the modes are given
FEWEST_REQUESTS = 4
LONGEST = CONTEXT + 64  # tokens of a request, or of a row of a timed step
TINY = GPTConfig(vocab_size=97, context=512, n_layer=1, n_head=1, n_embd=16)
SELF_CHECKED = (  # beside the model's own
    Heads(16, 16, 64, 16, "float16"),
    Heads(16, 16, 64, 16, "float32"),
    Heads(32, 8, 128, 16, "bfloat16"),
)
POLICIES: dict[Mode, Callable[[], Policy]] = {
    "nobatch": NoBatch,
    "static": lambda: Static(max_wait_s=0.0),
    "dynamic": Orca,
}


@dataclass(frozen=True, slots=True)
class StepTime:
    rows: int
    graphs: bool
    seconds: float
    needed_bytes: int  # weights once, keys and values of all rows
    bandwidth_share: float | None  # needed bytes / seconds / what the device can read
    launches: int | None
    synchronisations: int | None  # beside the one read-back


@dataclass(frozen=True, slots=True)
class Played:
    lengths: str  # mixed or equal
    mode: str
    limit: int
    graphs: bool
    requests: int
    tokens: int
    seconds: float
    same_tokens: float | None  # share of requests whose tokens are those of static batching

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True)
class Report:
    machine: dict[str, str]
    model: str
    dtype: str
    bandwidth_gb_s: float | None = None
    self_check: dict[str, str] = field(default_factory=dict)  # heads -> agrees, or why not
    self_check_s: float = 0.0
    steps: list[StepTime] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # for lack of time, or since they failed
    seconds: float = 0.0


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.device = torch.device(args.device)
        self.on_gpu = self.device.type == "cuda"
        self.dtype = best_dtype(self.device) if args.dtype == "auto" else DTYPES[args.dtype]
        self.limits: list[int] = args.limits
        self.out: Path = args.out
        self.tiny: bool = args.tiny
        self._start_s = time.monotonic()
        self._end_s = self._start_s + args.seconds
        self.report = Report(
            describe_machine(self.device),
            "a tiny network" if self.tiny else f"random:{args.model}",
            str(self.dtype).removeprefix("torch."),
        )
        self.network = tiny_network() if self.tiny else random_network(args.model, 0)
        self.network.to(self.device, self.dtype).eval().requires_grad_(False)
        self.kernel = True
        self.models: dict[Mode, Executor] = {}
        self._devices: dict[bool, Device] = {}  # by whether decodes are graphs
        self._outputs: list[list[int]] = []  # of static batching at the present limit

    # --- parts ------------------------------------------------------------------------------

    def check(self) -> None:
        """Chooses the attention for the other parts."""
        config = self.network.config
        own = Heads(config.n_head, config.n_head, config.head_dim, 16, self.report.dtype)
        for heads in [own] if self.tiny else [own, *SELF_CHECKED]:
            start_s = time.monotonic()
            found = why_not(self.device, heads)
            if heads is own:
                self.kernel = found is None
                self.report.self_check_s = time.monotonic() - start_s
            name = f"{heads.heads}:{heads.kv_heads} heads of {heads.head_dim}, {heads.dtype}"
            self.report.self_check[name] = found or "agrees"

    def bandwidth(self) -> None:
        """Bytes a second that a copy on the device reads and writes."""
        numbers = torch.empty(2**10 if self.tiny else 2**30, dtype=torch.uint8, device=self.device)
        to = torch.empty_like(numbers)
        seconds = min(self._timed(lambda: to.copy_(numbers), 10) for _ in range(5))
        self.report.bandwidth_gb_s = 2 * numbers.numel() / seconds / 1e9

    def step_times(self, graphs: bool) -> None:
        """Decode steps of the dynamic layout, from the host's call to the tokens."""
        self._use(graphs)
        for rows in self.limits:
            name = f"a step of {rows} rows"
            self._try(name, partial(self._time_step, self.models["dynamic"], rows, graphs))

    def _time_step(self, model: Executor, rows: int, graphs: bool) -> None:
        weights = sum(p.numel() * p.element_size() for p in self.network.parameters())
        context = 20 if self.tiny else CONTEXT
        step = Decoding(model, rows, context)
        for _ in range(3):
            step()
        seconds = self._timed(step, 2 if self.tiny else 20)
        needed = weights + rows * context * model.shape.token_bytes
        share = launches = synchronisations = None
        if self.on_gpu:
            share = needed / seconds / 1e9 / (self.report.bandwidth_gb_s or math.nan)
            launches, synchronisations = launches_of(step), synchronisations_of(step)
        self.report.steps.append(
            StepTime(rows, graphs, seconds, needed, share, launches, synchronisations)
        )
        model.forget()

    def play(self, lengths: str, graphs: bool) -> None:
        """All modes at all limits."""
        vocab_size = self.network.config.vocab_size
        self._use(graphs)
        for limit in self.limits:
            work = offline_work(vocab_size, max(FEWEST_REQUESTS, ROUNDS * limit), seed=limit)
            if self.tiny:
                work = [Job(job.prompt[:5], min(job.output_tokens, 2)) for job in work[:2]]
            if lengths == "equal":
                tokens = 2 if self.tiny else 100
                work = [Job((job.prompt * 8)[: 4 if self.tiny else 32], tokens) for job in work]
            self._outputs = []
            modes: list[Mode] = ["static", "dynamic"]
            for mode in ["nobatch", *modes] if limit == self.limits[0] else modes:
                name = f"{lengths} lengths, {mode} at {limit}"
                self._try(name, partial(self._play, mode, lengths, limit, graphs, work))

    def _play(
        self, mode: Mode, lengths: str, limit: int, graphs: bool, work: Sequence[Job]
    ) -> None:
        model = self.models[mode]
        if mode == "nobatch":
            work, limit = work[:FEWEST_REQUESTS], 1
        run_bare(model, POLICIES[mode](), mode, work[:1], limit)  # warm
        run = run_bare(model, POLICIES[mode](), mode, work, limit)
        same = None
        if mode == "static":
            self._outputs = run.outputs
        elif mode == "dynamic" and self._outputs:
            pairs = zip(run.outputs, self._outputs, strict=True)
            same = sum(ours == theirs for ours, theirs in pairs) / len(work)
        tokens = sum(map(len, run.outputs))
        self.report.played.append(
            Played(lengths, mode, limit, graphs, len(work), tokens, run.seconds, same)
        )

    # --- around them ------------------------------------------------------------------------

    def run(self) -> None:
        parts: list[tuple[str, Callable[[], None]]] = [
            ("comparing the kernel with plain torch", self.check),
            ("measuring the device's bandwidth", self.bandwidth),
            ("decode steps, eager", lambda: self.step_times(False)),
            ("mixed lengths, eager", lambda: self.play("mixed", False)),
            ("decode steps, graphs", lambda: self.step_times(True)),
            ("mixed lengths, graphs", lambda: self.play("mixed", True)),
            ("equal lengths, graphs", lambda: self.play("equal", True)),
            ("equal lengths, eager", lambda: self.play("equal", False)),
        ]
        for name, part in parts:
            print(f"{time.monotonic() - self._start_s:5.0f} s: {name}", flush=True)
            self._try(name, part)
            self.save()

    def _try(self, name: str, part: Callable[[], None]) -> None:
        """Names a part that fails or for which no time is left; the others continue."""
        if time.monotonic() > self._end_s:
            self.report.left_out.append(f"{name}: no time left")
            return
        try:
            part()
        except Exception as error:
            traceback.print_exc()
            self.report.left_out.append(f"{name}: {type(error).__name__}: {error}")

    def save(self) -> None:
        self.report.seconds = time.monotonic() - self._start_s
        self.out.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("gpu.json", json.dumps(asdict(self.report), indent=2) + "\n"),
            ("gpu.svg", picture(self.report)),
        ):
            (self.out / f"{name}.part").write_text(text)
            (self.out / f"{name}.part").replace(self.out / name)

    def _use(self, graphs: bool) -> None:
        """Both models run on one pool; iterations eager, or decodes as graphs."""
        shape = KVShape.of(self.network.config, self.dtype, self.device)
        rows = max(self.limits)
        if not self.models:
            kinds: dict[Mode, type[Executor]] = {
                "nobatch": ServerModel,
                "static": ServerModel,
                "dynamic": DynamicBatchingServerModel,
            }
            pool = KVPool(shape, rows * -(-LONGEST // shape.block_tokens))
            for mode, kind in kinds.items():
                model = kind(self.network, self.dtype, self.report.model, kernel=self.kernel)
                model.pool = pool
                self.models[mode] = model
        if graphs not in self._devices:
            device = Device(self.network, self.models["dynamic"].pool, kernel=self.kernel)
            if graphs:
                device.record_graphs(rows)
                if not device.has_graphs:
                    raise RuntimeError("no graphs were recorded")
            self._devices[graphs] = device
        for model in self.models.values():
            model.gpu = self._devices[graphs]

    def _timed(self, call: Callable[[], object], times: int) -> float:
        """Seconds a call."""
        self._wait()
        start_s = time.perf_counter()
        for _ in range(times):
            call()
        self._wait()
        return (time.perf_counter() - start_s) / times

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


class Decoding:
    """Rows that decode greedily; a call is a step and the reading of its tokens."""

    def __init__(self, model: Executor, rows: int, context: int) -> None:
        self.model, self.rows, self.at = model, range(rows), context
        each = -(-(context + 64) // model.block_tokens)
        prompt = [1] * context
        model.open([Opening(i, prompt, context, Sampling(temperature=0)) for i in self.rows])
        for i in self.rows:  # one by one: together they might not fit
            step = Step(i, 0, context, True, range(i * each, (i + 1) * each))
            model.start([step], ()).result()

    def __call__(self) -> None:
        steps = [Step(i, self.at, 1, True, ()) for i in self.rows]
        self.model.start(steps, ()).result()
        self.at += 1


def launches_of(step: Callable[[], None]) -> int:
    """Kernels, copies and graphs that the host launches in a step."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        step()
    names = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset", "cudaGraphLaunch")
    return sum(event.count for event in recorded.key_averages() if event.key.startswith(names))


def synchronisations_of(step: Callable[[], None]) -> int:
    """Operators of torch's that wait for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in found)


def tiny_network() -> GPT:
    network = GPT(TINY)
    init_weights(network, 0)
    return network


def describe_machine(device: torch.device) -> dict[str, str]:
    found = {"torch": torch.__version__, "python": platform.python_version(), "device": str(device)}
    if device.type == "cuda":
        of = torch.cuda.get_device_properties(device)
        found["device"] = f"{of.name}, {of.total_memory / 2**30:.0f} GiB"
        found["capability"] = f"{of.major}.{of.minor}"
        found["cuda"] = str(torch.version.cuda)
    return found


def table(report: Report) -> Iterator[str]:
    yield f"{report.model}, {report.dtype}, on {report.machine['device']}"
    for heads, found in report.self_check.items():
        yield f"kernel, {heads}: {found}"
    yield f"bandwidth {report.bandwidth_gb_s or 0:.0f} GB/s"
    for step in report.steps:
        yield (
            f"step of {step.rows:3} rows, {'graphs' if step.graphs else 'eager '}: "
            f"{1000 * step.seconds:.2f} ms, {step.bandwidth_share or 0:.2f} of the bandwidth, "
            f"launches {step.launches}, synchronisations {step.synchronisations}"
        )
    for run in report.played:
        how = "graphs" if run.graphs else "eager "
        speed = f"{run.tokens_per_s:.0f} tokens/s"
        yield f"{run.lengths}, {how}, {run.mode:7} at {run.limit:3}: {speed}"
    yield from (f"left out: {what}" for what in report.left_out)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="gpt2-medium", choices=SHAPES, help="a shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto", choices=DTYPES_ON_GPU)
    parser.add_argument("--limits", nargs="+", type=int, default=LIMITS, help="batch limits")
    parser.add_argument("--seconds", type=float, default=420, help="no part begins after this time")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder")
    parser.add_argument("--tiny", action="store_true", help="a network of 13 thousand parameters")
    args = parser.parse_args(argv)
    faulthandler.dump_traceback_later(args.seconds + 60, exit=True)  # if the device hangs
    bench = Bench(args)
    bench.run()
    print("\n".join(table(bench.report)))
    print(json.dumps(asdict(bench.report)))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
