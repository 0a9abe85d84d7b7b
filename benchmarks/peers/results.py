"""What the engines did, and how ours compares with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from benchmarks.harness.report import machine, table
from benchmarks.harness.turns import Ratio, ratio
from benchmarks.limits import Limits, Pass, describe

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


class Bound(Protocol):
    """Knows the least time that the machine needs for iterations."""

    def least_seconds(self, passes: Sequence[Pass], dtype: str, limits: Limits) -> float: ...


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


def best_peer(results: Sequence[Result]) -> list[Result] | None:
    """The rounds of the fastest peer in any precision."""
    sides = [
        rounds
        for dtype in dict.fromkeys(r.dtype for r in results)
        for name, rounds in by_engine(results, dtype).items()
        if name not in (OURS, NOBATCH) and not any(r.error for r in rounds)
    ]
    return max(sides, key=speed, default=None)


def summary(results: Sequence[Result], limits: Limits, bound: Bound) -> dict[str, dict[str, Any]]:
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
        if (best_of_all := best_peer(results)) is not None and best_of_all[0].dtype != dtype:
            name = f"{best_of_all[0].engine} in {best_of_all[0].dtype}"
            if (compared := against(ours, best_of_all)) is not None:
                lines[f"ours / the best peer in any precision ({name})"] = compared
        if NOBATCH in ratios:
            lines["ours / nobatch"] = ratios[NOBATCH]
        limit = ours[0].tokens / bound.least_seconds(ours[0].passes, dtype, limits)
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


def for_report(result: Result) -> dict[str, Any]:
    kept = {n: v for n, v in asdict(result).items() if n not in ("outputs", "passes")}
    return kept | {"tokens_per_s": result.tokens_per_s, "iterations": len(result.passes)}
