"""Pages of other origins, and addresses in a link: in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import requests
from playwright.sync_api import Page

from tests.support.process import PATIENCE_S, Server, eventually, shared
from tests.support.upstream import ScriptedUpstream
from tests.watch.conftest import EVIL, KEY


@pytest.fixture
def stranger() -> Iterator[ScriptedUpstream]:
    """A server that any page may read, and what it receives."""
    allowed = {f"Access-Control-Allow-{name}": "*" for name in ("Origin", "Methods")}
    allowed["Access-Control-Allow-Headers"] = "authorization"
    headers = {"Content-Type": "text/html", **allowed}
    with closing(ScriptedUpstream(headers=headers, raw="").start()) as stranger:
        yield stranger


bare = shared(hash_model={"step_s": 0.001})  # without a key


SIMPLE = """async (server) => {
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", new Blob(["{}"]), "in.jsonl");
    const ask = (path, body) => fetch(server + path, { method: "POST", mode: "no-cors", body });
    await Promise.all([ask("/v1/files", form), ask("/stats/reset", "")]);
}"""


def test_a_page_of_another_origin_changes_nothing_and_the_servers_own_does(
    strict_page: Page, bare: Server, stranger: ScriptedUpstream
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
    strict_page: Page, locked: Server, stranger: ScriptedUpstream
) -> None:
    strict_page.goto(f"{locked.url}/watch#live")
    strict_page.fill("#key", KEY)
    strict_page.press("#key", "Enter")
    strict_page.wait_for_selector("#state.ok")
    wrong = ["http://a:99999", "ftp://a"]
    named = ",".join([locked.url, stranger.url, *wrong])
    link = f"{locked.url}/watch?with={named}#measured"
    strict_page.goto("about:blank")
    strict_page.goto(link)
    strict_page.wait_for_selector("#state.ok")  # what the page does by itself is done
    assert stranger.paths == []
    assert strict_page.locator("#others code").all_inner_texts() == [stranger.url, *wrong]
    strict_page.click("#others button")
    eventually(lambda: "/watch/events" in stranger.paths, "the stranger to be asked")
    assert not any("authorization" in headers for headers in stranger.headers)
    # a key that is typed for it is sent to it, and to no other
    strict_page.goto("about:blank")
    strict_page.goto(link)
    strict_page.fill("#others input", "for-the-stranger")
    strict_page.click("#others button")
    sent = "Bearer for-the-stranger"
    eventually(lambda: stranger.headers[-1].get("authorization") == sent, "its own key")
    assert KEY not in str((stranger.headers, stranger.paths, stranger.bodies))
    strict_page.wait_for_selector("#state.ok")  # its own server still gets its own


@pytest.mark.parametrize(
    ("named", "allowed"),
    [
        ("http://a:1,https://b.example", " http://a:1 https://b.example"),
        ("https://a;script-src *", ""),
        ("*,https://*,https:", ""),
        ("data:,http://a/b,http://u@a,http://a\n", ""),
    ],
)
def test_an_address_adds_nothing_else_to_the_pages_policy(
    locked: Server, named: str, allowed: str
) -> None:
    answer = requests.get(f"{locked.url}/watch", params={"with": named}, timeout=PATIENCE_S)
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert policy[:2] == ["default-src 'self'", f"connect-src 'self'{allowed}"]
    assert "frame-ancestors 'none'" in policy
