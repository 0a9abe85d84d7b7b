"""Pages in a real browser: Debian's chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


@contextmanager
def browser() -> Iterator[Browser]:
    """Raises RuntimeError if there is no chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("pictures of pages need chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # no sandbox: containers run this as root
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
