"""When shards are restarted."""

from __future__ import annotations

from itertools import accumulate

from model_server.group import FIRST_PAUSE_S, MOST_PAUSE_S, pause_after


def test_pauses_grow_while_starts_fail_and_begin_again_once_a_shard_was_ready() -> None:
    pauses = list(accumulate([False] * 20, pause_after, initial=FIRST_PAUSE_S))
    assert pauses[1] == 2 * FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_PAUSE_S
    assert pause_after(MOST_PAUSE_S, was_ready=True) == FIRST_PAUSE_S
