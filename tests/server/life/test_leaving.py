"""A client that leaves frees its place, wherever its request was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.dialects import NATIVE, OPENAI, RESPONSES, TGI, body
from tests.support.hash_app import ENDLESS, STEP_S
from tests.support.process import Server, serving
from tests.support.wire import send

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
