"""The page in a real browser: what it shows is what the server says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from playwright.sync_api import Page

from tests.support.process import PATIENCE_S, Server, serving

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a chat template, and a policy that pauses residents."""
    folder = tmp_path_factory.mktemp("watch")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    options: dict[str, Any] = {"max_batch_size": 2, "policy": "mlfq", "watch_text": True}
    model = {"step_s": 0.004, "endless": 1}
    with serving(folder, hash_model=model, model=str(folder), speculate=3, **options) as server:
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


def test_it_counts_as_stats_does_pauses_and_shows_each_iteration_with_the_drafts_of_its_rows(
    page: Page, watched: Server
) -> None:
    opened(page, watched, "live")
    done = watched.counts()["completed"]
    page.click("#twenty")
    watched.reaches(completed=done + 20)
    asked(watched, 1, num_tokens=60)
    stats = watched.stats()
    page.wait_for_function(f"watch.store.generated === {stats['total-tokens-handled']}")
    summed = "watch.store.slots.flat().reduce((sum, run) => sum + run.{}, 0)"
    for kind, count in stats["drafts"].items():
        assert count > 0
        page.wait_for_function(f"{summed.format(kind)} === {count}")
    told = page.locator("#live-legend span:visible").all_inner_texts()
    assert "nobody has the slot" in told
    assert not {"preempted: lost its slot", "done, but its row is still computed"} & {*told}
    page.click("#canvas")  # which gets the focus
    for follows in (False, True):
        page.keyboard.press(" ")
        assert page.evaluate("watch.view.follows") is follows
    page.keyboard.press("Enter")  # shows the newest iteration, and then those before it
    newest, back = page.evaluate("watch.tracks.iteration"), 0
    while " drafts accepted" not in page.inner_text("#detail"):
        page.keyboard.press(",")
        back += 1
        assert page.evaluate("watch.tracks.iteration") == newest - back > newest - 60
    assert page.locator("#detail li").count() >= 1
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


def test_a_typed_prompt_reaches_the_model_in_its_chat_template(page: Page, watched: Server) -> None:
    opened(page, watched, "live")
    before = watched.counts()["completed"]
    page.fill("#prompt", "Why?")
    page.click("#prompt-form button")
    page.wait_for_function(f"{ENDED}.length > {before}")
    number = page.evaluate("Math.max(...watch.store.requests.keys())")
    text = requests.get(f"{watched.url}/watch/text/{number}", timeout=PATIENCE_S).json()
    assert text["prompt"] == "[user]Why?[assistant]"
    page.wait_for_function(
        "shown => document.querySelector('#answer').textContent === shown",
        arg=f"Why?\n{text['answer']}",
    )
