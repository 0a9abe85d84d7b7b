"""A server under far more load than it can serve: requests are pending without a thread, and a
client that leaves frees its place, wherever its request was."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from api.http.worker.intake import handled_at_once
from serving.config import MODES
from tests.api.test_requests import expected
from tests.support.dialects import NATIVE, OPENAI, RESPONSES, TGI, body
from tests.support.hash_app import ENDLESS, HOLD, STEP_S
from tests.support.process import PATIENCE_S, Server, clients, connected, eventually, serving
from tests.support.wire import post, send

Call = Callable[..., Future[Any]]
MANY = 3 * handled_at_once(1)
ROUNDS = 8
FEW_FILES = 400
FURTHER = 4  # threads: of /stats, and of refusals


@contextmanager
def held(folder: Path, **options: Any) -> Iterator[tuple[Server, Path, Call]]:
    """One request runs until the file is gone."""
    hold = folder / "hold"
    hold.touch()
    with (
        serving(folder, "nobatch", {HOLD: hold}, max_batch_size=1, **options) as server,
        clients(MANY) as call,
    ):
        yield server, hold, call


def handlers(server: Server) -> int:
    """Threads of the server's processes."""
    return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in server.members())


def test_pending_requests_hold_no_thread_and_count_as_waiting_ones(tmp_path: Path) -> None:
    with held(tmp_path, max_waiting=MANY) as (server, hold, call):
        answers = []
        before = handlers(server)
        for number in range(MANY):
            answers.append(call(server.ask, f"prompt {number}", 3, temperature=0))
            server.reaches(running=1, waiting=number)
        last_s = time.monotonic()
        assert handlers(server) - before <= handled_at_once(1) + FURTHER
        leaving = send(server, NATIVE, prompt="gone", num_tokens=2)
        server.reaches(running=1, waiting=MANY)
        refused = server.ask("x", 1)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert "--max-waiting" in refused.json()["error"]
        assert server.health() == 200
        assert requests.get(f"{server.url}/", timeout=PATIENCE_S).status_code == 200
        leaving.close()
        server.reaches(running=1, waiting=MANY - 1)
        waited_s = time.monotonic() - last_s
        hold.unlink()
        told = [answer.result() for answer in answers]
        assert [answer.status_code for answer in told] == [200] * MANY
        assert told[-1].json()["timing"]["queue_s"] >= waited_s
        alone = server.ask(f"prompt {MANY - 1}", 3, temperature=0).json()["generated"]
        assert told[-1].json()["generated"] == alone
        counts = server.counts()
        shown = [counts[end] for end in ("received", "completed", "cancelled", "rejected")]
        assert shown == [MANY + 3, MANY + 1, 1, 1]


def test_with_few_files_pending_requests_leave_connections_for_probes(tmp_path: Path) -> None:
    limited = ("sh", "-c", f'ulimit -n {FEW_FILES} && exec "$0" "$@"')
    most = handled_at_once(1) + FEW_FILES // 4  # of the connections, which are half of the files
    with held(tmp_path, prefix=limited) as (server, hold, _):
        waiting = [send(server, NATIVE, prompt="x", num_tokens=1) for _ in range(most)]
        server.reaches(running=1, waiting=most - 1)
        refused = server.ask("x", 1)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert "too few files" in refused.json()["error"]
        assert server.health() == 200
        hold.unlink()
        assert {client.recv(65536)[:12] for client in waiting} == {b"HTTP/1.1 200"}


def test_a_server_that_stops_answers_pending_requests(tmp_path: Path) -> None:
    with held(tmp_path) as (server, hold, call):
        answers = [call(server.ask, "x", 2) for _ in range(MANY)]
        server.reaches(running=1, waiting=MANY - 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.health() == 503, "the server drains")
        hold.unlink()
        assert {answer.result().status_code for answer in answers} == {200, 503}
        assert server.process.wait(60) == 0


def test_clients_that_leave_as_their_requests_are_taken_do_no_harm(tmp_path: Path) -> None:
    """In one round of events, the client of the request that is taken leaves."""
    with serving(tmp_path, "nobatch", hash_model={STEP_S: 0.01}, max_batch_size=1) as server:
        # it runs until its client leaves, however long the others take to arrive
        request = b"".join(post(NATIVE, prompt="gone", num_tokens=1000))
        for _ in range(ROUNDS):
            leaving = [connected(server) for _ in range(2 * MANY)]
            for client in leaving:
                client.sendall(request)
            server.reaches(running=1, waiting=len(leaving) - 1)
            for client in leaving:
                client.close()
            server.reaches(running=0, waiting=0)
        assert server.ask("x", 2).status_code == 200
        assert server.counts()["failed"] == 0


BATCH = 4


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Whose generations end when they are complete, cancelled or stopped."""
    folder = tmp_path_factory.mktemp("leaving")
    options: dict[str, Any] = {"hash_model": {STEP_S: 0.02, ENDLESS: "1"}}
    with serving(folder, max_batch_size=BATCH, **options) as server:
        yield server


@pytest.fixture
def before(endless: Server) -> int:
    """How many had left."""
    endless.reaches(waiting=0, running=0)
    return endless.counts()["cancelled"]


@pytest.mark.parametrize(
    ("path", "fields", "generations"),
    [
        (NATIVE, {}, 1),
        (NATIVE, {"stream": True}, 1),
        (OPENAI[0], {"n": 2}, 2),
        (OPENAI[1], {"n": 4, "stream": True}, 4),
        (RESPONSES, {}, 1),
        (RESPONSES, {"stream": True}, 1),
        (TGI, {"best_of": 2, "do_sample": True}, 2),
        ("/generate_stream", {}, 1),
    ],
)
def test_one_that_leaves_while_running_frees_all_it_held(
    endless: Server, before: int, path: str, fields: dict[str, Any], generations: int
) -> None:
    client = send(endless, path, **body(path.removesuffix("_stream"), tokens=900, **fields))
    endless.reaches(running=generations)
    client.close()
    endless.reaches(running=0, cancelled=before + generations)
    assert endless.ask("next", 1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_leaves_the_queue_is_never_run(endless: Server, before: int, stream: bool) -> None:
    running = send(endless, OPENAI[0], **body(OPENAI[0], tokens=900, n=BATCH))
    endless.reaches(running=BATCH)
    queued = send(endless, NATIVE, **body(NATIVE, tokens=1000, stream=stream))
    endless.reaches(running=BATCH, waiting=1)
    queued.close()
    endless.reaches(running=BATCH, waiting=0, cancelled=before + 1)
    running.close()
    endless.reaches(running=0, cancelled=before + 1 + BATCH)


def test_one_that_sends_its_next_request_early_is_not_taken_for_gone(
    endless: Server, before: int
) -> None:
    with send(endless, NATIVE, **body(NATIVE, tokens=20)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: [::]\r\n\r\n")
        received = b""
        while b'"ready"' not in received:
            received += client.recv(65536)
    assert b'"num_tokens":20' in received
    assert endless.counts()["cancelled"] == before


REQUESTS = 20_000
CLIENTS = 150


def behave(server: Server, number: int) -> str:
    """One client: patient, streaming, wrong, or leaving; returns what became of its request."""
    chance = random.Random(number)
    tokens = chance.randint(1, 60)
    kind = chance.choice(["whole", "whole", "stream", "leave", "wrong"])
    if kind == "leave":
        stream = chance.random() < 0.5
        client = send(server, "/inference", prompt="x", num_tokens=900, stream=stream)
        client.settimeout(chance.random() / 10)
        try:
            client.recv(1)
        except TimeoutError:
            pass
        finally:
            client.close()
        return kind
    if kind == "wrong":
        answer = server.ask("", tokens)
        if answer.status_code == 429:  # a full server does not read what it refuses
            return "rejected"
        assert answer.status_code == 400
        return kind
    answer = server.ask(f"{number}", tokens, seed=number, stream=kind == "stream")
    if answer.status_code == 429:
        return "rejected"
    assert answer.status_code == 200
    if kind == "whole":
        assert answer.json()["generated"] == expected(f"{number}", tokens, number)
    else:
        assert '"done":true' in answer.text
    return "completed"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_no_request_is_lost_and_all_totals_agree(mode: str, tmp_path: Path) -> None:
    with (
        serving(tmp_path, mode, {STEP_S: 0.0005}, max_batch_size=32, max_waiting=64) as server,
        clients(CLIENTS) as call,
    ):
        futures = [call(behave, server, number) for number in range(REQUESTS)]
        ends = [future.result() for future in futures]
        server.reaches(waiting=0, running=0)
        counts = server.counts()
        assert counts["completed"] == ends.count("completed")
        assert counts["failed"] == 0
        ended = counts["completed"] + counts["cancelled"] + counts["rejected"]
        assert counts["received"] == ended
        assert counts["cancelled"] > 0
        assert "CRITICAL" not in server.log
        assert requests.get(f"{server.url}/health", timeout=60).status_code == 200
