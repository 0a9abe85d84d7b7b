"""What the engines did, and how ours compares with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.report import machine, table
from benchmarks.harness.turns import Ratio, ratio
from benchmarks.limits import Limits, Pass, describe

OURS, NOBATCH = "ours", "ours, nobatch"


@dataclass(frozen=True, slots=True)
class Result:
    """An engine in one round."""

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


Rounds = Mapping[tuple[str, str], Sequence[Result]]  # by dtype and engine
LeastSeconds = Callable[[Sequence[Pass], str, Limits], float]  # of a dtype's iterations


def speed(rounds: Sequence[Result]) -> float:
    return sum(r.tokens for r in rounds) / sum(r.seconds for r in rounds)


def against(ours: Sequence[Result], rounds: Sequence[Result]) -> Ratio:
    return ratio([r.tokens_per_s for r in ours], [r.tokens_per_s for r in rounds])


def summary(
    results: Rounds, limits: Limits, least_seconds: LeastSeconds
) -> dict[str, dict[str, Any]]:
    """The last lines of the table, by dtype; all of them ratios within this run."""
    sound = {side: rounds for side, rounds in results.items() if not any(r.error for r in rounds)}
    peers = {side: rounds for side, rounds in sound.items() if side[1] not in (OURS, NOBATCH)}

    def fastest(dtypes: Sequence[str]) -> tuple[str, str] | None:
        of = {side: speed(rounds) for side, rounds in peers.items() if side[0] in dtypes}
        return max(of, key=of.__getitem__, default=None)

    best_of_all = fastest([dtype for dtype, _ in peers])
    found: dict[str, dict[str, Any]] = {}
    for (dtype, engine), ours in sound.items():
        if engine != OURS:
            continue
        lines: dict[str, Any] = {}
        if (best := fastest([dtype])) is not None:
            lines[f"ours / the best peer ({best[1]})"] = against(ours, peers[best])
        if best_of_all is not None and best_of_all[0] != dtype:
            name = f"{best_of_all[1]} in {best_of_all[0]}"
            compared = against(ours, peers[best_of_all])
            lines[f"ours / the best peer in any precision ({name})"] = compared
        if (dtype, NOBATCH) in sound:
            lines["ours / nobatch"] = against(ours, sound[dtype, NOBATCH])
        limit = ours[0].tokens / least_seconds(ours[0].passes, dtype, limits)
        lines["the machine's limit, tokens/s"] = round(limit, 1)
        lines["ours / the machine's limit"] = round(speed(ours) / limit, 3)
        found[dtype] = lines
    return found


def card(title: str, results: Rounds, limits: Limits, ends: Mapping[str, Mapping[str, Any]]) -> str:
    rows: list[Sequence[object]] = []
    for (dtype, name), rounds in results.items():
        r = next((r for r in rounds if r.error), rounds[0])
        if r.error:
            rows.append((dtype, name, "-", r.requests, "-", "-", "-", "-", r.error))
            continue
        ours = [r for r in results.get((dtype, OURS), ()) if not r.error]
        same = sum(a == b for a, b in zip(r.outputs, ours[0].outputs if ours else [], strict=False))
        compared = against(ours, rounds) if name != OURS and len(ours) == len(rounds) else ""
        rows.append(
            (dtype, name, len(rounds), r.requests, r.tokens, f"{speed(rounds):.1f}", compared,
             f"{same} of {r.requests}", r.settings)
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


def for_report(dtype: str, engine: str, result: Result) -> dict[str, Any]:
    kept = {n: v for n, v in asdict(result).items() if n not in ("outputs", "passes")}
    iterations = len(result.passes)
    return {"dtype": dtype, "engine": engine, **kept, "tokens_per_s": result.tokens_per_s,
            "iterations": iterations}  # fmt: skip
