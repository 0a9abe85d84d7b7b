"""The three modes on a GPU, from a bare checkout, in eight minutes.

    python benchmarks/gpu.py

It needs torch 2.11 and Triton 3.6, or newer, numpy and safetensors, and downloads nothing. Each
part runs in a process of its own with a time limit, and what it measures is written at once, so a
crash, a hang or an interruption loses nothing else. A trivial kernel comes first; if Triton cannot
run, the other parts use PyTorch's operators. `gpu.json` and `gpu.svg` are written after each part.
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
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkProcess

from benchmarks.on_gpu import parts
from benchmarks.on_gpu.picture import picture
from benchmarks.on_gpu.points import (
    Bandwidth,
    Check,
    Facts,
    LeftOut,
    Played,
    Point,
    Prefill,
    Report,
    StepTime,
    append,
    read,
)
from benchmarks.on_gpu.work import Options
from model import DTYPES
from models.shapes import GPT2_SHAPES

LIMITS = [1, 8, 64, 256]
CONTEXTS = [128, 1024]
SECONDS = 480.0
STOP_S = 3.0  # to end a part that is over its time
# no part has touched the device in this process, or a fork could not use it
FORKING = multiprocessing.get_context("fork")
SMI = "name,driver_version,clocks.sm,clocks.mem,power.limit,memory.free,memory.total,compute_mode"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    seconds: float  # at most
    run: Callable[[Options, parts.Emit], None]


def usable(report: Report) -> bool:
    """Whether the attention kernel, and graphs with it, can be used."""
    return not (report.failed(parts.TRITON) or report.failed(parts.OWN_HEADS))


def planned(report: Report) -> Iterator[Part]:
    """The parts in their order; each sees what the ones before it found."""
    yield Part("the device", 60, parts.facts)
    yield Part("a trivial kernel", 60, parts.triton)
    if not report.failed(parts.TRITON):
        yield Part("the kernels beside plain torch", 240, parts.check)
    yield Part("the device's bandwidth", 30, parts.bandwidth)
    yield Part("decode steps", 120, partial(parts.steps, gb_s=report.bandwidth_gb_s))
    if usable(report):
        yield Part("mixed lengths, graphs", 90, partial(parts.modes, equal=False, graphs=True))
    yield Part("the same tokens", 60, parts.same)
    yield Part("the same tokens with drafts", 60, parts.drafts)
    yield Part("prefills", 40, parts.prefill)
    if usable(report):
        yield Part("equal lengths, graphs", 60, partial(parts.modes, equal=True, graphs=True))
    yield Part("mixed lengths, eager", 60, partial(parts.modes, equal=False, graphs=False))


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.out: Path = args.out
        self.report = Report()
        self._points = self.out / "points.jsonl"
        self._start_s = time.monotonic()
        self._number = 0

    def run(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self._points.unlink(missing_ok=True)
        append(self._points, Facts("machine", machine()))
        append(self._points, Facts("work", self._work()))
        for part in planned(self.report):
            elapsed_s = time.monotonic() - self._start_s
            print(f"{elapsed_s:5.0f} s: {part.name}", flush=True)
            left_s = self.args.seconds - elapsed_s
            why: str | None = "no time left"
            if left_s > 0:
                why = self._apart(part, min(part.seconds, left_s))
            if why is not None:
                append(self._points, LeftOut(part.name, why))
            self._save()

    def _work(self) -> dict[str, str]:
        model = "a tiny network" if self.args.tiny else f"random:{self.args.model}"
        return {"model": model, "dtype": self.args.dtype, "device": self.args.device}

    def _apart(self, part: Part, seconds: float) -> str | None:
        """Runs it in a process of its own; why it did not end well."""
        process = FORKING.Process(target=self._in_process, args=(part,))
        process.start()
        process.join(seconds)
        if process.is_alive():
            _end(process)
            return f"not done after {seconds:.0f} s"
        if process.exitcode:
            return f"ended with status {process.exitcode}"
        return None

    def _in_process(self, part: Part) -> None:
        os.setsid()  # what it starts ends with it
        faulthandler.enable()
        args = self.args
        try:
            options = Options.of(
                parts.find_device(args.device), args.dtype, args.model, tiny=args.tiny,
                limits=args.limits, contexts=args.contexts, kernel=usable(self.report),
            )  # fmt: skip
            if part.run is not parts.check:
                parts.use(options.device)
            part.run(options, self._emit)
        except Exception as error:
            traceback.print_exc()
            self._emit(LeftOut(part.name, f"{type(error).__name__}: {error}"))
        sys.stdout.flush()
        os._exit(0)  # a fork must not run the parent's exit handlers

    def _emit(self, point: Point) -> None:
        append(self._points, point)
        print("        " + describe(point), flush=True)

    def _save(self) -> None:
        self.report.points[:] = read(self._points)
        self.report.seconds = time.monotonic() - self._start_s
        for name, text in (("gpu.json", self.report.as_json()), ("gpu.svg", picture(self.report))):
            (self.out / f"{name}.part").write_text(text)
            (self.out / f"{name}.part").replace(self.out / name)


def _end(process: ForkProcess) -> None:
    assert process.pid is not None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        process.join(STOP_S)


def machine() -> dict[str, str]:
    """The driver's view, without torch."""
    found = {"python": platform.python_version(), "cores": str(len(os.sched_getaffinity(0)))}
    if shutil.which("nvidia-smi") is None:
        return found | {"nvidia-smi": "not installed"}
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return found | {"nvidia-smi": "no answer"}
    return found | {"nvidia-smi": " | ".join((told.stdout or told.stderr).strip().splitlines())}


def describe(point: Point) -> str:
    match point:
        case Facts():
            return f"{point.of}: " + ", ".join(f"{k} {v}" for k, v in point.facts.items())
        case Check():
            return f"{point.name}: {point.found} ({point.seconds:.1f} s)"
        case Bandwidth():
            return f"bandwidth {point.gb_s:.0f} GB/s"
        case StepTime():
            return (
                f"step of {point.rows:3} rows of {point.context} tokens, {point.sampling}, "
                f"{'graphs' if point.graphs else 'eager'}: {_ms(point.seconds)} "
                f"(events {_ms(point.event_s)}), {point.bandwidth_share or 0:.2f} of the "
                f"bandwidth, launches {point.launches}, synchronisations {point.synchronisations}"
            )
        case Prefill():
            return (
                f"prefill of {point.prompts} x {point.tokens}: {point.tokens_per_s:.0f} tokens/s "
                f"(events {_ms(point.event_s)})"
            )
        case Played():
            return (
                f"{point.lengths} lengths, {'graphs' if point.graphs else 'eager'}, {point.mode} "
                f"(lookahead {point.lookahead}) at {point.limit:3}: {point.tokens_per_s:.0f} "
                f"tokens/s, slowest / fastest {point.spread:.2f}"
            )
        case LeftOut():
            return f"left out: {point.what}: {point.why}"


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1000 * seconds:.2f} ms"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="gpt2-medium", choices=GPT2_SHAPES, help="a shape")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ... (default: cuda)")
    parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES])
    parser.add_argument("--limits", nargs="+", type=int, default=LIMITS, help="batch limits, rows")
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS, help="of timed steps")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in all (default: 480)")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder")
    parser.add_argument("--tiny", action="store_true", help="a network of 13 thousand parameters")
    bench = Bench(parser.parse_args(argv))
    bench.run()
    print("\n".join(map(describe, bench.report.points)))
    print(bench.report.as_json().replace("\n", ""))


if __name__ == "__main__":
    main()
