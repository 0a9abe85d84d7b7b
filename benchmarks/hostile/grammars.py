"""What hostile constraints do to others: inter-token latency of 32 streams beside them.

    python -m benchmarks.hostile.grammars               # smollm2
    python -m benchmarks.hostile.grammars --model embedded --rounds 1

`hard to compile`: 50 constraints come at once while the streams decode: deep nesting, huge enums,
exponential alternations, recursive references, catastrophic patterns. Each is refused, or served
within its limits. `costly masks`: 20 requests join the batch whose constraints have been compiled,
and whose masks take long. In the other runs, in turn, as many ordinary requests come as hostile
ones are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from batching import BatchingManager
from benchmarks.bare import Tally
from benchmarks.constraints import costly, hostile
from benchmarks.harness.report import options, save, table
from benchmarks.harness.turns import Ratio, in_turns, ratio
from engine.inference import Inference
from generate.modes import MODES, make_ledger
from model import DTYPES, LoadOptions, load_model
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.grammars import GrammarError, Grammars, GrammarsBusyError
from scheduling.policies.orca import Orca
from text.vocabulary import load_tokenizer

STREAMS, HOSTILE, COSTLY = 32, 50, 20
TOKENS = 400  # of a stream: of so many iterations, four may be longer than the 99th percentile
BESIDE_TOKENS = 100
AFTER = 4  # iterations in which the streams are alone
ORDINARY = Constraint("regex", "yes|no")

Others = Sequence[Constraint | None]  # of the requests beside the streams; None: without


@dataclass(frozen=True, slots=True)
class Result:
    beside: str
    p50_ms: list[float]  # between two tokens of a stream, by round
    p99_ms: list[float]
    served: int  # of those beside the streams, in the last round
    failed: int  # by their constraint, after they were accepted


def accepted(
    grammars: Grammars, threads: ThreadPoolExecutor, constraints: Others
) -> list[Future[Constraint | None]]:
    """Raises for those that are refused."""

    def accept(constraint: Constraint | None) -> Constraint | None:
        if constraint is not None:
            grammars.compile(constraint)
        return constraint

    return [threads.submit(accept, constraint) for constraint in constraints]


def run(
    model: Executor,
    grammars: Grammars,
    prompt: Sequence[int],
    others: Others,
    tokens: int,
    name: str,
) -> Result:
    manager = BatchingManager(Orca(), tally := Tally(), max_batch_size=96, max_waiting=96)
    manager.serve(model, make_ledger("dynamic", model))
    model.grammars = grammars
    gaps: list[float] = []
    last_s = [0.0] * STREAMS
    streams = [Inference(prompt, tokens, Sampling(seed=i), 0.0) for i in range(STREAMS)]
    beside: list[Inference] = []
    for stream in streams:
        manager.enqueue(stream)
    with ThreadPoolExecutor(HOSTILE) as threads:
        waiting: list[Future[Constraint | None]] | None = None
        while not all(stream.ended for stream in streams):
            if len(tally.iterations) == AFTER and waiting is None:
                waiting = accepted(grammars, threads, others)
            for future in [future for future in waiting or () if future.done()]:
                assert waiting is not None
                waiting.remove(future)
                if not isinstance(future.exception(), (GrammarError, GrammarsBusyError)):
                    sampling = Sampling(seed=len(beside), constraint=future.result())
                    now_s = time.perf_counter()
                    beside.append(Inference(prompt, BESIDE_TOKENS, sampling, now_s))
                    manager.enqueue(beside[-1])
            manager.step(MODES["dynamic"].lay_out, time.perf_counter)
            gaps += list(_gaps(streams, last_s))
        for future in waiting or ():
            future.cancel()
    manager.abort("the streams have ended")
    while not manager.drained:
        manager.step(MODES["dynamic"].lay_out, time.perf_counter)
    failed = sum(i.cause == "constraint" for i in beside)
    p50, p99 = (1000 * float(np.percentile(gaps, p)) for p in (50, 99))
    return Result(name, [p50], [p99], len(beside) - failed, failed)


def _gaps(streams: Sequence[Inference], last_s: list[float]) -> Iterator[float]:
    for i, stream in enumerate(streams):
        now_s = stream.last_token_s
        if now_s is not None and now_s != last_s[i]:
            if last_s[i]:
                yield now_s - last_s[i]
            last_s[i] = now_s


def measure(
    name: str, dtype: str, rounds: int, tokens: int = TOKENS
) -> list[tuple[Result, Result, Ratio]]:
    """Of each kind: beside hostile requests, beside as many ordinary ones, and p99 to p99."""
    model = load_model(LoadOptions("dynamic", name, "cpu", dtype, 0, 96))
    model.warm_up()
    tokenizer = load_tokenizer(name)
    prompt = tokenizer.encode("def main():\n    return")

    def hard_to_compile() -> Result:
        grammars = Grammars(lambda: tokenizer)  # compiled again in every round
        grammars.compile(ORDINARY)  # as in a server that has served some
        others = list(map(hostile, range(HOSTILE)))
        return run(model, grammars, prompt, others, tokens, "hard to compile")

    def costly_masks() -> Result:
        grammars, others = Grammars(lambda: tokenizer), list(map(costly, range(COSTLY)))
        for constraint in others:
            grammars.compile(constraint)
        return run(model, grammars, prompt, others, tokens, "costly masks")

    return [
        compared(
            kind, partial(run, model, Grammars(lambda: tokenizer), prompt, tokens=tokens), rounds
        )
        for kind in (hard_to_compile, costly_masks)
    ]


def compared(
    kind: Callable[[], Result], beside: Callable[..., Result], rounds: int
) -> tuple[Result, Result, Ratio]:
    served = kind().served
    ordinary = partial(beside, others=[None] * served, name="ordinary requests")
    sides: dict[str, Callable[[], Result]] = {"hostile": kind, "ordinary": ordinary}
    found = in_turns(sides, rounds)
    hostile, ordinary_ = (
        Result(
            ran[-1].beside,
            [one.p50_ms[0] for one in ran],
            [one.p99_ms[0] for one in ran],
            ran[-1].served,
            ran[-1].failed,
        )
        for ran in found.values()
    )
    return hostile, ordinary_, ratio(hostile.p99_ms, ordinary_.p99_ms)


def card(results: Sequence[tuple[Result, Result, Ratio]]) -> str:
    rows = [
        (
            r.beside, r.served, r.failed, f"{float(np.median(r.p50_ms)):.1f}",
            f"{float(np.median(r.p99_ms)):.1f}", f"{to_ordinary:.2f}" if r is hostile else "",
        )
        for hostile, ordinary, to_ordinary in results
        for r in (hostile, ordinary)
    ]  # fmt: skip
    columns = "beside | served: | failed: | p50 ITL, ms: | p99 ITL, ms: | p99 to ordinary:"
    told = (
        f"{STREAMS} streams beside {HOSTILE} constraints that are hard to compile, {COSTLY} whose "
        "masks take long, or as many requests as are served of these"
    )
    return f"{told}\n\n{table(columns, rows)}"


def main() -> None:
    known = ["auto", *DTYPES]
    parser = options(__doc__, model="smollm2", dtype="auto", known_dtypes=known)
    args = parser.parse_args()
    results = measure(args.model, args.dtype, args.rounds)
    figures = [
        {"hostile": asdict(hostile), "ordinary": asdict(ordinary), "p99": asdict(p99)}
        for hostile, ordinary, p99 in results
    ]
    save({"results": figures}, card(results), args.out, "hostile")


if __name__ == "__main__":
    main()
