"""The pages: short, reached from the README, without dead links, and the walk through the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("*.md", "docs/*.md", "*/README.md", "learn/[0-9]*.md")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))
LINK = re.compile(r"\]\(([^)\s#]+)?(?:#([^)\s]+))?\)")
FUNCTION = re.compile(r"\[`([^`]+)`, `([^`]+)`\]\(\.\./([^#)]+)\)")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        if path.startswith("http"):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_every_page_is_in_the_readmes_table_of_contents() -> None:
    linked = {path for path, _ in LINK.findall((ROOT / "README.md").read_text())}
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in linked, page.name


def test_there_are_at_most_20_pages_and_the_readme_is_short() -> None:
    assert len([*(ROOT / "docs").glob("*.md")]) <= 20
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_the_walk_of_one_token_stops_at_functions_that_exist() -> None:
    stops = FUNCTION.findall((ROOT / "docs" / "one-token.md").read_text())
    assert stops
    for shown, name, path in stops:
        assert shown == path
        assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
