"""The engine on a GPU, from a bare checkout, in two calls of at most four minutes each.

    python benchmarks/gpu.py A      # is it correct, and where does the time of a step go
    python benchmarks/gpu.py B      # the modes, bare and over HTTP

It needs torch 2.11 and Triton 3.6, or newer, numpy and safetensors, and downloads nothing; what
HTTP needs besides is in docs/gpu-machine.md. Weights are random. The parts stand in the order of
their value. Each runs in a process of its own with a time limit, and each of its points is written
to `points.jsonl` at once, so a crash, a hang or an interruption loses nothing else. The tables come
last.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkProcess

import torch

from benchmarks.on_gpu import checks, modes, steps
from benchmarks.on_gpu.points import AGREES, Emit, TableRow, Value, append, read, shown, tables
from benchmarks.on_gpu.work import NAMES, Options
from model import DTYPES
from runtime.gpu.choice import resolve_device

SECONDS = 230.0
STOP_S = 3.0  # to end a part that is over its time
# no part has touched the device in this process, or a fork could not use it
FORKING = multiprocessing.get_context("fork")
SMI = "name,driver_version,clocks.sm,clocks.mem,power.limit,memory.free,memory.total,compute_mode"


@dataclass(frozen=True, slots=True)
class GpuPart:
    """`apart`: its own processes use the device, and may need all of it."""

    name: str
    seconds: float  # at most
    run: Callable[[Options, Emit], None]
    apart: bool = False


def trivial(options: Options, emit: Emit) -> None:
    """The smallest kernel, which shows whether the compiler and the driver work; then the
    device."""
    start_s = time.monotonic()
    try:
        from benchmarks.on_gpu.trivial import add_one

        found = None if add_one(options.device) else "a wrong sum"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    checks.checked(emit, checks.TRITON, found, start_s)
    steps.device(options, emit)


def single(options: Options, emit: Emit) -> None:
    """Single calls, what is least needed last."""
    steps.kernels(options, emit)
    steps.prefills(options, emit)
    steps.profiled(options, emit)


def parts_of(call: str, points: Sequence[TableRow], *, tiny: bool) -> list[GpuPart]:
    """In their order."""
    if call == "B":
        return [
            GpuPart("mixed", 70, partial(modes.bare, equal=False)),
            GpuPart("http", 110, modes.over_http, apart=True),
            GpuPart("equal", 50, partial(modes.bare, equal=True)),
            GpuPart("memcheck", 40, modes.sanitizer, apart=True),
        ]
    gb_s = next((p.row.get("copy GB/s") for p in points if p.table == "the device"), None)
    known = float(gb_s) if isinstance(gb_s, float) else None
    timed = [
        GpuPart(f"decodes of {name}", 60, partial(steps.decodes, name=name, gb_s=known))
        for name in (NAMES[:1] if tiny else NAMES)
    ]
    return [
        GpuPart("device", 30, trivial),
        GpuPart("self-checks", 60, checks.self_checks, apart=True),
        GpuPart("networks", 70, checks.networks),
        timed[0],
        GpuPart("attention", 40, checks.attention),
        *timed[1:],
        GpuPart("kernels", 40, single),
    ]


def usable(points: Sequence[TableRow]) -> bool:
    """Whether the kernels can be used: the smallest one ran, and no check of a shape failed."""
    found = {p.row["check"]: p.row["found"] for p in points if p.table == "checks"}
    shapes = [found for name, found in found.items() if " heads of " in str(name)]
    return found.get(checks.TRITON, AGREES) == AGREES and all(f == AGREES for f in shapes)


class GpuBench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.out: Path = args.out
        self.kept = self.out / "points.jsonl"
        self._start_s = time.monotonic()

    def run(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        append(self.kept, TableRow("machine", machine()))
        names = [part.name for part in parts_of(self.args.call, [], tiny=self.args.tiny)]
        for at, name in enumerate(names):
            if self.args.parts and name not in self.args.parts:
                continue
            part = parts_of(self.args.call, list(read(self.kept)), tiny=self.args.tiny)[at]
            elapsed_s = time.monotonic() - self._start_s
            print(f"{elapsed_s:5.0f} s: {part.name}", flush=True)
            left_s = self.args.seconds - elapsed_s
            why: str | None = "no time left"
            if left_s > 0:
                why = self._apart(part, min(part.seconds, left_s))
            if why is not None:
                self._emit("left out", {"what": part.name, "why": why})

    def _apart(self, part: GpuPart, seconds: float) -> str | None:
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

    def _in_process(self, part: GpuPart) -> None:
        os.setsid()  # what it starts ends with it
        faulthandler.enable()
        args = self.args
        try:
            device = resolve_device(args.device).device
            kernel = usable(list(read(self.kept)))
            options = Options.of(device, args.dtype, tiny=args.tiny, kernel=kernel)
            if device.type == "cuda" and not part.apart:
                torch.cuda.set_device(device)  # Triton launches on it, and this process occupies it
            part.run(options, self._emit)
        except Exception as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
            self._emit("left out", {"what": part.name, "why": why})
        sys.stdout.flush()
        os._exit(0)  # a fork must not run the parent's exit handlers

    def _emit(self, table: str, row: Mapping[str, Value]) -> None:
        append(self.kept, TableRow(table, row))
        told = ", ".join(f"{name} {shown(value)}" for name, value in row.items())
        print(f"        {table}: {told}", flush=True)


def _end(process: ForkProcess) -> None:
    assert process.pid is not None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        process.join(STOP_S)


def machine() -> dict[str, Value]:
    """The driver's view, without torch."""
    found: dict[str, Value] = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
    if shutil.which("nvidia-smi") is None:
        return found | {"nvidia-smi": "not installed"}
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return found | {"nvidia-smi": "no answer"}
    return found | {"nvidia-smi": " | ".join((told.stdout or told.stderr).strip().splitlines())}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("call", choices=["A", "B"])
    parser.add_argument("--parts", nargs="+", help="only these, by the names that a run prints")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ... (default: cuda)")
    parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in all (default: 230)")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder")
    parser.add_argument("--tiny", action="store_true", help="networks of some thousand parameters")
    args = parser.parse_args(argv)
    allowed = [part.name for part in parts_of(args.call, [], tiny=args.tiny)]
    for name in args.parts or []:
        if name not in allowed:
            parser.error(f"no part {name!r} in call {args.call}; allowed: {', '.join(allowed)}")
    bench = GpuBench(args)
    bench.run()
    print(tables(list(read(bench.kept))))


if __name__ == "__main__":
    main()
