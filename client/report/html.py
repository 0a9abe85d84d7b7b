"""A self-contained page from sections of text, tables and pictures. Knows nothing of figures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

WORDS = ("VALID", "SATURATED", "INVALID-CLIENT", "FAILED")


@dataclass(frozen=True, slots=True)
class Row:
    """``first`` draws a line above."""

    cells: Sequence[str]
    first: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """``left`` columns are aligned to the left, the rest to the right."""

    head: Sequence[str]
    rows: Sequence[Row]
    left: int = 1

    def as_text(self) -> str:
        """The same for a terminal."""
        lines = [list(self.head), *(list(row.cells) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        made = []
        for number, line in enumerate(lines):
            if number and self.rows[number - 1].first and number > 1:
                made.append("")
            cells = [
                cell.ljust(width) if i < self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            made.append("  ".join(cells).rstrip())
        return "\n".join(made)


@dataclass(frozen=True, slots=True)
class Fold:
    """Text behind a click."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page."""

    title: str
    lines: Sequence[str] = ()
    table: Table | None = None
    images: Sequence[Path] = ()
    folds: Sequence[Fold] = field(default_factory=tuple)

    @property
    def pictures(self) -> list[dict[str, str]]:
        return [
            {"alt": path.stem, "data": base64.b64encode(path.read_bytes()).decode()}
            for path in self.images
        ]


def write_page(
    path: Path, title: str, subtitle: str, warnings: Sequence[str], sections: Sequence[Section]
) -> None:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        title=title, subtitle=subtitle, warnings=warnings, sections=sections, words=WORDS
    )
    path.write_text(page, encoding="utf-8")


def seconds(value: float | None) -> str:
    """A latency for people: three digits, ms below a second; an unsupported one says so."""
    if value is None:
        return "n too small"
    if value == float("inf"):
        return "unfinished"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
