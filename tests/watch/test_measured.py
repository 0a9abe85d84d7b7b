"""The servers of a comparison on one page, while they are measured: in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from client.load.http.target import parse_target
from client.load.workers import Crew
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload
from tests.support.process import free_port, serving

MODES = ("nobatch", "dynamic")
REQUESTS = 12
PANELS = "[...document.querySelectorAll('.panel')]"


def workload(seed: int) -> Workload:
    return make(Recipe(requests=REQUESTS, rate=60.0, seed=seed, output_tokens="uniform:2,20"))


def test_the_page_shows_all_servers_side_by_side_while_they_are_measured(
    page: Page, tmp_path: Path
) -> None:
    """As `./compare.sh --watch` starts them: each may be read by the pages of all."""
    ports = [free_port() for _ in MODES]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    options: dict[str, Any] = {"cors_allow_origin": ",".join(urls), "max_batch_size": 4}
    model = {"step_s": 0.004, "endless": 1}
    with (
        serving(tmp_path, MODES[0], model, port=ports[0], **options),
        serving(tmp_path, MODES[1], model, port=ports[1], **options),
        Crew() as crew,
    ):
        page.goto(f"{urls[0]}/watch?with={','.join(urls)}#measured")
        page.click("#others button")
        page.wait_for_function("window.watch && watch.modes.panels.length === 2")
        page.wait_for_function("watch.modes.measured.servers.every(server => server.greeted)")
        names = f"{PANELS}.map(panel => panel.querySelector('h2').textContent).join()"
        page.wait_for_function(f"{names} === '{','.join(MODES)}'")
        assert "first run begins when" in page.inner_text("#verdict")
        for number, (mode, url) in enumerate(zip(MODES, urls, strict=True)):
            target = parse_target(f"{mode}={url}")
            run = crew.play(workload(1), target, name=f"load1-seed1/{mode}/a")
            assert [o.failure for o in run.outcomes] == [None] * REQUESTS
            page.wait_for_function(
                f"watch.modes.panels[{number}].score.textContent.startsWith("
                f"'{REQUESTS} of {REQUESTS} completed')"
            )
            scores = page.evaluate(f"{PANELS}.map(p => p.querySelector('.score').textContent)")
            assert scores[number + 1 :] == ["has not run this workload yet"] * (1 - number)
            assert "load1-seed1" in page.inner_text("#verdict")
            # the clock of a panel is its run's: the page has what the client measured, and no more
            took_s = page.evaluate(
                f"Math.max(...watch.modes.panels[{number}].run.requests.map(r => r.end))"
                f" - watch.modes.panels[{number}].run.zero"
            )
            assert 0 < took_s <= max(o.end_s or 0.0 for o in run.outcomes)
        # the next workload takes the place of this one, everywhere
        crew.play(workload(2), target, name="load1-seed2/dynamic/b")
        page.wait_for_function(
            "watch.modes.panels[0].score.textContent === 'has not run this workload yet'"
        )
        seen = "watch.modes.measured.servers[1].seen.requests.filter(r => r.end !== null)"
        page.wait_for_function(f"{seen}.length === {REQUESTS}")  # after the last response, perhaps
        asked = [r.output_tokens for r in workload(2).requests]
        assert sorted(page.evaluate(f"{seen}.map(r => r.generated)")) == sorted(asked)
