"""The search for capacity, on functions whose answer is known and on a real server."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.capacity import Probe, SearchError, bracket, main
from tests.client.conftest import StartServer


@given(truth=st.floats(0.1, 1000), start=st.floats(0.5, 50), precision=st.floats(0.01, 0.3))
def test_the_bracket_holds_the_truth_and_is_as_narrow_as_asked(
    truth: float, start: float, precision: float
) -> None:
    tried: list[float] = []

    def probe(rate: float) -> bool:
        tried.append(rate)
        return rate <= truth

    found = bracket(3, start, precision, probe)
    assert found.passed <= truth < found.failed
    assert found.failed / found.passed <= 1 + precision
    assert len(tried) == len(set(tried)), "no rate is paid for twice"
    assert found.seed == 3


def test_objectives_that_no_rate_meets_end_the_search() -> None:
    with pytest.raises(SearchError, match="loosen them"):
        bracket(0, 1.0, 0.05, lambda rate: False)


def test_a_bracket_stays_as_wide_as_a_late_client_leaves_it() -> None:
    def probe(rate: float) -> bool:
        if 10 < rate < 11:
            raise SearchError("INVALID-CLIENT", "late")
        return rate < 10

    assert bracket(0, 4.0, 0.001, probe).passed < 10
    assert bracket(0, 4.0, 0.001, probe).failed >= 11
    with pytest.raises(SearchError, match="late"):
        bracket(0, 10.5, 0.001, probe)


@pytest.mark.parametrize(
    ("asked", "good", "verdict", "found"),
    [
        (100, 0.91, "VALID", (True, False)),  # near
        (2000, 0.925, "VALID", (True, True)),
        (100, 0.60, "VALID", (False, True)),
        (100, 1.0, "SATURATED", (False, True)),  # its queue will outgrow the objectives
    ],
)
def test_a_rate_near_the_threshold_is_played_again(
    asked: int, good: float, verdict: str, found: tuple[bool, ...]
) -> None:
    one = Probe(0, 1.0, asked, good, verdict, 1)
    assert (one.passes(0.9), one.decided(0.9)) == found


def test_the_command_finds_a_servers_capacity(
    server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    target = server("dynamic", base_s=0.01, limit=2)
    options = [
        "--target", target.url, "--prompts", "request", "--output-tokens", "fixed:8", "--requests",
        "20", "--seeds", "1", "--calibrate-s", "0.5", "--precision", "1", "--slo", "ttft:300ms",
    ]  # fmt: skip
    status = main([*options, "--json"])
    told = capsys.readouterr()
    assert status == 0, told.err
    figures = json.loads(told.out)
    found = figures["brackets"][0]
    # Two rows of eight iterations of a hundredth of a second: at most 25 requests a second.
    assert found["passed"] < 33
    assert found["passed"] == max(p["rate"] for p in figures["probes"] if p["passed"])
    assert found["failed"] == min(p["rate"] for p in figures["probes"] if not p["passed"])
    assert found["failed"] / found["passed"] <= 2 + 1e-9
    assert {p["passed"] for p in figures["probes"]} == {True, False}
    assert not any(p["passed"] for p in figures["probes"] if p["verdict"] == "SATURATED")
