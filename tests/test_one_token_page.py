"""The links of docs/one-token.md lead to the functions that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[`([^`]+)`, `([^`]+)`\]\(\.\./([^#)]+)\)")
STOPS = LINK.findall((ROOT / "docs" / "one-token.md").read_text())


def test_the_walk_has_at_most_eight_stops() -> None:
    assert 1 < len(STOPS) <= 8


@pytest.mark.parametrize(("shown", "name", "path"), STOPS)
def test_a_link_leads_to_the_file_of_the_function_that_it_names(
    shown: str, name: str, path: str
) -> None:
    assert shown == path
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
