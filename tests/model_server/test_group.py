"""Which shards one command starts, and when they are restarted."""

from __future__ import annotations

from itertools import accumulate

import pytest

from model_server.config import ServeConfig
from model_server.group import FIRST_PAUSE_S, MOST_PAUSE_S, pause_after
from options import OptionError


def test_pauses_grow_while_starts_fail_and_begin_again_once_a_shard_was_ready() -> None:
    pauses = list(accumulate([False] * 20, pause_after, initial=FIRST_PAUSE_S))
    assert pauses[1] == 2 * FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_PAUSE_S
    assert pause_after(MOST_PAUSE_S, was_ready=True) == FIRST_PAUSE_S


def test_shards_that_start_together_are_not_put_on_one_gpu() -> None:
    words = r"each of --shards \(2\) needs its own GPU; allowed: auto, cpu, cuda"
    with pytest.raises(OptionError, match=words):
        ServeConfig(device="cuda:1", shards=2)
    addresses = ("a:1", "b:1")  # of machines that each have several GPUs
    ServeConfig(device="cuda:1", shards=2, rank=1, addresses=addresses, rendezvous="a:2")
