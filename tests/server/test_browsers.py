"""Requests that web pages of others send, over real sockets, and the clients that look alike."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import openai
import pytest
import requests
from huggingface_hub import InferenceClient

from tests.server.process import PATIENCE_S, Server, connected

EVIL = "evil.example"


def raw(server: Server, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and the rest of the response to a head, which gets a length and a last line."""
    with connected(server) as client:
        end = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode() + end.encode() + body)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    return int(received.split(b" ", 2)[1]), received.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /info HTTP/1.0\r\n", 200),
        ("GET /info HTTP/1.1\r\nHost: LOCALHOST.:1\r\n", 200),
        ("GET /info HTTP/1.1\r\nHost: [::1]:8500\r\n", 200),
        (f"GET http://{EVIL}/info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET http://localhost/info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET /info HTTP/1.1\r\nHost: localhost\r\nHost: {EVIL}\r\n", 422),
        (f"GET /info HTTP/1.1\r\nHost: {EVIL}\r\nHost: localhost\r\n", 422),
        (f"HEAD /info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"OPTIONS /info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET /info HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Host: {EVIL}\r\n", 200),
        (f"GET /info HTTP/1.1\r\nHost: {EVIL}\r\nX-Forwarded-Host: localhost\r\n", 403),
    ],
)
def test_the_host_of_a_request_is_its_host_field(server: Server, head: str, status: int) -> None:
    assert raw(server, head)[0] == status


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
