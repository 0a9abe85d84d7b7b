"""What a server wrote of its iterations finds the client's requests, whatever its clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from client.load.records import Run
from client.load.rows import as_json, from_json, spans
from tests.client.analysis.made import outcome, run_of

UNIX_S, CLOCK_S = 1_800_000_000.0, 5_000.0  # of one moment: the start of the run


def played() -> Run:
    """Two requests at once, and one that the server never had."""
    made = [outcome(0, at=1.0, tokens=3), outcome(1, at=1.0, tokens=2), outcome(2, at=9.0)]
    return replace(run_of(made), began_unix_s=UNIX_S, name="run")


def written(folder: Path, *, version: int = 0) -> Path:
    """Their numbers there are 7 and 6, and another client's is 5."""

    def arrived(request: int, at_s: float, request_id: str | None) -> dict[str, Any]:
        own = {"request": request, "request_id": request_id}
        return {"type": "arrived", "at_s": CLOCK_S + at_s, **own}

    def iteration(start_s: float, *rows: list[Any]) -> dict[str, Any]:
        return {"type": "iteration", "start_s": CLOCK_S + start_s, "duration_s": 0.1, "rows": rows}

    lines = [
        {"type": "head", "clock_s": CLOCK_S, "unix_s": UNIX_S},
        arrived(5, -3.0, None),
        arrived(6, 1.001, "run/1"),
        arrived(7, 1.002, "run/0"),
        iteration(1.1, [6, 0, 8, "prefill"], [7, 1, 4, "chunk"]),
        iteration(1.2, [6, 0, 1, "decode"], [7, 1, 4, "prefill"]),
        iteration(1.3, [6, 0, 0, "held"], [7, 1, 1, "decode"]),
        iteration(1.4, [6, 0, 0, "held"], [7, 1, 0, "paused"]),
        iteration(1.5, [7, 1, 1, "decode"]),
    ]
    path = folder / f"rows-dynamic-{version}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_each_request_has_its_spans_on_the_clients_clock(tmp_path: Path) -> None:
    found = spans([tmp_path / "none.jsonl", written(tmp_path)], played())
    told = {i: [(s.kind, round(s.start_s, 6), round(s.end_s, 6)) for s in own]
            for i, own in found.items()}  # fmt: skip
    assert told == {
        0: [("chunk", 1.1, 1.2), ("prefill", 1.2, 1.3), ("decode", 1.3, 1.4), ("paused", 1.4, 1.5),
            ("decode", 1.5, 1.6)],
        1: [("prefill", 1.1, 1.2), ("decode", 1.2, 1.3), ("held", 1.3, 1.5)],
    }  # fmt: skip
    assert from_json(json.loads(json.dumps(as_json(found, [0, 1, 2])))).keys() == {0, 1}


def test_a_run_without_a_file_or_a_start_has_none(tmp_path: Path) -> None:
    assert spans([tmp_path / "none.jsonl"], played()) == {}
    assert spans([written(tmp_path)], replace(played(), began_unix_s=None)) == {}
    (tmp_path / "torn.jsonl").write_text('{"type": "head"}\n{"typ')
    assert spans([tmp_path / "torn.jsonl"], played()) == {}
