"""A real browser, without which its tests are skipped, and a server with a key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.process import shared

EVIL = "evil.example"  # the browser resolves it to this machine
KEY = "sesame"


@pytest.fixture(scope="package")  # it occupies the thread's event loop, which others need
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium here: the live page is not tested")
    # no sandbox: containers run tests as root
    args = ["--no-sandbox", f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """One whose content the tests may examine, whatever its policy says."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, bypass_csp=True)
    yield page
    page.close()


@pytest.fixture
def strict_page(browser: Browser) -> Iterator[Page]:
    """One that obeys its policy."""
    page = browser.new_page()
    yield page
    page.close()


locked = shared("session", hash_model={"step_s": 0.002, "endless": 1}, api_key=KEY)
