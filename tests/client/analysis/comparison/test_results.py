"""What a comparison says of a server that it left out."""

from __future__ import annotations

from client.analysis.comparison.results import Loss


def test_the_last_line_of_the_log_says_at_once_what_was_wrong() -> None:
    reason = "it ended; the end of its log:\nloading\n--policy is 'vcc'; allowed: vtc"
    assert Loss("it", "before the first run", reason).headline == (
        "it failed before the first run: it ended; the end of its log: --policy is 'vcc'; "
        "allowed: vtc"
    )
