"""A server under far more load than it can serve: requests are pending without a thread, and a
client that leaves frees its place, wherever its request was."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from api.http.worker.handlers import AHEAD, SPARE
from tests.support.dialects import NATIVE, OPENAI, RESPONSES, TGI, body
from tests.support.process import (
    PATIENCE_S,
    Server,
    clients,
    connected,
    eventually,
    serving,
    shared,
)
from tests.support.wire import post, send

AT_ONCE = AHEAD + SPARE  # requests that have a handler, of a server with one resident
MANY = 3 * AT_ONCE
ROUNDS = 8
FURTHER = 4  # threads: of /stats, and of refusals


def handlers(server: Server) -> int:
    """Threads of the server's processes."""
    return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in server.members())


def test_pending_requests_hold_no_thread_count_as_waiting_and_are_answered_by_a_server_that_stops(
    tmp_path: Path,
) -> None:
    hold, options = tmp_path / "hold", {"max_batch_size": 1, "max_waiting": MANY}
    with (
        serving(tmp_path, "nobatch", {"hold": hold}, **options) as server,
        clients(MANY) as call,
    ):
        hold.touch()  # one request runs until it is gone
        answers = []
        before = handlers(server)
        for number in range(MANY):
            answers.append(call(server.ask, f"prompt {number}", 3, temperature=0))
            server.reaches(running=1, waiting=number)
        last_s = time.monotonic()
        assert handlers(server) - before <= AT_ONCE + FURTHER
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

        hold.touch()
        answers = [call(server.ask, "x", 2) for _ in range(MANY)]
        server.reaches(running=1, waiting=MANY - 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.health() == 503, "the server drains")
        hold.unlink()
        assert {answer.result().status_code for answer in answers} == {200, 503}
        assert server.process.wait(60) == 0


BATCH = 4


# its generations end when they are complete, cancelled or stopped
endless = shared(hash_model={"step_s": 0.02, "endless": 1}, max_batch_size=BATCH)


@pytest.mark.parametrize(
    ("path", "fields", "generations"),
    [
        (NATIVE, {}, 1),
        (OPENAI[0], {"n": 2}, 2),
        (OPENAI[1], {"n": 4, "stream": True}, 4),
        (RESPONSES, {"stream": True}, 1),
        (TGI, {"best_of": 2, "do_sample": True}, 2),
        ("/generate_stream", {}, 1),
    ],
)
def test_one_that_leaves_while_running_frees_all_it_held(
    endless: Server, path: str, fields: dict[str, Any], generations: int
) -> None:
    endless.reaches(waiting=0, running=0)
    before = endless.counts()["cancelled"]
    client = send(endless, path, **body(path.removesuffix("_stream"), tokens=900, **fields))
    endless.reaches(running=generations)
    client.close()
    endless.reaches(running=0, cancelled=before + generations)
    assert endless.ask("next", 1).status_code == 200


def test_clients_that_leave_as_their_requests_are_taken_do_no_harm(endless: Server) -> None:
    """In one round of events, the client of the request that is taken leaves."""
    # it runs until its client leaves, however long the others take to arrive
    request = b"".join(post(NATIVE, prompt="gone", num_tokens=1000))
    for _ in range(ROUNDS):
        leaving = [connected(endless) for _ in range(2 * MANY)]
        for client in leaving:
            client.sendall(request)
        endless.reaches(running=BATCH, waiting=len(leaving) - BATCH)
        for client in leaving:
            client.close()
        endless.reaches(running=0, waiting=0)
    assert endless.ask("x", 2).status_code == 200
    assert endless.counts()["failed"] == 0
