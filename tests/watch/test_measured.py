"""The servers of a comparison on one page, while they are measured: in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests
from playwright.sync_api import Page

from client.load.http.target import parse_target
from client.load.servers.system import COMPARED
from client.load.workers import Crew
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload
from tests.support.hash_app import ENDLESS, STEP_S
from tests.support.process import PATIENCE_S, ROOT, Server, environment, free_port, serving

MODES = ("nobatch", "static", "dynamic")
REQUESTS = 12
PANELS = "[...document.querySelectorAll('.panel')]"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """As `./compare.sh --watch` starts them: each may be read by the pages of all."""
    ports = {mode: free_port() for mode in MODES}
    options: dict[str, Any] = {
        "cors_allow_origin": ",".join(f"http://127.0.0.1:{port}" for port in ports.values()),
        "max_batch_size": 4,
        "hash_model": {STEP_S: 0.004, ENDLESS: 1},
    }
    with ExitStack() as stack:
        yield {
            mode: stack.enter_context(
                serving(tmp_path_factory.mktemp(mode), mode, port=ports[mode], **options)
            )
            for mode in MODES
        }


def measured(page: Page, servers: Iterable[Server]) -> None:
    """The page of the first shows all of them."""
    first, *others = everyone = [server.url for server in servers]
    page.goto(f"{first}/watch?with={','.join(everyone)}#measured")
    if others:
        page.click("#others button")
    page.wait_for_function(f"window.watch && watch.modes.panels.length === {len(everyone)}")
    page.wait_for_function("watch.modes.measured.servers.every(server => server.greeted)")


def ask(server: Server, name: str) -> None:
    body, headers = {"prompt": "x", "num_tokens": 2}, {"X-Request-Id": name}
    answer = requests.post(
        f"{server.url}/inference", json=body, headers=headers, timeout=PATIENCE_S
    )
    assert answer.ok


def workload(seed: int) -> Workload:
    return make(Recipe(requests=REQUESTS, rate=60.0, seed=seed, output_tokens="uniform:2,20"))


def shown(page: Page) -> list[str]:
    return page.evaluate(f"{PANELS}.map(p => p.querySelector('.score').textContent)")


def test_the_page_shows_all_servers_side_by_side_while_they_are_measured(
    page: Page, servers: dict[str, Server]
) -> None:
    measured(page, servers.values())
    names = f"{PANELS}.map(panel => panel.querySelector('h2').textContent).join()"
    page.wait_for_function(f"{names} === '{','.join(MODES)}'")
    assert "first run begins when" in page.inner_text("#verdict")
    with Crew() as crew:
        for number, (mode, server) in enumerate(servers.items()):
            target = parse_target(f"{mode}={server.url}")
            run = crew.play(workload(1), target, name=f"load1-seed1/{mode}/a")
            assert [o.failure for o in run.outcomes] == [None] * REQUESTS
            page.wait_for_function(
                f"watch.modes.panels[{number}].score.textContent.startsWith("
                f"'{REQUESTS} of {REQUESTS} completed')"
            )
            later = shown(page)[number + 1 :]
            assert later == ["has not run this workload yet"] * (2 - number)
            assert "load1-seed1" in page.inner_text("#verdict")
            # the clock of a panel is its run's: the page has what the client measured, and no more
            took_s = page.evaluate(f"watch.modes.panels[{number}].run.requests.map(r => r.end)")
            zero_s = page.evaluate(f"watch.modes.panels[{number}].run.zero")
            last_s = max(o.end_s or 0.0 for o in run.outcomes)
            assert 0 < max(took_s) - zero_s <= last_s
        # the next workload takes the place of this one, everywhere
        crew.play(workload(2), target, name="load1-seed2/dynamic/b")
        page.wait_for_function("watch.modes.measured.workload === 'load1-seed2'")
        page.wait_for_function(
            "watch.modes.panels[0].score.textContent === 'has not run this workload yet'"
        )
    ended = "watch.modes.measured.servers[2].seen.requests.filter(r => r.end !== null).length"
    page.wait_for_function(f"{ended} === {REQUESTS}")  # the last frame may follow the last response
    assert page.evaluate("watch.modes.measured.servers.map(s => s.name)") == [*MODES]
    ends = page.evaluate(
        "watch.modes.measured.servers.map(s => s.seen.requests.map(r => r.generated))"
    )
    asked = [r.output_tokens for r in workload(2).requests]
    assert sorted(ends[2]) == sorted(asked), "the tokens that were drawn are those asked for"


def test_a_page_that_was_opened_later_shows_whole_runs_only_and_names_as_they_are(
    page: Page, servers: dict[str, Server]
) -> None:
    server = servers["static"]
    ask(server, "load1-seed3/static/c/7")
    measured(page, [server])
    page.wait_for_function("watch.modes.measured.workload === 'load1-seed3'")
    ask(server, "load1-seed3/static/c/8")
    assert page.evaluate("watch.modes.measured.servers[0].seen.whole") is False
    assert shown(page) == ["has not run this workload yet"]
    for sent, name in (
        ("100%", "100%"), ("a%20b", "a b"), ("%E0%A4%A", "%E0%A4%A"), ("caf%C3%A9", "café"),
    ):  # fmt: skip
        ask(server, f"odd{len(sent)}/{sent}/e/0")
        page.wait_for_function(
            f"watch.modes.measured.workload === 'odd{len(sent)}'"
            f" && {PANELS}[0].textContent.includes('1 of 1 completed')"
        )
        assert page.evaluate(f"{PANELS}[0].querySelector('h2').textContent") == name


@pytest.mark.long
def test_the_address_that_a_comparison_prints_shows_its_servers(page: Page) -> None:
    options = ("--loads", "1", "--seeds", "1", "--numsamples", str(REQUESTS), "--no-control")
    command = [str(ROOT / "compare.sh"), "--watch", "--calibrate-s", "2", *options]
    env = environment(EB_PYTHON=sys.executable)
    with subprocess.Popen(
        command, env=env, cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"http://\S+#measured", line) for line in process.stderr)
            address = next(match.group() for match in found if match is not None)
            page.goto(address)
            page.click("#others button")
            whole = f"{REQUESTS} of {REQUESTS} completed"
            page.wait_for_function(
                f"{PANELS}.filter(p => p.textContent.includes('{whole}')).length"
                f" === {len(COMPARED)}",
                timeout=300_000,
            )
            named = page.evaluate(f"{PANELS}.map(p => p.querySelector('h2').textContent)")
            assert named == [*COMPARED]
        finally:
            process.terminate()
