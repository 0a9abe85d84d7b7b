"""The three modes on a GPU: the bare loop on the same requests, then streams over HTTP."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.bare import POLICY_OF, Job, offline_work, run_bare
from benchmarks.http.client import Received
from benchmarks.on_gpu.points import Emit
from benchmarks.on_gpu.work import Models, Options, jobs
from generate.modes import ModeName

ROOT = Path(__file__).resolve().parents[2]
LIMITS = (8, 64, 256)
STREAMS = (64, 256)
NETWORK = "llama-3.2-1b"
TOKENS = 512  # of the longest request
SIDES: list[tuple[ModeName, int]] = [  # and the lookahead
    *(("static", 0), ("static", 1), ("dynamic", 0), ("dynamic", 1)),
]
ALONE: list[tuple[ModeName, int]] = [("nobatch", 0), ("nobatch", 1)]


def bare(options: Options, emit: Emit, *, equal: bool) -> None:
    """The modes in turns at each limit; nobatch once."""
    limits = (2,) if options.tiny else LIMITS
    models = Models(options, NETWORK, max(limits), TOKENS)
    for limit in limits:
        work = jobs(models.vocab_size, limit, equal=equal, tiny=options.tiny)
        if limit == limits[0]:
            _play(models, emit, "equal" if equal else "mixed", limit, ALONE, work[:4])
        _play(models, emit, "equal" if equal else "mixed", limit, SIDES, work)


def _play(
    models: Models,
    emit: Emit,
    lengths: str,
    limit: int,
    sides: Sequence[tuple[ModeName, int]],
    work: Sequence[Job],
) -> None:
    seconds: dict[tuple[ModeName, int], list[float]] = {side: [] for side in sides}
    tokens = 0
    try:
        # the first round warms, with all rows of the limit
        for number in range(-1, 1 if models.options.tiny else 3):
            for mode, ahead in sides[:: -1 if number % 2 else 1]:
                model = models.get(mode, graphs=models.options.kernel)
                its = work[:limit] if number < 0 else work
                run = run_bare(model, POLICY_OF[mode](), mode, its, limit, lookahead=ahead)
                model.forget()
                if number >= 0:
                    seconds[mode, ahead].append(run.seconds)
                    tokens = run.tokens
    except Exception as error:
        emit("left out", {"what": f"{lengths} lengths at {limit}", "why": repr(error)})
        return
    for (mode, ahead), found in seconds.items():
        emit(
            f"modes, {lengths} lengths, {NETWORK}",
            {
                "limit": limit,
                "mode": mode,
                "lookahead": ahead,
                "tokens/s": tokens / statistics.median(found),
                "slowest / fastest": max(found) / min(found),
            },
        )


def over_http(options: Options, emit: Emit) -> None:
    """Streams of the server's own modes, and through the launcher, whose model has a process of
    its own. A server's limit is the number of streams; nobatch serves an eighth of them."""
    modes = ("dynamic", "launcher", "static", "nobatch")
    for streams in (2,) if options.tiny else STREAMS:
        for mode in modes[:2] if options.tiny else modes:
            count = max(1, streams // 8) if mode == "nobatch" else streams
            try:
                with _server(options, mode, streams) as url:
                    received = _stream(url, options, count)
            except Exception as error:
                what = f"HTTP, {mode}, {streams} streams"
                emit("left out", {"what": what, "why": str(error)[-300:]})
                continue
            emit(
                "over HTTP, random:gpt2-medium",
                {
                    "limit": streams,
                    "mode": mode,
                    "streams": count,
                    "lost": received.lost,
                    "tokens/s": received.tokens / received.seconds,
                    "events/s": received.events / received.seconds,
                },
            )


def _model(options: Options) -> str:
    return "embedded" if options.tiny else "random:gpt2-medium"


def _server(options: Options, mode: str, limit: int) -> AbstractContextManager[str]:
    """A server's URL. RuntimeError, with the end of its log, if it does not start."""
    from benchmarks.harness.servers import served

    device = "cpu" if not options.on_gpu else "cuda"
    own = ("--num-shard", "1") if mode == "launcher" else ()
    return served(mode, _model(options), limit, "--device", device, *own)


def _stream(url: str, options: Options, count: int) -> Received:
    from benchmarks.http.streams import stream_all

    work = [Job([1, 2], 2)] * count if options.tiny else offline_work(50_257, count)
    asked = [(job.prompt, job.output_tokens) for job in work]
    stream_all(url, _model(options), asked[:2])  # warms
    return stream_all(url, _model(options), asked)


def sanitizer(options: Options, emit: Emit) -> None:
    """compute-sanitizer's memcheck over a small self-check."""
    if shutil.which("compute-sanitizer") is None:
        emit("left out", {"what": "memcheck", "why": "compute-sanitizer is not installed"})
        return
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable]
    check = ["-m", "runtime.gpu.selfcheck", str(options.device), "2", "1", "64", "16", "bfloat16"]
    done = subprocess.run([*command, *check], cwd=ROOT, capture_output=True, text=True, check=False)
    last = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line]
    emit("memcheck", {"status": done.returncode, "found": last[-1] if last else None})
