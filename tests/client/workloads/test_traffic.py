"""Traffic of several kinds of requests: exact shares, dependent calls, targets in a server's
units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.claims.catalogue import CLAIMS, Claim
from client.workloads.spec import SpecError
from client.workloads.traffic import Flow, Speed, Traffic, closed_loop, open_loop
from client.workloads.workload_file import read_workload, write_workload

SPEED = Speed(requests_per_s=20.0, request_s=0.4, token_s=0.01)
AGENTS = Traffic(
    (
        Flow(3, "fixed:10", "fixed:5", user="chat", ttft=2.0),
        Flow(1, "fixed:20", "fixed:5", calls="fixed:10", user="agent", deadline=10.0),
    ),
    load=1.5,
)


def test_flows_have_their_shares_and_signals_and_each_call_follows_the_one_before_it() -> None:
    work = open_loop(AGENTS, SPEED, requests=130, seed=0)
    chat = [r for r in work.requests if r.signals["user"] == "chat"]
    agent = [r for r in work.requests if r.signals["user"] == "agent"]
    assert (len(chat), len(agent)) == (30, 100)
    assert all(r.signals["ttft_target_s"] == 0.8 for r in chat)
    assert all(r.signals["deadline_s"] == 4.0 for r in agent)
    assert len({r.signals["program"] for r in agent}) == 10
    for k, r in enumerate(work.requests):
        assert (r.at_s is None) == (r.after is not None)
        if r.after is not None:
            assert r.after == k - 1
            assert work.requests[r.after].signals["program"] == r.signals["program"]
    assert len(work.requests) / work.duration_s == pytest.approx(1.5 * 20.0)
    assert max(r.at_s for r in work.requests if r.at_s is not None) <= work.duration_s + 1e-6


def test_a_copy_has_other_words_and_programs_but_the_same_times_and_lengths() -> None:
    a, b = (open_loop(AGENTS, SPEED, requests=130, seed=0, copy=copy) for copy in (0, 1))
    for r, s in zip(a.requests, b.requests, strict=True):
        assert r.prompt != s.prompt
        assert replace(r, prompt="", signals={}) == replace(s, prompt="", signals={})
    names = [{r.signals.get("program") for r in w.requests} - {None} for w in (a, b)]
    assert not names[0] & names[1]


def test_prompts_begin_with_one_of_their_flows_documents() -> None:
    read = Traffic((Flow(1, "fixed:4", "fixed:5", documents=3, document_tokens=50),), 1.0)
    requests = open_loop(read, SPEED, requests=30, seed=0).requests
    beginnings = [" ".join(r.prompt.split(" ")[:50]) for r in requests]
    _, counts = np.unique(beginnings, return_counts=True)
    assert counts.tolist() == [10, 10, 10]
    assert all(r.prompt_tokens == 54 for r in requests)


def test_predictions_are_wrong_by_as_much_as_was_asked_for() -> None:
    guessed = Traffic((Flow(1, "fixed:4", "uniform:50,99", misprediction=0.4),), 1.0)
    requests = open_loop(guessed, SPEED, requests=500, seed=0).requests
    off = np.log([r.signals["predicted_tokens"] / r.output_tokens for r in requests])
    assert off.std() == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_the_traffic_of_every_claim_can_be_written_and_read(claim: Claim, tmp_path: Path) -> None:
    for traffic in (claim.traffic, claim.calm):
        for work in (open_loop(traffic, SPEED, 40, 0), closed_loop(traffic, 40, 8, 0)):
            write_workload(work, tmp_path / "w")
            assert read_workload(tmp_path / "w") == work


def test_a_request_that_follows_a_later_one_is_refused(tmp_path: Path) -> None:
    work = open_loop(AGENTS, SPEED, requests=40, seed=0)
    write_workload(work, tmp_path / "w")
    text = (tmp_path / "w").read_text()
    earlier = next(r.after for r in work.requests if r.after is not None)
    for later in (earlier + 1, 9999):  # the request itself, and one that there is not
        changed = text.replace(f'"after": {earlier}', f'"after": {later}', 1)
        (tmp_path / "w").write_text(changed)
        with pytest.raises(SpecError, match="after is the number of an earlier request"):
            read_workload(tmp_path / "w")
