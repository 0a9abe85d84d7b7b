"""What the server says of its requests: one line each, with their ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.hash_app import FAIL_ON, STEP_S
from tests.support.process import PATIENCE_S, Server, eventually, serving
from tests.support.wire import send


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A collector of traces that is not there harms no request."""
    folder = tmp_path_factory.mktemp("talking")
    options: Any = {"log_format": "json", "otlp_endpoint": "http://127.0.0.1:9"}
    with serving(folder, hash_model={STEP_S: 0.01}, **options) as server:
        yield server


def lines(server: Server, **wanted: object) -> list[dict[str, Any]]:
    """The lines of requests with these fields; every line of the log is a JSON object."""
    whole, _, _ = server.log.rpartition("\n")  # the last one may be half written
    told = [json.loads(line) for line in whole.splitlines()]
    return [line for line in told if "request_id" in line and wanted.items() <= line.items()]


def the_line(server: Server, **wanted: object) -> dict[str, Any]:
    eventually(lambda: bool(lines(server, **wanted)), f"a line with {wanted}")
    (line,) = lines(server, **wanted)
    return line


def ask(server: Server, identity: str, **fields: Any) -> requests.Response:
    return requests.post(
        f"{server.url}/inference",
        json={"prompt": "hello", "num_tokens": 5, **fields},
        headers={"X-Request-Id": identity},
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_has_one_line_with_its_id_and_its_cost(talking: Server, stream: bool) -> None:
    identity = f"mine-{stream}"
    assert ask(talking, identity, stream=stream).headers["X-Request-Id"] == identity
    line = the_line(talking, request_id=identity)
    assert (line["method"], line["path"], line["status"]) == ("POST", "/inference", 200)
    assert (line["prompt_tokens"], line["generated_tokens"]) == (5, 5)
    assert 0 <= line["queue_s"] < line["ttft_s"] < line["duration_s"]
    assert (line["level"], line["client"], line["ends"]) == ("info", "127.0.0.1", ["length"])


@pytest.mark.parametrize("identity", ["x" * 129, "two words"])
def test_an_id_that_is_none_is_replaced(talking: Server, identity: str) -> None:
    """A refused request has a line, too."""
    answer = ask(talking, identity, num_tokens=0)
    fresh = answer.headers["X-Request-Id"]
    assert fresh not in ("", identity)
    assert the_line(talking, request_id=fresh)["status"] == answer.status_code == 400


def test_a_client_that_leaves_has_a_line_and_a_probe_has_none(talking: Server) -> None:
    client = send(talking, "/inference", prompt="x", num_tokens=1000, stream=True)
    talking.reaches(running=1)
    client.close()
    talking.reaches(running=0)
    eventually(lambda: any(line.get("ends") == ["cancelled"] for line in lines(talking)), "a line")
    assert talking.health() == 200
    assert not lines(talking, method="GET")


def test_plain_logs_are_lines_for_people(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={FAIL_ON: "1"}) as server:
        assert ask(server, "plain").status_code == 500
        requests.get(
            f"{server.url}/no\nwhere", headers={"X-Request-Id": "lost"}, timeout=PATIENCE_S
        )
        # each is written after its response, so in any order
        for identity in ("plain", "lost"):
            eventually(lambda own=f"request_id={identity}": own in server.log, "the line")  # type: ignore[misc]
        (line,) = [line for line in server.log.splitlines() if "request_id=plain" in line]
        assert 'POST "/inference" 500' in line
        assert "prompt_tokens=5 generated_tokens=0 ends=failed" in line
        (lost,) = [line for line in server.log.splitlines() if "request_id=lost" in line]
        assert 'GET "/no\\nwhere" 404' in lost
