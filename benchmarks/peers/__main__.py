"""Our engine and others at the same work: output tokens per second without HTTP, on a CPU.

    python -m benchmarks.peers --install        # makes the environments first, some gigabytes
    python -m benchmarks.peers                  # bf16 and fp32, about a quarter of an hour
    python -m benchmarks.peers --peers vLLM --dtypes bfloat16 --requests 4

The same weights, prompts and output lengths for all (see benchmarks/common.py), greedy, no end
token, one process after the other, ours before and after the others. A peer that cannot be
installed or run, or that gives a wrong number of tokens, is reported with the reason.
docs/peers.md says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.common import machine, offline_work, save
from benchmarks.limits import Limits, Pass, describe, least_seconds, measure
from benchmarks.peers.checkpoint import prepare
from benchmarks.peers.environments import (
    BUILD,
    HERE,
    PEERS,
    ROOT,
    Peer,
    install,
    python_of,
    variables_of,
)
from benchmarks.peers.runner import Task
from gpt.checkpoint import read_config

LIMIT = 64
NOBATCH_REQUESTS = 8
TIMEOUT_S = 900
BEFORE, AFTER, NOBATCH = "ours, before", "ours, after", "ours, nobatch"


@dataclass(frozen=True, slots=True)
class Result:
    dtype: str
    engine: str
    requests: int
    tokens: int = 0
    seconds: float = 0.0
    settings: str = ""
    error: str = ""  # why there is no figure
    outputs: list[list[int]] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Work:
    """The tasks, and the folder in which they and their results lie while they are run."""

    def __init__(self, model: str, requests: int, scratch: Path) -> None:
        self.folder = prepare(model, BUILD / "models")
        self.config = read_config(self.folder)
        self.jobs = offline_work(self.config.vocab_size, requests)
        self.scratch = scratch

    def do(
        self,
        engine: str,
        command: Sequence[str],
        runner: str,
        dtype: str,
        requests: int | None,
        variables: Mapping[str, str],
    ) -> Result:
        jobs = self.jobs[:requests]
        limit = 1 if runner == "nobatch" else LIMIT
        task = Task(
            runner, str(self.folder), dtype, limit,
            [job.prompt for job in jobs], [job.output_tokens for job in jobs],
        )  # fmt: skip
        given, written = self.scratch / "task.json", self.scratch / "result.json"
        given.write_text(json.dumps(asdict(task)))
        written.unlink(missing_ok=True)
        log = self.scratch / f"{engine}-{dtype}.log"
        with log.open("w") as out:
            try:
                subprocess.run(
                    [*command, str(given), str(written)],
                    env=variables, cwd=ROOT, stdout=out, stderr=out, timeout=TIMEOUT_S, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                return Result(dtype, engine, len(jobs), error=str(error))
        if not written.exists():
            last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            return Result(dtype, engine, len(jobs), error=last[-1] if last else "no result")
        return checked(dtype, engine, task, json.loads(written.read_text()))


def checked(dtype: str, engine: str, task: Task, done: Mapping[str, Any]) -> Result:
    """A result counts only if every request has exactly the tokens that it asked for."""
    wrong = [
        (len(output), wanted)
        for output, wanted in zip(done["outputs"], task.output_tokens, strict=True)
        if len(output) != wanted
    ]
    if wrong:
        error = f"{len(wrong)} requests have a wrong number of tokens: {wrong[0][0]}, "
        return Result(dtype, engine, len(task.prompts), error=f"{error}asked for {wrong[0][1]}")
    return Result(
        dtype=dtype,
        engine=engine,
        requests=len(task.prompts),
        tokens=sum(map(len, done["outputs"])),
        seconds=done["seconds"],
        settings=done["settings"],
        outputs=done["outputs"],
        passes=[Pass(**each) for each in done.get("passes", [])],
    )


def run_ours(work: Work, engine: str, mode: str, dtype: str, requests: int | None) -> Result:
    command = [sys.executable, "-m", "benchmarks.peers.ours"]
    variables = {n: v for n, v in os.environ.items() if not n.startswith(("EB_", "OMP_"))}
    return work.do(engine, command, mode, dtype, requests, variables)


def run_peer(work: Work, peer: Peer, dtype: str) -> Result:
    command = [str(python_of(peer.environment)), "-P", str(HERE / "runner.py")]
    variables = variables_of(peer)
    return work.do(peer.name, command, peer.runner, dtype, peer.requests.get(dtype), variables)


def summary(results: Sequence[Result], limits: Limits, work: Work) -> dict[str, dict[str, float]]:
    """Per dtype what the table ends with; all of it ratios of this run."""
    found: dict[str, dict[str, float]] = {}
    for dtype in dict.fromkeys(r.dtype for r in results):
        of = {r.engine: r for r in results if r.dtype == dtype and not r.error}
        twice = [of[name] for name in (BEFORE, AFTER) if name in of]
        if not twice:
            continue
        ours = sum(r.tokens for r in twice) / sum(r.seconds for r in twice)
        lines: dict[str, float] = (
            {"ours, after / before": of[AFTER].tokens_per_s / of[BEFORE].tokens_per_s}
            if len(twice) == 2
            else {}
        )
        peers = [r for name, r in of.items() if not name.startswith("ours")]
        if peers:
            best = max(peers, key=lambda r: r.tokens_per_s)
            lines[f"ours / the best peer ({best.engine})"] = ours / best.tokens_per_s
        if NOBATCH in of:
            lines["ours / nobatch"] = ours / of[NOBATCH].tokens_per_s
        limit = twice[0].tokens / least_seconds(twice[0].passes, work.config, dtype, limits)
        lines["the machine's limit, tokens/s"] = limit
        lines["ours / the machine's limit"] = ours / limit
        found[dtype] = {name: round(value, 3) for name, value in lines.items()}
    return found


def table(
    model: str, results: Sequence[Result], limits: Limits, ends: Mapping[str, Mapping[str, float]]
) -> str:
    where = machine()
    ours = {r.dtype: r.outputs for r in results if r.engine == BEFORE}
    lines = [
        f"{model} on {where.cpu}, {where.cores} cores, which {describe(limits)}",
        "",
        "| dtype | engine | requests | tokens | output tokens/s | same tokens as ours | settings |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if r.error:
            lines.append(f"| {r.dtype} | {r.engine} | {r.requests} | - | - | - | {r.error} |")
            continue
        same = sum(a == b for a, b in zip(r.outputs, ours.get(r.dtype, []), strict=False))
        lines.append(
            f"| {r.dtype} | {r.engine} | {r.requests} | {r.tokens} | {r.tokens_per_s:.1f} "
            f"| {same} of {r.requests} | {r.settings} |"
        )
    lines += ["", "| dtype | figure | value |", "|---|---|---|"]
    lines += [
        f"| {dtype} | {name} | {value:.2f} |"
        for dtype, figures in ends.items()
        for name, value in figures.items()
    ]
    return "\n".join(lines)


def installed(peers: Sequence[Peer], wanted: bool) -> dict[str, str]:
    """Environments that cannot be used, with the reason; makes them where that is wanted."""
    reasons = {}
    for environment in dict.fromkeys(peer.environment for peer in peers):
        try:
            if wanted:
                install(environment)
            elif not python_of(environment).exists():
                reasons[environment] = "not installed (--install)"
        except (OSError, subprocess.CalledProcessError) as error:
            reasons[environment] = f"not installed: {error}"
    return reasons


def main(argv: Sequence[str] | None = None) -> None:
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="random:gpt2-medium", help="default: %(default)s")
    parser.add_argument(
        "--dtypes", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"]
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        default=names,
        choices=names,
        metavar="PEER",
        help=f"any of: {'; '.join(names)}",
    )
    parser.add_argument("--requests", type=int, default=64, help="default: %(default)s")
    parser.add_argument(
        "--install", action="store_true", help="make the environments under build/peers first"
    )
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and Markdown")
    args = parser.parse_args(argv)

    peers = [peer for peer in PEERS if peer.name in args.peers]
    missing = installed(peers, args.install)
    results: list[Result] = []
    limits = measure(args.dtypes)
    steps = len(args.dtypes) * 3 + sum(
        dtype in peer.dtypes for peer in peers for dtype in args.dtypes
    )
    with tempfile.TemporaryDirectory() as scratch, tqdm(total=steps, file=sys.stderr) as bar:
        work = Work(args.model, args.requests, Path(scratch))

        def add(result: Result) -> None:
            results.append(result)
            said = result.error or f"{result.tokens_per_s:.1f} tokens/s"
            bar.write(f"{result.dtype} {result.engine}: {said}", file=sys.stderr)
            bar.update()

        for dtype in args.dtypes:
            add(run_ours(work, BEFORE, "dynamic", dtype, None))
            add(run_ours(work, NOBATCH, "nobatch", dtype, NOBATCH_REQUESTS))
            for peer in peers:
                if dtype not in peer.dtypes:
                    continue
                if peer.environment in missing:
                    add(Result(dtype, peer.name, 0, error=missing[peer.environment]))
                else:
                    add(run_peer(work, peer, dtype))
            add(run_ours(work, AFTER, "dynamic", dtype, None))
        limits = limits.or_better(measure(args.dtypes))
        ends = summary(results, limits, work)
    report = {
        "model": args.model,
        "limits": asdict(limits),
        "results": [_for_report(result) for result in results],
        "summary": ends,
    }
    save(report, table(args.model, results, limits, ends), args.out, "peers")


def _for_report(result: Result) -> dict[str, Any]:
    kept = {n: v for n, v in asdict(result).items() if n not in ("outputs", "passes")}
    return kept | {"tokens_per_s": result.tokens_per_s, "iterations": len(result.passes)}


if __name__ == "__main__":
    main()
