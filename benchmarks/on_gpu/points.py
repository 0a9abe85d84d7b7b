"""What the parts of the GPU benchmark find: plain data, one line of JSON for each point, so that a
part that crashes or hangs loses nothing that it had measured. Needs no torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Facts:
    """About the machine, or the work."""

    of: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison of two ways to compute the same."""

    name: str
    found: str  # "agrees", or how they differ
    seconds: float

    @property
    def passed(self) -> bool:
        return self.found == "agrees"


@dataclass(frozen=True, slots=True)
class Bandwidth:
    gb_s: float  # read and written by a copy on the device


@dataclass(frozen=True, slots=True)
class StepTime:
    """Repeats of a decode step: from the host's call to the tokens, and between events on the
    device."""

    rows: int
    context: int  # tokens that each row has computed
    sampling: str
    graphs: bool
    wall_s: Sequence[float]
    event_s: float | None
    needed_bytes: int  # weights once, keys and values of all rows
    bandwidth_share: float | None  # needed bytes / seconds / what the device can read
    launches: int | None
    synchronisations: int | None  # beside the one read-back
    peak_bytes: int | None

    @property
    def seconds(self) -> float:
        return statistics.median(self.wall_s)


@dataclass(frozen=True, slots=True)
class Prefill:
    tokens: int  # of each prompt
    prompts: int
    wall_s: Sequence[float]
    event_s: float | None
    peak_bytes: int | None

    @property
    def tokens_per_s(self) -> float:
        return self.tokens * self.prompts / statistics.median(self.wall_s)


@dataclass(frozen=True, slots=True)
class Played:
    """A mode's repeats of the same work."""

    lengths: str  # mixed or equal
    mode: str
    limit: int
    graphs: bool
    lookahead: int
    requests: int
    tokens: int
    seconds: Sequence[float]
    same_tokens: float | None  # share of requests whose tokens are those of static batching

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        return max(self.seconds) / min(self.seconds)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """It failed, or there was no time for it."""

    what: str
    why: str


Point = Facts | Check | Bandwidth | StepTime | Prefill | Played | LeftOut
KINDS: dict[str, type[Point]] = {
    kind.__name__: kind for kind in (Facts, Check, Bandwidth, StepTime, Prefill, Played, LeftOut)
}


@dataclass(slots=True)
class Report:
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0

    def facts(self, of: str) -> dict[str, str]:
        found = (point.facts for point in self.points if isinstance(point, Facts) if point.of == of)
        return next(found, {})

    @property
    def bandwidth_gb_s(self) -> float | None:
        return next((p.gb_s for p in self.points if isinstance(p, Bandwidth)), None)

    def failed(self, name: str) -> bool:
        """Whether a check of this name failed or never ended."""
        found = [p for p in self.points if isinstance(p, Check) and p.name == name]
        return not (found and all(check.passed for check in found))

    def as_json(self) -> str:
        points = [{"kind": type(point).__name__, **asdict(point)} for point in self.points]
        return json.dumps({"seconds": round(self.seconds, 1), "points": points}, indent=1) + "\n"


def append(path: Path, point: Point) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"kind": type(point).__name__, **asdict(point)}) + "\n")


def read(path: Path) -> Iterator[Point]:
    """The points in the file; a last line that was cut off is left out."""
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            yield KINDS[fields.pop("kind")](**fields)
