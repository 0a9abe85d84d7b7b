"""What the parts of the GPU benchmark find: plain data, a line of JSON for each point, so that a
part that crashes or hangs loses nothing that it had measured. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Value = str | float | int | None
AGREES = "agrees"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of one of the tables. The columns of a table are those of its first row."""

    table: str
    row: Mapping[str, Value]


Emit = Callable[[str, Mapping[str, Value]], None]


def append(path: Path, point: TableRow) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"table": point.table, **point.row}) + "\n")


def read(path: Path) -> Iterator[TableRow]:
    """The points in the file; a last line that was cut off is left out."""
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            yield TableRow(row.pop("table"), row)


def tables(points: Sequence[TableRow]) -> str:
    """All tables, in the order in which they began."""
    lines: list[str] = []
    for name in dict.fromkeys(point.table for point in points):
        rows = [point.row for point in points if point.table == name]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        cells = [columns, *([shown(row.get(column)) for column in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["", name]
        lines += ["  ".join(map(str.rjust, of, widths)).rstrip() for of in cells]
    return "\n".join(lines)


def shown(value: Value) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
