"""Playing workloads against real servers over real sockets."""

from __future__ import annotations

import numpy as np

from client.analysis.gates import SATURATED, judge
from client.analysis.metrics import measure
from client.load.play import play
from client.load.servers.probing import adapted
from client.load.servers.stats import settled_stats, stats
from client.workloads.traffic import Flow, Speed, Traffic, open_loop
from tests.client.conftest import StartServer, workload


def test_every_request_is_sent_once_with_its_own_prompt_and_all_tokens_come_back(
    server: StartServer,
) -> None:
    target = server()
    work = workload(arrivals="plan:high", requests=60)
    run = play(work, target)
    assert [o.index for o in run.outcomes] == list(range(60))
    assert [o.failure for o in run.outcomes] == [None] * 60
    for o, r in zip(run.outcomes, work.requests, strict=True):
        assert o.output_tokens == r.output_tokens
        assert sum(tokens for _, tokens in o.deliveries) == r.output_tokens
        assert o.intended_s == r.at_s
    assert stats(target)["total-tokens-handled"] == sum(  # type: ignore[index]
        r.output_tokens for r in work.requests
    )


def test_an_open_loop_never_waits_for_answers(server: StartServer) -> None:
    """One row at a time and far too slow: every send still happens at its time."""
    run = play(workload(requests=30, rate=60.0), server("nobatch", base_s=0.05), drain_s=0.0)
    assert len(run.outcomes) == 30
    assert sum(o.unfinished for o in run.outcomes) > 15
    last = run.outcomes[-1]
    assert last.intended_s is not None
    assert last.sent_s < run.outcomes[5].left_s + 5
    assert all(o.sent_s >= (o.intended_s or 0.0) for o in run.outcomes)


def test_requests_cut_after_the_drain_are_unfinished_and_saturate_the_run(
    server: StartServer,
) -> None:
    target = server("nobatch", base_s=0.03)
    run = play(workload(requests=40), target, drain_s=0.1)
    m = measure(run)
    assert m.unfinished > 0
    assert m.ok + m.unfinished + m.failed == 40
    # Not the verdict as a whole: on a busy machine the client may have been late besides.
    gates = {g.name: g.verdict for g in judge(run, m).gates}
    assert gates["backlog"] == SATURATED
    assert np.isinf(m.latencies["e2e"]).any()
    counts = settled_stats(target)["counts"]  # type: ignore[index]
    assert counts["waiting"] == counts["running"] == 0


def test_users_of_a_closed_loop_send_nothing_more_when_it_is_cut(server: StartServer) -> None:
    endless = workload(arrivals="closed:users=3", requests=400, output_tokens="fixed:200")
    run = play(endless, server(base_s=0.02), drain_s=0.3)
    assert 0 < len(run.outcomes) <= 3, "each answer takes four seconds"
    assert all(o.unfinished for o in run.outcomes)


def test_a_closed_loop_never_has_more_in_flight_than_users(server: StartServer) -> None:
    run = play(workload(arrivals="closed:users=3,think=0.001", requests=30), server())
    assert all(o.ok and o.intended_s is None for o in run.outcomes)
    edges = sorted([(o.sent_s, 1) for o in run.outcomes] + [(o.left_s, -1) for o in run.outcomes])
    assert np.cumsum([step for _, step in edges]).max() <= 3


def test_without_streaming_the_first_token_is_the_servers_word(server: StartServer) -> None:
    target = server(fault="no-stream")
    target = adapted(target)
    assert not target.stream
    run = play(workload(), target)
    assert all(o.ok and o.first_from == "server" and not o.deliveries for o in run.outcomes)
    m = measure(run)
    assert m.latencies["itl"].size == 0
    assert m.latencies["ttft"].size == len(run.outcomes) - sum(
        o.origin_s < m.warm_up_s for o in run.outcomes
    )


def test_a_call_is_sent_when_the_one_before_it_has_ended(server: StartServer) -> None:
    agents = Traffic((Flow(1, "fixed:4", "fixed:3", calls="fixed:3"),), 1.0)
    work = open_loop(agents, Speed(20.0, 0.1, 0.01), requests=12, seed=0)
    run = play(work, server(base_s=0.01))
    assert len(run.outcomes) == 12
    ends = {o.index: o.end_s for o in run.outcomes}
    for o, r in zip(run.outcomes, work.requests, strict=True):
        if r.after is not None:
            assert o.intended_s is None
            assert o.sent_s >= (ends[r.after] or 0.0)


def test_after_a_call_that_failed_its_program_ends(server: StartServer) -> None:
    agents = Traffic((Flow(1, "fixed:4", "fixed:3", calls="fixed:3"),), 1.0)
    work = open_loop(agents, Speed(20.0, 0.1, 0.01), requests=3, seed=0)
    run = play(work, server(fault="die", fault_after=1))
    assert [o.ok for o in run.outcomes] == [True, False]
