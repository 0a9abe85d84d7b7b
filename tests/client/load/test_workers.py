"""Runs that processes of their own play are runs like any other, however many they are."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from client.analysis.gates import VALID, judge
from client.analysis.metrics import measure
from client.load.http.exchange import Progress
from client.load.http.target import Target
from client.load.machine import divided
from client.load.records import Run
from client.load.workers import Crew, WorkerError
from client.workloads.recipe import Recipe, make
from tests.client.conftest import command, started


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    log = tmp_path_factory.mktemp("workers") / "server.log"
    with started(command("dynamic"), "dynamic", log, 60.0) as server:
        yield server.target


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(3) as made:
        yield made


def played(crew: Crew, target: Target, **recipe: object) -> Run:
    given = {"requests": 40, "rate": 100.0, "output_tokens": "fixed:5", **recipe}
    return crew.play(make(Recipe(**given)), target)  # type: ignore[arg-type]


def test_several_processes_play_one_workload_between_them(crew: Crew, target: Target) -> None:
    run = played(crew, target)
    assert [o.index for o in run.outcomes] == list(range(40))
    assert [o.intended_s for o in run.outcomes] == [r.at_s for r in run.workload.requests]
    assert all(o.ok and o.output_tokens == 5 for o in run.outcomes)
    # a busy machine may serve late; Little's law holds over the sum of their samples all the same
    gates = [g for g in judge(run, measure(run)).gates if not g.voids and g.name != "backlog"]
    assert {g.verdict for g in gates} == {VALID}


def test_the_users_of_a_closed_loop_are_shared(crew: Crew, target: Target) -> None:
    run = played(crew, target, arrivals="closed:users=4", rate=None)
    assert len(run.outcomes) == 40
    assert 3 <= max(n for _, n in run.in_flight) <= 4


def test_connections_are_used_again_where_that_is_asked(crew: Crew, target: Target) -> None:
    run = played(crew, replace(target, keep_alive=True), arrivals="closed:users=3", rate=None)
    assert all(o.ok for o in run.outcomes)


def test_an_interrupt_of_the_client_keeps_its_processes_records(crew: Crew, target: Target) -> None:
    """Only the client gets the signal: its processes are in separate sessions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        came: list[Progress] = []

        def interrupt(progress: Progress) -> None:
            if progress.done >= 5 and not came:
                came.append(progress)
                os.kill(os.getpid(), signal.SIGINT)

        slow = make(Recipe(requests=400, rate=20.0, output_tokens="fixed:2"))
        run = crew.play(slow, target, watch=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.interrupted
    assert 5 <= len(run.outcomes) < 400
    assert played(crew, target).interrupted is None, "and the processes play on"


def test_a_dead_process_is_reported_as_an_error(target: Target) -> None:
    with Crew(1) as crew:
        played(crew, target)
        crew._workers[0].process.kill()
        with pytest.raises(WorkerError, match="ended with status -9"):
            played(crew, target)


def test_a_crew_plays_outside_the_main_thread_too(crew: Crew, target: Target) -> None:
    found: list[Run] = []
    thread = threading.Thread(target=lambda: found.append(played(crew, target)))
    thread.start()
    thread.join()
    assert len(found[0].outcomes) == 40


@pytest.mark.parametrize(
    ("siblings", "workers", "client", "servers"),
    [
        ([{0}, {1}], 1, (0, 1), (0, 1)),
        ([{0, 4}, {1, 5}, {2, 6}, {3, 7}], 1, (3, 7), (0, 1, 2, 4, 5, 6)),
        ([{0, 4}, {1, 5}, {2, 6}, {3, 7}], 2, tuple(range(8)), tuple(range(8))),
        ([{n} for n in range(16)], 4, (12, 13, 14, 15), tuple(range(12))),
    ],
    ids=["too few", "one of four, with its sibling", "half would be too many", "four"],
)
def test_the_client_has_its_own_cores_if_there_are_enough(
    siblings: list[set[int]], workers: int, client: tuple[int, ...], servers: tuple[int, ...]
) -> None:
    found = divided(siblings, workers)
    assert (found.client, found.servers) == (client, servers)
    assert found.shared == (client == servers)
