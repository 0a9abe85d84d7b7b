"""FlexiRequest's five distributions of arrivals against one server."""

from __future__ import annotations

import json

import pytest

from client.compare import main
from client.comparison.distributions import RATES, SHAPES, Shape, findings
from tests.client.conftest import StartServer


def test_the_statement_about_the_claim_follows_from_the_figures() -> None:
    means = {"uniform": (1.0, 2.0), "zipfian": (4.0, 3.0)}
    found = [
        Shape(rate, name, mean[k], 1.0, 1.0, None)
        for k, rate in enumerate(RATES)
        for name, mean in means.items()
    ]
    low, high, both = findings(found)
    assert "zipfian arrivals hurt most (mean TTFT 4 s, uniform 1 s)" in low
    assert "number 2 of 2" in high
    assert both.endswith(
        "4.0 times the smallest at the low rate and 1.5 times at the high one: "
        "the difference fades."
    )


def test_the_command_measures_all_of_them_and_says_what_it_found(
    server: StartServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.comparison.distributions._LEAST_S", 0.2)
    target = f"d={server('dynamic', base_s=0.03, limit=2).url}"
    status = main(
        ["--distributions", "--modes", "", "--target", target, "--prompts", "request", "--seeds",
         "1", "--budget-s", "31", "--calibrate-s", "0.3", "--output-tokens", "fixed:2", "--json"]
    )  # fmt: skip
    told = capsys.readouterr()
    assert status == 0, told.err
    shapes = json.loads(told.out)["distributions"]
    assert [(s["rate"], s["name"]) for s in shapes] == [(r, n) for r in RATES for n in SHAPES]
    assert all(s["mean_s"] > 0 for s in shapes)
