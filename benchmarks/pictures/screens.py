"""Pages in a browser: the recorded comparison's report, and two views of the live page.

    python -m benchmarks.pictures.screens   # docs/img/comparing-report.png, watch-*.png

Needs Debian's `chromium`. `python -m client.report FOLDER` renders a report again beforehand. The
first view of the live page shows the recorded runs of the three modes, halfway; the second two
bursts of 60 requests at a server with eight batch slots, which has just served 20 requests, as soon
as the figures show that all slots are taken.
"""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.harness.servers import server
from client.load.machine import ROOT

REPORT = "results/reference-embedded/report.html"
LIMIT = 8
WIDTH, HEIGHT = 1280, 800
ZOOMS = 2  # from six seconds to two and a half
BOTTOM = "document.querySelector('main:not([hidden])').getBoundingClientRect().bottom"
HALFWAY = """() => {
    const slider = document.querySelector('#modes-at');
    slider.value = 450;
    slider.dispatchEvent(new Event('input'));
}"""


def report(opened: Browser, folder: Path) -> None:
    page = opened.new_page(viewport={"width": 1100, "height": 742}, color_scheme="light")
    page.goto((ROOT / REPORT).as_uri())
    page.screenshot(path=folder / "comparing-report.png")


def live_page(opened: Browser, folder: Path) -> None:
    with server("embedded", "float32", LIMIT) as url:
        for tab, show in (("modes", modes), ("live", live)):
            page = opened.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", bypass_csp=True
            )
            page.goto(f"{url}/watch#{tab}")
            page.wait_for_function("window.watch && window.watch.store.hello")
            show(page)
            bottom = page.evaluate(BOTTOM)  # of its last visible line
            page.screenshot(
                path=folder / f"watch-{tab}.png", full_page=True,
                clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom + 16},
            )  # fmt: skip


def modes(page: Page) -> None:
    page.wait_for_function("document.querySelector('#verdict').textContent !== ''")
    page.evaluate(HALFWAY)


def live(page: Page) -> None:
    for _ in range(ZOOMS):
        page.keyboard.press("+")
    page.click("#twenty")
    page.wait_for_function("document.querySelector('#f-done').textContent === '20'")
    page.click("#burst", click_count=2)
    page.wait_for_function(f"document.querySelector('#f-running').textContent === '{LIMIT}'")
    page.evaluate("document.activeElement.blur()")


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="default: %(default)s")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("pictures of pages need chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # no sandbox: containers run this as root
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        report(opened, folder)
        live_page(opened, folder)
        opened.close()


if __name__ == "__main__":
    main()
