"""Our engine and others at the same work: output tokens per second without HTTP, on a CPU.

    python -m benchmarks.peers --install        # makes the environments first, some gigabytes
    python -m benchmarks.peers                  # bf16 and fp32, one to two hours
    python -m benchmarks.peers --peers vLLM --dtypes bfloat16 --requests 4

The same weights, prompts and output lengths for all (see benchmarks/bare.py), greedy, no end
token, one process after the other, in turns over three rounds; ratios are taken within a round. A
peer that cannot be installed or run, or that gives a wrong number of tokens, is
reported with the reason. docs/peers.md explains the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bare import WORKS
from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.turns import Ratio, in_turns, ratio
from benchmarks.limits import Limits, Pass, describe, least_seconds, measure
from benchmarks.peers.checkpoint import prepare, prepare_int8
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
from models.gpt2 import GPTConfig
from models.weights.folder import read_config

LIMIT = 64
NOBATCH_REQUESTS = 8
SAMPLED = 0.8, 0.9  # temperature and top_p, as clients often send them
DTYPES = ("bfloat16", "float32", "int8")
TIMEOUT_S = 900
OURS, NOBATCH = "ours", "ours, nobatch"


@dataclass(frozen=True, slots=True)
class Result:
    """An engine in one round."""

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
    """The tasks, and the folder with them and their results during the run."""

    def __init__(
        self, model: str, kind: str, requests: int | None, sampled: bool, scratch: Path
    ) -> None:
        self.folder = prepare(model, BUILD / "models")
        config = read_config(self.folder)
        assert isinstance(config, GPTConfig), config
        self.config = config
        self.jobs = WORKS[kind](self.config.vocab_size)[:requests]
        self.temperature, self.top_p = SAMPLED if sampled else (0.0, 1.0)
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
        if (runner, dtype) == ("with_vllm", "int8"):
            prepare_int8(self.folder)
        task = Task(
            runner, str(self.folder), dtype, limit,
            [job.prompt for job in jobs], [job.output_tokens for job in jobs],
            self.temperature, self.top_p,
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
    """A result counts only if every request has exactly the requested number of tokens."""
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


def by_engine(results: Sequence[Result], dtype: str) -> dict[str, list[Result]]:
    """Each engine's rounds, in order."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if result.dtype == dtype:
            found.setdefault(result.engine, []).append(result)
    return found


def speed(rounds: Sequence[Result]) -> float:
    return sum(r.tokens for r in rounds) / sum(r.seconds for r in rounds)


def against(ours: Sequence[Result], rounds: Sequence[Result]) -> Ratio | None:
    """Ours over an engine's; None if one of the two has no figure in some round."""
    if not ours or len(ours) != len(rounds) or any(r.error for r in (*ours, *rounds)):
        return None
    return ratio([r.tokens_per_s for r in ours], [r.tokens_per_s for r in rounds])


def summary(results: Sequence[Result], limits: Limits, work: Work) -> dict[str, dict[str, Any]]:
    """The last lines of the table, by dtype; all of them ratios within this run."""
    found: dict[str, dict[str, Any]] = {}
    for dtype in dict.fromkeys(r.dtype for r in results):
        engines = by_engine(results, dtype)
        ours = engines.get(OURS, [])
        if not ours or any(r.error for r in ours):
            continue
        ratios = {
            name: compared
            for name, rounds in engines.items()
            if name != OURS and (compared := against(ours, rounds))
        }
        lines: dict[str, Any] = {}
        peers = [name for name in ratios if name != NOBATCH]
        if peers:
            best = max(peers, key=lambda name: speed(engines[name]))
            lines[f"ours / the best peer ({best})"] = ratios[best]
        if NOBATCH in ratios:
            lines["ours / nobatch"] = ratios[NOBATCH]
        limit = ours[0].tokens / least_seconds(ours[0].passes, work.config, dtype, limits)
        lines["the machine's limit, tokens/s"] = round(limit, 1)
        lines["ours / the machine's limit"] = round(speed(ours) / limit, 3)
        found[dtype] = lines
    return found


def card(
    title: str, results: Sequence[Result], limits: Limits, ends: Mapping[str, Mapping[str, Any]]
) -> str:
    rows: list[Sequence[object]] = []
    for dtype in dict.fromkeys(r.dtype for r in results):
        engines = by_engine(results, dtype)
        ours = engines.get(OURS, [])
        for name, rounds in engines.items():
            r = next((r for r in rounds if r.error), rounds[0])
            if r.error:
                rows.append((dtype, name, "-", r.requests, "-", "-", "-", "-", r.error))
                continue
            outputs = ours[0].outputs if ours else []
            same = sum(a == b for a, b in zip(r.outputs, outputs, strict=False))
            compared = None if name == OURS else against(ours, rounds)
            rows.append(
                (dtype, name, len(rounds), r.requests, r.tokens, f"{speed(rounds):.1f}",
                 compared or "", f"{same} of {r.requests}", r.settings)
            )  # fmt: skip
    columns = (
        "dtype | engine | rounds | requests | tokens | output tokens/s | ours / this (95 %) "
        "| same tokens as ours | settings"
    )
    figures = [
        (dtype, name, value if isinstance(value, Ratio) else format(value, ".2f"))
        for dtype, lines in ends.items()
        for name, value in lines.items()
    ]
    return (
        f"{title}, on {machine()}, which {describe(limits)}\n\n{table(columns, rows)}\n\n"
        f"{table('dtype | figure | value', figures)}"
    )


def installed(peers: Sequence[Peer], wanted: bool) -> dict[str, str]:
    """Environments that cannot be used, with the reason; installs them if requested."""
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
    parser = options(
        __doc__, model="random:gpt2-medium", dtypes=["bfloat16", "float32"], known_dtypes=DTYPES
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        default=names,
        choices=names,
        metavar="PEER",
        help=f"any of: {'; '.join(names)}",
    )
    parser.add_argument(
        "--work",
        default="decode",
        choices=WORKS,
        help="decode: short prompts; prefill: 512 + 16 tokens; mixed: lengths of conversations; "
        "single: one request alone",
    )
    parser.add_argument(
        "--sampled", action="store_true", help="temperature 0.8 and top_p 0.9 instead of greedy"
    )
    parser.add_argument("--requests", type=int, help="only so many of the requests; default: all")
    parser.add_argument(
        "--install", action="store_true", help="make the environments under build/peers first"
    )
    args = parser.parse_args(argv)

    different = [args.work] * (args.work != parser.get_default("work")) + ["sampled"] * args.sampled
    different += args.dtypes if args.dtypes != parser.get_default("dtypes") else []
    peers = [peer for peer in PEERS if peer.name in args.peers]
    missing = installed(peers, args.install)
    results: list[Result] = []
    limits = measure(args.dtypes)
    with tempfile.TemporaryDirectory() as scratch:
        work = Work(args.model, args.work, args.requests, args.sampled, Path(scratch))
        for dtype in args.dtypes:
            sides = {
                OURS: once(partial(run_ours, work, OURS, "dynamic", dtype, None)),
                NOBATCH: once(partial(run_ours, work, NOBATCH, "nobatch", dtype, NOBATCH_REQUESTS)),
            }
            for peer in peers:
                if dtype not in peer.dtypes:
                    continue
                if (reason := missing.get(peer.environment)) is not None:
                    sides[peer.name] = partial(Result, dtype, peer.name, 0, error=reason)
                else:
                    sides[peer.name] = once(partial(run_peer, work, peer, dtype))
            for rounds in in_turns(sides, args.rounds, dtype).values():
                results += rounds
        limits = limits.or_better(measure(args.dtypes))
        ends = summary(results, limits, work)
    report = {
        "model": args.model,
        "work": args.work,
        "sampled": args.sampled,
        "limits": asdict(limits),
        "results": [_for_report(result) for result in results],
        "summary": {
            dtype: {
                name: asdict(value) if isinstance(value, Ratio) else value
                for name, value in figures.items()
            }
            for dtype, figures in ends.items()
        },
    }
    save(
        report,
        card(f"{args.model}, {args.work}{', sampled' * args.sampled}", results, limits, ends),
        args.out,
        "-".join(["peers", *different]),
    )


def once(measure: Callable[[], Result]) -> Callable[[], Result]:
    """A peer that cannot run is not tried again in the next round."""
    failed: list[Result] = []

    def turn() -> Result:
        result = failed[0] if failed else measure()
        if result.error and not failed:
            failed.append(result)
            print(f"{result.dtype} {result.engine}: {result.error}", file=sys.stderr)
        return result

    return turn


def _for_report(result: Result) -> dict[str, Any]:
    kept = {n: v for n, v in asdict(result).items() if n not in ("outputs", "passes")}
    return kept | {"tokens_per_s": result.tokens_per_s, "iterations": len(result.passes)}


if __name__ == "__main__":
    main()
