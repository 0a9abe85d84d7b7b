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
from dataclasses import dataclass
from functools import partial

import numpy as np

from batching import BatchingManager
from benchmarks.bare import Tally, loaded
from benchmarks.harness.report import options, report
from benchmarks.hostile.constraints import costly, hostile
from client.experiment import Experiment, Found
from engine.inference import Inference
from generate.modes import MODES, make_ledger
from model import DTYPES
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
    gaps_s: Sequence[float]  # between two tokens of a stream
    served: int  # of those beside the streams
    failed: int  # by their constraint, after they were accepted


METRICS: dict[str, Callable[[Result], float]] = {
    "p99_ITL_ms": lambda result: 1000 * float(np.percentile(result.gaps_s, 99)),
    "p50_ITL_ms": lambda result: 1000 * float(np.percentile(result.gaps_s, 50)),
    "served": lambda result: result.served,
    "failed": lambda result: result.failed,
}


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
    model: Executor, prompt: Sequence[int], tokens: int, grammars: Grammars, others: Others
) -> Result:
    manager = BatchingManager(Orca(), tally := Tally(), max_batch_size=96, max_waiting=96)
    manager.serve(model, make_ledger("dynamic", model))
    model.grammars = grammars
    gaps_s: list[float] = []
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
            gaps_s += _gaps_s(streams, last_s)
        for future in waiting or ():
            future.cancel()
    manager.abort("the streams have ended")
    while not manager.drained:
        manager.step(MODES["dynamic"].lay_out, time.perf_counter)
    failed = sum(i.cause == "constraint" for i in beside)
    return Result(gaps_s, len(beside) - failed, failed)


def _gaps_s(streams: Sequence[Inference], last_s: list[float]) -> Iterator[float]:
    for i, stream in enumerate(streams):
        now_s = stream.last_token_s
        if now_s is not None and now_s != last_s[i]:
            if last_s[i]:
                yield now_s - last_s[i]
            last_s[i] = now_s


def measure(name: str, dtype: str, rounds: int, tokens: int = TOKENS) -> list[Found]:
    """Of each kind: beside hostile requests, and beside as many ordinary ones as are served."""
    model, tokenizer = loaded(name, dtype, 96), load_tokenizer(name)
    play = partial(run, model, tokenizer.encode("def main():\n    return"), tokens)

    def hard_to_compile(_: int) -> Result:
        grammars = Grammars(lambda: tokenizer)  # compiled again in every round
        grammars.compile(ORDINARY)  # as in a server that has served some
        return play(grammars, list(map(hostile, range(HOSTILE))))

    def costly_masks(_: int) -> Result:
        grammars, others = Grammars(lambda: tokenizer), list(map(costly, range(COSTLY)))
        for constraint in others:
            grammars.compile(constraint)
        return play(grammars, others)

    def found(what: str, side: Callable[[int], Result]) -> Found:
        served = side(0).served
        sides = {
            "hostile": side,
            "ordinary": lambda _: play(Grammars(lambda: tokenizer), [None] * served),
        }
        return Experiment(sides, METRICS, "ordinary", of={"constraints": what}).run(rounds)

    return [found("hard to compile", hard_to_compile), found("costly masks", costly_masks)]


def main(argv: Sequence[str] | None = None) -> None:
    known = ["auto", *DTYPES]
    args = options(__doc__, model="smollm2", dtype="auto", known_dtypes=known).parse_args(argv)
    title = (
        f"{args.model}: {STREAMS} streams beside {HOSTILE} constraints that are hard to compile, "
        f"{COSTLY} whose masks take long, or as many requests as are served of these"
    )
    report(measure(args.model, args.dtype, args.rounds), title, args.out, "hostile")


if __name__ == "__main__":
    main()
