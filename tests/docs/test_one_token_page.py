"""The links of docs/one-token.md lead to the functions that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[`([^`]+)`, `([^`]+)`\]\(\.\./([^#)]+)\)")
PAGE = (ROOT / "docs" / "one-token.md").read_text()
STOP = re.compile(r"^\d+\. \*\*[^:]+\*\*: " + LINK.pattern, re.MULTILINE)


def test_the_walk_has_at_most_eight_stops() -> None:
    assert 1 < len(STOP.findall(PAGE)) <= 8


@pytest.mark.parametrize(("shown", "name", "path"), LINK.findall(PAGE))
def test_a_link_leads_to_the_file_of_the_function_that_it_names(
    shown: str, name: str, path: str
) -> None:
    assert shown == path
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
