"""The first screens of recorded reports: pictures of docs/comparing.md and docs/measuring.md.

    python -m benchmarks.client.screens      # docs/img/*-report.png, measuring-run.png

Needs Debian's `chromium`. `python -m client.report FOLDER` renders a report again beforehand.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.browser import browser
from benchmarks.harness.picture import command
from client.load.machine import ROOT

# picture: recording, width and height in pixels
SCREENS = {
    "comparing-report": ("embedded", 1100, 742),
    "measuring-run": ("run", 1000, 1040),
}


def draw(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as opened:
        for name, (recording, width, height) in SCREENS.items():
            page = opened.new_page(
                viewport={"width": width, "height": height}, color_scheme="light"
            )
            page.goto((ROOT / f"results/reference-{recording}/report.html").as_uri())
            page.screenshot(path=folder / f"{name}.png")
            print(folder / f"{name}.png")


def main() -> None:
    command(__doc__, draw)


if __name__ == "__main__":
    main()
