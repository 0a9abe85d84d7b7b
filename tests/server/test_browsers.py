"""Requests that web pages of others send, over real sockets, and the clients that look alike."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from huggingface_hub import InferenceClient

from tests.server.process import PATIENCE_S, Server, connected

EVIL = "evil.example"
READ = ["/stats", "/v1/models", "/v1/files", "/v1/batches", "/watch", "/watch/events", "/metrics",
        "/health", "/nowhere"]  # fmt: skip


def raw(server: Server, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and the rest of the response to a head, which gets a length and a last line."""
    with connected(server) as client:
        end = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode() + end.encode() + body)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    return int(received.split(b" ", 2)[1]), received.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("path", READ)
def test_a_page_that_rebinds_its_name_reads_nothing(server: Server, path: str) -> None:
    """DNS rebinding: to the server it is a request with the page's name as its host."""
    headers = {"Host": f"{EVIL}:{server.config.port}"}
    answer = requests.get(server.url + path, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert ("type" in error) is path.startswith("/v1/")
    says = error["message"] if "type" in error else error
    assert EVIL in says
    assert "localhost" in says
    assert "--allow-hosts" in says


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /info HTTP/1.0\r\n", 200),
        ("GET /info HTTP/1.1\r\nHost: LOCALHOST.:1\r\n", 200),
        ("GET /info HTTP/1.1\r\nHost: [::1]:8500\r\n", 200),
        (f"GET http://{EVIL}/info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET http://localhost/info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET /info HTTP/1.1\r\nHost: localhost\r\nHost: {EVIL}\r\n", 400),
        (f"GET /info HTTP/1.1\r\nHost: {EVIL}\r\nHost: localhost\r\n", 400),
        (f"HEAD /info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"OPTIONS /info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET /info HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Host: {EVIL}\r\n", 200),
        (f"GET /info HTTP/1.1\r\nHost: {EVIL}\r\nX-Forwarded-Host: localhost\r\n", 403),
    ],
)
def test_the_host_of_a_request_is_its_host_field(server: Server, head: str, status: int) -> None:
    assert raw(server, head)[0] == status


PAGES: list[dict[str, str]] = [
    {"Origin": f"http://{EVIL}"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": f"http://{EVIL}", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_another_origin_resets_no_figures(server: Server, page: dict[str, str]) -> None:
    assert server.ask().ok
    done = server.counts()["completed"]
    answer = requests.post(f"{server.url}/stats/reset", headers=page, timeout=PATIENCE_S)
    assert answer.status_code == 403
    assert "--cors-allow-origin" in answer.json()["error"]
    assert server.counts()["completed"] == done > 0


def upload(server: Server, headers: dict[str, str]) -> requests.Response:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    return requests.post(
        f"{server.url}/v1/files",
        files={"file": ("in.jsonl", json.dumps(line).encode())},
        data={"purpose": "batch"},
        headers=headers,
        timeout=PATIENCE_S,
    )


def stored(server: Server) -> list[Any]:
    listed = requests.get(f"{server.url}/v1/files", timeout=PATIENCE_S).json()["data"]
    return [one["id"] for one in listed]


def test_a_form_of_another_page_stores_no_file_and_one_of_our_own_does(server: Server) -> None:
    before = stored(server)
    for page in PAGES:
        refused = upload(server, page)
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "permission_error"
    assert stored(server) == before
    own: list[dict[str, str]] = [
        {"Origin": server.url},
        {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {},
    ]
    files = [upload(server, headers).json()["id"] for headers in own]
    assert set(stored(server)) == {*before, *files}
    for file in files:
        assert requests.delete(f"{server.url}/v1/files/{file}", timeout=PATIENCE_S).ok


def test_clients_that_are_no_browsers_work_under_the_name_localhost(
    server: Server, tmp_path: Path
) -> None:
    port = server.config.port
    url = f"http://localhost:{port}"
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert client.completions.create(model="embedded", prompt="a", max_tokens=2).choices
        file = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
        client.files.delete(file.id)
    assert isinstance(InferenceClient(url).text_generation("a", max_new_tokens=2), str)
    if (curl := shutil.which("curl")) is not None:
        path = tmp_path / "in.jsonl"
        path.write_text("{}\n")
        form = ["-F", "purpose=batch", "-F", f"file=@{path}"]
        done = subprocess.run(
            [curl, "-s", *form, f"{url}/v1/files"], capture_output=True, timeout=PATIENCE_S
        )
        assert requests.delete(
            f"{url}/v1/files/{json.loads(done.stdout)['id']}", timeout=PATIENCE_S
        ).ok
