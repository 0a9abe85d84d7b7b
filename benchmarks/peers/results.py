"""What the engines did, and how ours compares with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from benchmarks.harness.turns import Ratio, ratio
from benchmarks.limits import Bounds, Pass
from client.experiment import Found

OURS, NOBATCH = "ours", "ours, nobatch"


@dataclass(frozen=True, slots=True)
class PeerResult:
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


METRICS: dict[str, Callable[[PeerResult], float]] = {
    "tokens_per_s": lambda result: result.tokens_per_s,
    "tokens": lambda result: result.tokens,
    "requests": lambda result: result.requests,
}
LeastSeconds = Callable[[Sequence[Pass], str, Bounds], float]  # of a dtype's iterations


def of_precision(found: Found, dtype: str) -> Found:
    """The engines in this precision that have a result in every round."""
    turns = {
        side.removeprefix(f"{dtype} "): rounds
        for side, rounds in found.turns.items()
        if side.startswith(f"{dtype} ") and not any(result.error for result in rounds)
    }
    sides = {name: found.experiment.sides[f"{dtype} {name}"] for name in turns}
    to = OURS if OURS in turns else next(iter(turns), OURS)
    return Found(replace(found.experiment, sides=sides, to=to, of={"dtype": dtype}), turns)


def summary(
    found: Sequence[Found], limits: Bounds, least_seconds: LeastSeconds
) -> Iterator[tuple[str, str, float | Ratio]]:
    """Precision, figure and value: of ours to the best peer in any precision, and to the limit of
    the machine."""
    peers = [
        (median(one.figures(name)), f"{name} in {one.experiment.of['dtype']}", one.figures(name))
        for one in found
        for name in one.turns
        if name not in (OURS, NOBATCH)
    ]
    for one in found:
        if OURS in one.turns:
            dtype, ours, figures = one.experiment.of["dtype"], one.turns[OURS][0], one.figures(OURS)
            if peers:
                _, name, theirs = max(peers)
                yield str(dtype), f"ours / the best peer ({name})", ratio(figures, theirs)
            limit = ours.tokens / least_seconds(ours.passes, str(dtype), limits)
            yield str(dtype), "the machine's limit, tokens/s", round(limit, 1)
            yield str(dtype), "ours / the machine's limit", round(median(figures) / limit, 3)


def settings(found: Sequence[Found]) -> Iterator[tuple[object, str, str, str]]:
    """Precision, engine, requests with the same tokens as ours, and how it ran."""
    for one in found:
        ours = one.turns[OURS][0].outputs if OURS in one.turns else []
        for name, (first, *_) in one.turns.items():
            same = sum(a == b for a, b in zip(first.outputs, ours, strict=False))
            told = f"{same} of {first.requests}"
            yield one.experiment.of["dtype"], name, told, first.settings
