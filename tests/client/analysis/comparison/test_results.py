"""What a comparison says of a server that it left out."""

from __future__ import annotations

import pytest

from client.analysis.comparison.results import Loss


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("no response", "it failed before the first run: no response"),
        (
            "it ended; the end of its log:\nloading\n--policy is 'vcc'; allowed: vtc",
            "it failed before the first run: it ended; the end of its log: --policy is 'vcc'; "
            "allowed: vtc",
        ),
    ],
)
def test_the_last_line_of_the_log_says_at_once_what_was_wrong(reason: str, told: str) -> None:
    assert Loss("it", "before the first run", reason).headline == told
