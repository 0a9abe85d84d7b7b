"""A self-contained page from sentences, tables and charts. Independent of figures.

No scripts: a selector is a row of radio buttons, and a folded part is a ``details`` element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from client.report.html.chart import Chart, draw

WORDS = ("VALID", "SATURATED", "INVALID-CLIENT", "DISTURBED", "FAILED")


@dataclass(frozen=True, slots=True)
class Table:
    """``left`` columns are aligned to the left, the rest to the right. The rows ``ruled`` have a
    line above."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    caption: str = ""
    ruled: Sequence[int] = ()

    def as_text(self) -> str:
        """The same for a terminal."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        made = []
        for number, line in enumerate(lines):
            if number > 1 and number - 1 in self.ruled:
                made.append("")
            cells = [
                cell.ljust(width) if i < self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            made.append("  ".join(cells).rstrip())
        return "\n".join(made)


def groups(rows: Sequence[Sequence[str]]) -> list[int]:
    """The rows whose first cell is not that of the row before."""
    return [k for k, row in enumerate(rows) if not k or row[0] != rows[k - 1][0]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Text behind a click."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Selector:
    """The same pictures for several values of ``what``; ``shown`` is the one to begin with."""

    what: str
    options: Sequence[tuple[str, Sequence[Chart]]]
    shown: int = 0


@dataclass(frozen=True, slots=True)
class Lead:
    """The first screen: the result in words, a table, a picture, notes on how it was measured."""

    sentences: Sequence[str]
    table: Table | None
    pictures: Selector | None
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page; ``folded`` is opened by a click."""

    title: str
    lines: Sequence[str] = ()
    table: Table | None = None
    charts: Sequence[Chart] = ()
    selector: Selector | None = None
    folds: Sequence[Fold] = ()
    folded: bool = False


def write_page(
    path: Path, title: str, lead: Lead, warnings: Sequence[str], sections: Sequence[Section]
) -> None:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["svg"] = lambda chart: Markup(draw(chart))  # it escapes what it is given
    page = environment.get_template("page.html.j2").render(
        title=title, lead=lead, warnings=warnings, sections=sections, words=WORDS
    )
    path.write_text(page, encoding="utf-8")


def seconds(value: float | None) -> str:
    """A latency for people: three digits, ms below a second; an unsupported one says so."""
    if value is None:
        return "n too small"
    if value == float("inf"):
        return "unfinished"
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.3g} s"
