"""The pictures of the modes show what was computed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pictures.requests import MODES, draw, row_phases, run


def test_the_picture_of_the_modes_shows_rows_that_a_static_batch_computes_in_vain(
    tmp_path: Path,
) -> None:
    traces = {case.mode: run(case) for case in MODES}
    phases = {
        mode: {phase for _, phase, _, _ in row_phases(trace.events)}
        for mode, trace in traces.items()
    }
    assert phases == {
        "nobatch": {"prefill", "decode"},
        "static": {"prefill", "decode", "held"},
        "dynamic": {"prefill", "decode"},
    }
    draw(MODES, tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
