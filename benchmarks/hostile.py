"""What hostile constraints do to others: inter-token latency of 32 streams beside 50 of them.

    python -m benchmarks.hostile                      # smollm2
    python -m benchmarks.hostile --model embedded --rounds 1

The constraints come at once while the streams decode: deep nesting, exponential alternations, huge
enums, recursive references, catastrophic patterns. Each is refused, or served within its limits.
In the other runs, in turn, as many ordinary requests come as hostile ones are served.
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
from benchmarks.harness.report import options, save, table
from benchmarks.harness.turns import Ratio, in_turns, ratio
from engine.inference import Inference
from generate.modes import MODES, make_ledger
from model import DTYPES, LoadOptions, load_model
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import GrammarError, Grammars, GrammarsBusyError
from scheduling.policies.orca import Orca
from text.vocabulary import load_tokenizer

STREAMS, HOSTILE = 32, 50
TOKENS = 100
AFTER = 4  # iterations in which the streams are alone


def hostile(number: int) -> Constraint:
    """The `number`-th of an endless series; no two are alike."""
    n = number // len(_KINDS)
    return _KINDS[number % len(_KINDS)](n)


def _nested(n: int) -> Constraint:
    schema: dict[str, object] = {"const": n}
    for _ in range(90):
        schema = {"type": "array", "items": schema}
    return of_schema(schema)


def _alternations(n: int) -> Constraint:
    either = [
        {"anyOf": [{"properties": {f"p{i}": {"const": j + n}}} for j in range(6)]}
        for i in range(12)
    ]
    return of_schema({"allOf": either})


def _enum(n: int) -> Constraint:
    return of_schema({"enum": [f"value {i} of {n + i * 7919 % 10_007}" for i in range(8000)]})


def _references(n: int) -> Constraint:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(7000 + n)}
    return of_schema({"$ref": "#/$defs/a0", "$defs": chain})


def _recursion(n: int) -> Constraint:
    either = [{"$ref": "#/$defs/a"}, {"const": n}]
    return of_schema({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": either}}})


def _multiples(n: int) -> Constraint:
    return of_schema({"type": "integer", "multipleOf": 999_983 + 2 * n})


def _pattern(n: int) -> Constraint:
    return Constraint("regex", f".*(a.{{{50 + n}}}|b.{{60}}|c.{{70}}|d.{{80}}).*x")


def _repetition(n: int) -> Constraint:
    return Constraint("regex", f"(\\p{{L}}{{1,50}}\\p{{N}}{{1,{50 + n}}}){{1,50}}")


def _ambiguity(n: int) -> Constraint:
    return Constraint("lark", f'start: s\ns: s s s | s s | /[a-z]+/ | /[a-y]+/ | /.+/ | "{n}"\n')


def _rules(n: int) -> Constraint:
    chain = "\n".join(f"r{i}: r{i + 1}" for i in range(7000 + n))
    return Constraint("lark", f'start: r0\n{chain}\nr{7000 + n}: "a"')


_KINDS = (
    _nested, _alternations, _enum, _references, _recursion, _multiples, _pattern, _repetition,
    _ambiguity, _rules,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    beside: str
    p50_ms: list[float]  # between two tokens of a stream, by round
    p99_ms: list[float]
    served: int  # of those beside the streams, in the last round
    failed: int


def compiled(
    grammars: Grammars, threads: ThreadPoolExecutor, constraints: Sequence[Constraint]
) -> list[Future[Constraint | None]]:
    def attempt(constraint: Constraint) -> Constraint | None:
        try:
            grammars.compile(constraint)
        except (GrammarError, GrammarsBusyError):
            return None
        return constraint

    return [threads.submit(attempt, constraint) for constraint in constraints]


def run(model: Executor, grammars: Grammars | None, prompt: Sequence[int], others: int) -> Result:
    """With `grammars`, hostile constraints; otherwise `others` ordinary requests."""
    manager = BatchingManager(Orca(), tally := Tally(), max_batch_size=96, max_waiting=96)
    manager.serve(model, make_ledger("dynamic", model))
    model.grammars = grammars
    gaps: list[float] = []
    last_s = [0.0] * STREAMS
    streams = [Inference(prompt, TOKENS, Sampling(seed=i), 0.0) for i in range(STREAMS)]
    beside: list[Inference] = []

    def add(constraint: Constraint | None) -> None:
        sampling = Sampling(seed=len(beside), constraint=constraint)
        beside.append(Inference(prompt, TOKENS, sampling, time.perf_counter()))
        manager.enqueue(beside[-1])

    constraints = list(map(hostile, range(HOSTILE)))
    for stream in streams:
        manager.enqueue(stream)
    with ThreadPoolExecutor(HOSTILE) as threads:
        waiting: list[Future[Constraint | None]] = []
        while not all(stream.ended for stream in streams):
            if len(tally.iterations) == AFTER and not (waiting or beside):
                if grammars is not None:
                    waiting = compiled(grammars, threads, constraints)
                for _ in range(others if grammars is None else 0):
                    add(None)
            for future in [future for future in waiting if future.done()]:
                waiting.remove(future)
                if (constraint := future.result()) is not None:
                    add(constraint)
            manager.step(MODES["dynamic"].lay_out, time.perf_counter)
            gaps += list(_gaps(streams, last_s))
        for future in waiting:
            future.cancel()
    manager.abort("the streams have ended")
    while not manager.drained:
        manager.step(MODES["dynamic"].lay_out, time.perf_counter)
    failed = sum(i.cause == "constraint" for i in beside)
    p50, p99 = (1000 * float(np.percentile(gaps, p)) for p in (50, 99))
    name = "ordinary" if grammars is None else "hostile"
    return Result(name, [p50], [p99], len(beside) - failed, failed)


def _gaps(streams: Sequence[Inference], last_s: list[float]) -> Iterator[float]:
    for i, stream in enumerate(streams):
        now_s = stream.last_token_s
        if now_s is not None and now_s != last_s[i]:
            if last_s[i]:
                yield now_s - last_s[i]
            last_s[i] = now_s


def measure(name: str, dtype: str, rounds: int) -> tuple[list[Result], Ratio]:
    model = load_model(LoadOptions("dynamic", name, "cpu", dtype, 0, 96))
    model.warm_up()
    tokenizer = load_tokenizer(name)
    prompt = tokenizer.encode("def main():\n    return")

    def with_hostile() -> Result:
        # compiled again in every round
        return run(model, Grammars(lambda: tokenizer), prompt, 0)

    served = with_hostile().served
    sides: dict[str, Callable[[], Result]] = {
        "ordinary": partial(run, model, None, prompt, served),
        "hostile": with_hostile,
    }
    found = in_turns(sides, rounds)
    results = [
        Result(
            name,
            [one.p50_ms[0] for one in ran],
            [one.p99_ms[0] for one in ran],
            ran[-1].served,
            ran[-1].failed,
        )
        for name, ran in found.items()
    ]
    return results, ratio(results[1].p99_ms, results[0].p99_ms)


def card(results: Sequence[Result], p99: Ratio) -> str:
    rows = [
        (
            r.beside, r.served, r.failed, f"{float(np.median(r.p50_ms)):.1f}",
            f"{float(np.median(r.p99_ms)):.1f}",
        )
        for r in results
    ]  # fmt: skip
    columns = "beside | served: | failed: | p50 ITL, ms: | p99 ITL, ms:"
    told = f"{STREAMS} streams beside {HOSTILE} hostile constraints, or as many requests as served"
    return f"{told}\n\n{table(columns, rows)}\n\np99 ITL, hostile to ordinary: {p99:.2f}"


def main() -> None:
    known = ["auto", *DTYPES]
    parser = options(__doc__, model="smollm2", dtype="auto", known_dtypes=known)
    args = parser.parse_args()
    results, p99 = measure(args.model, args.dtype, args.rounds)
    figures = {"results": [asdict(r) for r in results], "p99": asdict(p99)}
    save(figures, card(results, p99), args.out, "hostile")


if __name__ == "__main__":
    main()
