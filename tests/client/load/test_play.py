"""Playing workloads against real servers over real sockets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from client.analysis.gates import SATURATED, judge
from client.analysis.metrics import measure
from client.load.http.target import Target, parse_target
from client.load.play import play
from client.load.servers.probing import adapted
from client.load.servers.stats import settled_stats
from client.workloads.traffic import Flow, Speed, Traffic, open_loop
from client.workloads.workload_file import Workload
from tests.client.conftest import StartServer, workload


def test_an_open_loop_never_waits_and_what_is_cut_after_the_drain_is_unfinished(
    server: StartServer,
) -> None:
    """One row at a time and far too slow: every send still happens at its time."""
    target = server("nobatch", base_s=0.04)
    run = play(workload(requests=40, rate=60.0), target, drain_s=0.1)
    m = measure(run)
    assert m.unfinished > 15
    assert m.ok + m.unfinished + m.failed == len(run.outcomes) == 40
    assert all(o.sent_s >= (o.intended_s or 0.0) for o in run.outcomes)
    assert run.outcomes[-1].sent_s < run.outcomes[5].left_s + 5
    # Not the verdict as a whole: on a busy machine the client may have been late besides.
    gates = {g.name: g.verdict for g in judge(run, m).gates}
    assert gates["backlog"] == SATURATED
    assert np.isinf(m.latencies["e2e"]).any()
    counts = settled_stats(target)["counts"]  # type: ignore[index]
    assert counts["waiting"] == counts["running"] == 0


def test_users_of_a_closed_loop_wait_for_answers_and_send_nothing_more_when_it_is_cut(
    target: Target,
) -> None:
    run = play(workload(arrivals="closed:users=3,think=0.001", requests=30), target)
    assert all(o.ok and o.intended_s is None for o in run.outcomes)
    edges = sorted([(o.sent_s, 1) for o in run.outcomes] + [(o.left_s, -1) for o in run.outcomes])
    assert np.cumsum([step for _, step in edges]).max() <= 3
    endless = workload(arrivals="closed:users=3", requests=400, output_tokens="fixed:2000")
    run = play(endless, target, drain_s=0.3)
    assert 0 < len(run.outcomes) <= 3, "each answer takes four seconds"
    assert all(o.unfinished for o in run.outcomes)


def test_without_streaming_the_first_token_is_the_servers_word(server: StartServer) -> None:
    target = adapted(server(refuses_streams=True))
    assert not target.stream
    run = play(workload(), target)
    assert all(o.ok and o.first_from == "server" and not o.deliveries for o in run.outcomes)
    m = measure(run)
    assert m.latencies["itl"].size == 0
    assert m.latencies["ttft"].size == sum(o.origin_s >= m.warm_up_s for o in run.outcomes)


def agents(requests: int) -> Workload:
    """Each of three calls, of which one follows another."""
    traffic = Traffic((Flow(1, "fixed:4", "fixed:3", calls="fixed:3"),), 1.0)
    return open_loop(traffic, Speed(20.0, 0.1, 0.01), requests, seed=0)


def test_a_call_is_sent_when_the_one_before_it_has_ended(target: Target) -> None:
    work = agents(12)
    run = play(work, target)
    assert len(run.outcomes) == 12
    ends = {o.index: o.end_s for o in run.outcomes}
    for o, r in zip(run.outcomes, work.requests, strict=True):
        if r.after is not None:
            assert o.intended_s is None
            assert o.sent_s >= (ends[r.after] or 0.0)


def test_after_a_call_that_failed_its_program_ends(faulty: Callable[..., str]) -> None:
    run = play(agents(3), parse_target(faulty("loading", after=1)))
    assert [o.ok for o in run.outcomes] == [True, False]
