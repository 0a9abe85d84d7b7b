"""Pages of other origins, and addresses in a link: in a real browser."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from playwright.sync_api import Page

from tests.support.hash_app import STEP_S
from tests.support.process import PATIENCE_S, Server, serving
from tests.watch.conftest import EVIL

KEY = "sesame"


class Stranger:
    """A server that any page may read, and what it receives: (method, path, headers)."""

    def __init__(self) -> None:
        self.received: queue.Queue[tuple[str, str, dict[str, str]]] = queue.Queue()
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                received.put((self.command, self.path, dict(self.headers)))
                self.send_response(200)
                asked = self.headers.get("Access-Control-Request-Headers", "")
                for name in ("Access-Control-Allow-Origin", "Access-Control-Allow-Headers"):
                    self.send_header(name, "*" if name.endswith("Origin") else asked)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_OPTIONS = do_POST = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    stranger = Stranger()
    yield stranger
    stranger.close()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without a key."""
    with serving(tmp_path_factory.mktemp("bare"), hash_model={STEP_S: 0.001}) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("guarded"), api_key=KEY) as server:
        yield server


def test_a_name_that_resolves_to_this_machine_reads_nothing(
    strict_page: Page, bare: Server
) -> None:
    for path in ("/stats", "/v1/files", "/watch"):
        assert bare.url.startswith("http://127.0.0.1")
        answer = strict_page.goto(f"http://{EVIL}:{bare.config.port}{path}")
        assert answer is not None
        assert answer.status == 403
        answer = strict_page.goto(f"http://localhost:{bare.config.port}{path}")
        assert answer is not None
        assert answer.status == 200


SIMPLE = """async (server) => {
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", new Blob(["{}"]), "in.jsonl");
    const ask = (path, body) => fetch(server + path, { method: "POST", mode: "no-cors", body });
    await Promise.all([ask("/v1/files", form), ask("/stats/reset", "")]);
}"""


def test_a_page_of_another_origin_changes_nothing_and_the_servers_own_does(
    strict_page: Page, bare: Server, stranger: Stranger
) -> None:
    """Requests that need no preflight: the browser sends them, whatever the server allows."""

    def stored() -> int:
        return len(requests.get(f"{bare.url}/v1/files", timeout=PATIENCE_S).json()["data"])

    assert bare.ask().ok
    before = bare.counts()["completed"], stored()
    for host in (EVIL, "127.0.0.1", "localhost"):
        strict_page.goto(f"http://{host}:{stranger.port}/")
        strict_page.evaluate(SIMPLE, bare.url)
    assert (bare.counts()["completed"], stored()) == before
    strict_page.goto(f"{bare.url}/watch")
    strict_page.evaluate(SIMPLE, bare.url)
    assert (bare.counts()["completed"], stored()) == (0, before[1] + 1)


def test_the_page_asks_before_it_contacts_another_server_and_keeps_its_key_from_it(
    strict_page: Page, guarded: Server, stranger: Stranger
) -> None:
    strict_page.goto(f"{guarded.url}/watch#live")
    strict_page.fill("#key", KEY)
    strict_page.press("#key", "Enter")
    strict_page.wait_for_selector("#state.ok")
    wrong = ["http://a:99999", "ftp://a"]
    named = ",".join([guarded.url, stranger.url, *wrong])
    link = f"{guarded.url}/watch?with={named}#measured"
    strict_page.goto("about:blank")
    strict_page.goto(link)
    strict_page.wait_for_selector("#state.ok")  # what the page does by itself is done
    assert [*stranger.received.queue] == []
    assert strict_page.locator("#others code").all_inner_texts() == [stranger.url, *wrong]
    strict_page.click("#others button")
    received = [stranger.received.get(timeout=PATIENCE_S)]
    assert received[0][:2] == ("GET", "/watch/events")
    assert "Authorization" not in received[0][2]
    # a key that is typed for it is sent to it, and to no other
    strict_page.goto("about:blank")
    strict_page.goto(link)
    strict_page.fill("#others input", "for-the-stranger")
    strict_page.click("#others button")
    while "Authorization" not in received[-1][2]:
        received.append(stranger.received.get(timeout=PATIENCE_S))
    assert received[-1][2]["Authorization"] == "Bearer for-the-stranger"
    while not stranger.received.empty():
        received.append(stranger.received.get())
    assert KEY not in str(received)
    strict_page.wait_for_selector("#state.ok")  # its own server still gets its own
    strict_page.select_option("#modes-source", "servers")
    strict_page.wait_for_selector(
        "#others:not([hidden])"
    )  # it asks again, since the stranger has failed
    assert stranger.url in strict_page.inner_text("#verdict")


def test_the_page_can_contact_only_its_own_server_and_those_of_its_address(
    strict_page: Page, guarded: Server, stranger: Stranger
) -> None:
    contact = f"fetch('{stranger.url}/x').then(() => 'sent', () => 'blocked')"
    strict_page.goto(f"{guarded.url}/watch")
    assert strict_page.evaluate(contact) == "blocked"
    strict_page.goto(f"{guarded.url}/watch/page/index.html?with={stranger.url}")
    assert strict_page.evaluate(contact) == "blocked"
    assert stranger.received.empty()
    strict_page.goto(f"{guarded.url}/watch?with={stranger.url}")
    assert strict_page.evaluate(contact) == "sent"


@pytest.mark.parametrize(
    ("named", "allowed"),
    [
        ("", ""),
        ("http://a:1,https://b.example", " http://a:1 https://b.example"),
        ("https://a;script-src *", ""),
        ("https://a script-src 'unsafe-inline'", ""),
        ("*", ""),
        ("https://*", ""),
        ("https:", ""),
        ("data:,http://a/b,http://u@a,http://a\n", ""),
    ],
)
def test_an_address_adds_nothing_else_to_the_pages_policy(
    guarded: Server, named: str, allowed: str
) -> None:
    answer = requests.get(f"{guarded.url}/watch", params={"with": named}, timeout=PATIENCE_S)
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert policy[:2] == ["default-src 'self'", f"connect-src 'self'{allowed}"]
    assert "frame-ancestors 'none'" in policy
