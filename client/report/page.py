"""A self-contained page from sentences, tables and pictures. Independent of figures.

No scripts: a folded part is a ``details`` element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

if TYPE_CHECKING:
    from client.report.pictures.drawing import Picture  # matplotlib takes a second to import

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
class Section:
    """One part of the page; ``folded`` is opened by a click. ``text`` keeps its lines."""

    title: str
    lines: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[Picture] = ()
    text: str = ""
    folded: bool = False


def write_page(
    path: Path, lead: Section, notes: Sequence[str], warnings: Sequence[str],
    sections: Sequence[Section],
) -> None:  # fmt: skip
    """``lead`` is the first screen: the result in words, a table, a picture; ``notes``: how it was
    measured."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("page.html.j2").render(
        lead=lead, notes=notes, warnings=warnings, sections=sections, words=WORDS
    )
    path.write_text(page, encoding="utf-8")
