"""Two views of the live page in a browser: the pictures of docs/watch.md.

    python -m benchmarks.watching.picture      # docs/img/watch-modes.png, watch-live.png

Needs Debian's `chromium`. The first picture shows the recorded runs of the three modes, halfway.
The second shows two bursts of 60 requests at a server with eight batch slots, which has just served
20 requests, as soon as the figures show that all slots are taken.
"""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from benchmarks.harness.browser import browser
from benchmarks.harness.picture import command
from benchmarks.harness.servers import server

LIMIT = 8
WIDTH, HEIGHT = 1280, 800
ZOOMS = 2  # from six seconds to two and a half
BOTTOM = "document.querySelector('main:not([hidden])').getBoundingClientRect().bottom"
HALFWAY = """() => {
    const slider = document.querySelector('#modes-at');
    slider.value = 450;
    slider.dispatchEvent(new Event('input'));
}"""


def draw(folder: Path) -> None:
    with browser() as opened, server("embedded", "float32", LIMIT) as url:
        for tab, show in (("modes", modes), ("live", live)):
            page = opened.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", bypass_csp=True
            )
            page.goto(f"{url}/watch#{tab}")
            page.wait_for_function("window.watch && window.watch.store.hello")
            show(page)
            save(page, folder / f"watch-{tab}.png")


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


def save(page: Page, path: Path) -> None:
    """The page down to its last visible line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bottom = page.evaluate(BOTTOM)
    page.screenshot(
        path=path, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom + 16}
    )
    print(path)


def main() -> None:
    command(__doc__, draw)


if __name__ == "__main__":
    main()
