"""What a search for capacity has found: the rates that it tried, and the capacity in between."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from client.analysis.comparison.results import Calibration
from client.analysis.gates import VALID
from client.analysis.metrics import Objectives
from client.analysis.search import SeedBracket, over_seeds
from client.load.machine import commit, machine, versions
from client.load.servers.processes import System
from client.load.servers.stats import described
from client.report.tables import Table
from client.report.words import contained, objectives_text
from client.workloads.recipe import Recipe, used


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried. ``good`` is the share of requests that met the objectives;

    ``good_sent`` the same with latencies from the send. They differ if the client was late.
    """

    seed: int
    rate: float
    good: float
    good_sent: float
    passed: bool
    verdict: str
    plays: int


@dataclass(slots=True)
class Findings:
    """What a search has found so far. ``reason`` says why it ended early, if it did."""

    system: System
    recipe: Recipe
    objectives: Objectives | None
    share: float
    precision: float
    alone: Calibration | None = None
    server: dict[str, Any] | None = None
    probes: list[Probe] = field(default_factory=list)
    brackets: list[SeedBracket] = field(default_factory=list)
    verdict: str = VALID
    reason: str | None = None

    def as_text(self) -> str:
        """The report for people: what was tried, the brackets, and the capacity where it is."""
        lines = [f"server: {described(self.server) or 'unknown, since no /stats were read'}"]
        if self.objectives is not None:
            wanted = objectives_text(self.objectives)
            lines.append(f"objectives, to be met by {self.share:.0%}: {wanted}")
        if self.probes:
            head = ("seed", "requests/s", "good", "from the send", "", "verdict", "plays")
            rows = [
                (str(p.seed), f"{p.rate:.4g}", f"{p.good:.1%}", f"{p.good_sent:.1%}",
                 "passed" if p.passed else "failed", p.verdict, str(p.plays))
                for p in self.probes
            ]  # fmt: skip
            lines += ["", Table(head, rows, left=0).as_text(), ""]
        lines += [
            f"seed {b.seed}: passed {b.passed:.4g}, failed {b.failed:.4g} requests/s"
            + (", undecided since the client was late" if self._wide(b) else "")
            for b in self.brackets
        ]
        name = self.system.name
        if self.brackets:
            found = over_seeds(self.brackets)
            interval = "too few seeds for an interval"
            if found.low is not None and found.high is not None:
                interval = f"[{found.low:.4g}, {found.high:.4g}], 95 % over seeds"
            lines.append(f"capacity of {name}: {found.value:.4g} requests/s ({interval})")
            lines.append(contained(self.recipe.arrivals))
        else:
            lines.append(f"capacity of {name}: not found")
        if self.reason is not None:
            lines.append(f"{self.verdict}, ended early: {self.reason}")
        return "\n".join(lines)

    def _wide(self, b: SeedBracket) -> bool:
        return b.failed / b.passed > (1 + self.precision) * (1 + 1e-9)

    def figures(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "capacity": asdict(over_seeds(self.brackets)) if self.brackets else None,
            "verdict": self.verdict,
            "reason": self.reason,
            "brackets": [asdict(b) for b in self.brackets],
            "probes": [asdict(x) for x in self.probes],
            "objectives": None if self.objectives is None else asdict(self.objectives),
            "share": self.share,
            "alone": None if self.alone is None else asdict(self.alone),
            "recipe": used(self.recipe),
            "server": self.server,
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
        }
