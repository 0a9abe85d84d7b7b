"""The page in a real browser: what it shows is what the server says of itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, Route

from tests.support.hash_app import ENDLESS, STEP_S
from tests.support.process import PATIENCE_S, ROOT, Server, serving

PAGE_BYTES = 150 * 1024


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("watch")
    model = {STEP_S: 0.004, ENDLESS: 1}
    options: dict[str, Any] = {"max_batch_size": 8, "watch_text": True, "speculate": 3}
    with serving(folder, hash_model=model, **options) as server:
        yield server


def opened(page: Page, server: Server, tab: str) -> None:
    page.goto(f"{server.url}/watch#{tab}")
    page.wait_for_function("window.watch && window.watch.store.hello")


def asked(server: Server, count: int, **fields: Any) -> None:
    """So many more requests have ended."""
    done = server.counts()["completed"]
    for _ in range(count):
        server.ask(**fields)
    server.reaches(completed=done + count)


ENDED = "[...watch.store.requests.values()].filter(r => r.end !== null)"


def told(page: Page, what: str) -> Any:
    return page.evaluate(f"watch.store.{what}")


def test_the_tokens_that_were_drawn_are_those_of_stats(page: Page, watched: Server) -> None:
    opened(page, watched, "live")
    done = watched.counts()["completed"]
    page.click("#twenty")
    watched.reaches(completed=done + 20)
    stats = watched.stats()
    generated = stats["total-tokens-handled"]
    page.wait_for_function(f"watch.store.generated === {generated}")
    assert told(page, "runTokens") == told(page, "computed")
    by_request = page.evaluate(f"{ENDED}.reduce((sum, r) => sum + r.generated, 0)")
    assert by_request == generated
    # by the runs alone: a prompt, whole or in chunks, gives a token, and so does each decode
    runs = page.evaluate("watch.store.slots.flat().map(r => [r.request, r.kind, r.tokens])")
    prompts = {request for request, kind, _ in runs if kind in (0, 1)}
    assert len(prompts) + sum(tokens for _, kind, tokens in runs if kind == 2) == generated


def test_it_pauses_and_shows_each_iteration_with_the_drafts_of_its_rows(
    page: Page, watched: Server
) -> None:
    opened(page, watched, "live")
    asked(watched, 1, num_tokens=60)
    drafts = watched.stats()["drafts"]
    summed = "watch.store.slots.flat().reduce((sum, run) => sum + run.{}, 0)"
    for kind, count in drafts.items():
        assert count > 0
        page.wait_for_function(f"{summed.format(kind)} === {count}")
    page.click("#canvas")  # which gets the focus
    for follows in (False, True):
        page.keyboard.press(" ")
        assert page.evaluate("watch.view.follows") is follows
    page.keyboard.press("Enter")  # shows the newest iteration, and then those before it
    newest = page.evaluate("watch.tracks.iteration")
    for back in range(1, 60):
        assert "iteration" in page.inner_text("#detail")
        page.keyboard.press(",")
        assert page.evaluate("watch.tracks.iteration") == newest - back
        assert page.locator("#detail li").count() >= 1
        if " drafts accepted" in page.inner_text("#detail"):
            break
    assert " drafts accepted" in page.inner_text("#detail")
    page.keyboard.press("End")
    assert page.evaluate("watch.view.follows") is True


def test_the_three_modes_play_to_their_end_and_say_what_they_show(
    page: Page, watched: Server
) -> None:
    opened(page, watched, "modes")
    page.wait_for_selector(".panel")
    page.select_option("#modes-speed", "1")
    page.click("#modes-play")
    page.wait_for_function("watch.modes.t > 0.1")
    assert page.inner_text("#verdict") == ""
    page.evaluate("watch.modes.t = watch.modes.end - 0.01")
    page.wait_for_function("document.querySelector('#verdict').textContent !== ''")
    scores = page.locator(".panel .score").all_inner_texts()
    assert [score.split(" after")[0] for score in scores] == ["20 of 20 completed"] * 3
    assert page.inner_text(".winner h2") == "dynamic"
    assert "with dynamic batching" in page.inner_text("#verdict")


def test_one_server_alone_is_compared_with_no_other(page: Page, watched: Server) -> None:
    page.goto(f"{watched.url}/watch?with={watched.url}#modes")
    page.select_option("#modes-source", "servers")
    page.wait_for_selector(".panel")
    page.wait_for_function("document.querySelector('#verdict').textContent.startsWith('All 20')")
    told = page.inner_text("#verdict")
    assert " with dynamic batching. Half of the requests had" in told
    assert "as fast" not in told


def test_a_text_that_comes_late_stays_away_from_what_was_chosen_since(
    page: Page, watched: Server
) -> None:
    opened(page, watched, "live")
    asked(watched, 2, num_tokens=4)
    page.wait_for_function(f"{ENDED}.length >= 2")
    late, chosen = page.evaluate(f"{ENDED}.slice(-2).map(r => r.id)")
    held: list[Route] = []
    page.route(f"**/watch/text/{late}", lambda route: held.append(route))
    page.evaluate(
        "import('/watch/page/detail.js').then(page => { window.shown = []; window.show = id => "
        "void shown.push(page.showRequest(watch.store, watch.store.requests.get(id), '')) })"
    )
    with page.expect_request(f"**/watch/text/{late}"):
        page.evaluate(f"show({late})")
    page.evaluate(f"show({chosen})")
    page.wait_for_selector("#detail pre")
    shown = page.inner_text("#detail")
    assert f"request {chosen}:" in shown
    held[0].continue_()
    page.evaluate("Promise.all(shown)")
    assert page.inner_text("#detail") == shown


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def pausing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a chat template, and a policy that pauses residents."""
    folder = tmp_path_factory.mktemp("pausing")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    options: dict[str, Any] = {"max_batch_size": 2, "policy": "mlfq", "watch_text": True}
    model = {STEP_S: 0.02, ENDLESS: 1}
    with serving(folder, hash_model=model, model=str(folder), **options) as server:
        yield server


def test_a_typed_prompt_reaches_the_model_in_its_chat_template_if_it_has_one(
    page: Page, watched: Server, pausing: Server
) -> None:
    for server, known, between in (
        (watched, "Why?", ""),
        (pausing, "[user]Why?[assistant]", "\n"),
    ):
        before = server.counts()["completed"]
        opened(page, server, "live")
        page.fill("#prompt", "Why?")
        page.click("#prompt-form button")
        page.wait_for_function(f"{ENDED}.length > {before}")
        number = page.evaluate("Math.max(...watch.store.requests.keys())")
        text = requests.get(f"{server.url}/watch/text/{number}", timeout=PATIENCE_S).json()
        assert text["prompt"] == known
        page.wait_for_function(
            "shown => document.querySelector('#answer').textContent === shown",
            arg=f"Why?{between}{text['answer']}",
        )


def test_residents_that_pause_have_rows_beyond_the_batch_limit(page: Page, pausing: Server) -> None:
    opened(page, pausing, "live")
    assert page.inner_text("#what").endswith("up to 2 rows an iteration")
    wanted = [{"prompt": "x", "num_tokens": 100, "after_s": 0} for _ in range(6)]
    page.evaluate("wanted => watch.room.send(wanted)", wanted)
    page.wait_for_function("watch.tracks.slots > watch.tracks.limit")
    assert page.evaluate("watch.tracks.limit") == 2


def test_the_page_is_small_fits_the_screen_and_loads_nothing_from_elsewhere(
    page: Page, watched: Server
) -> None:
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    for tab in ("live", "modes"):
        opened(page, watched, tab)
        page.reload()
        page.wait_for_selector(".panel" if tab == "modes" else "#canvas")
        for width in (390, 800, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            outside = page.evaluate(
                "[...document.querySelectorAll('button, input, select, canvas, dd')]"
                ".filter(e => e.offsetParent).map(e => [e.id, e.getBoundingClientRect()])"
                ".filter(([, box]) => box.left < 0 || box.right > innerWidth + 0.5)"
                ".map(([id]) => id)"
            )
            assert outside == []
    assert all(url.startswith((watched.url, "data:")) for url in loaded)
    files = [path for path in (ROOT / "watch" / "page").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= PAGE_BYTES


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_ten_minutes_of_load_take_no_more_memory(page: Page, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_batch_size": 512, "hash_model": {STEP_S: 0.005, ENDLESS: 1}}
    with serving(tmp_path, **options) as server:
        opened(page, server, "live")
        page.evaluate("watch.room.rate = 40")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def heap_bytes() -> float:
            session.send("HeapProfiler.collectGarbage")
            metrics = session.send("Performance.getMetrics")["metrics"]
            heap: float = next(m["value"] for m in metrics if m["name"] == "JSHeapUsedSize")
            return heap

        end_s = time.monotonic() + 600  # of load
        while told(page, "next") < 20_000:  # until the page's ring is full
            page.wait_for_timeout(1000)
        full = heap_bytes()
        while time.monotonic() < end_s:
            page.wait_for_timeout(1000)
        now = heap_bytes()
        print(f"heap: {full / 1e6:.1f} MB when the ring was full, {now / 1e6:.1f} MB at the end")
        assert now < 1.5 * full + 2e6


def test_rows_are_coloured_by_user_program_or_priority(page: Page, watched: Server) -> None:
    opened(page, watched, "live")
    for k in range(4):
        user, program = f"user {k % 2}", "one"
        asked(watched, 1, num_tokens=4, user=user, program=program, priority=5 + k)
    # others of this server may still be running; a program is one of its user
    newest = "[...watch.store.requests.values()].filter((r) => r.priority >= 5)"
    page.wait_for_function(f"{newest}.filter((r) => r.end && r.program !== null).length === 4")
    page.select_option("#colour", "user")
    assert page.is_hidden("#live-legend")
    for by, colours in (("user", 2), ("program", 2), ("priority", 4)):
        values = (
            f"new Set({newest}.map((r) => watch.tracks.groups.colour(r.{by}, {{}}, false))).size"
        )
        assert page.evaluate(values) == colours
    page.select_option("#colour", "kind")
    assert page.is_visible("#live-legend")
