"""What a single benchmark computes itself: a stall."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.long_prompts import Played


def test_a_stall_is_the_itl_to_that_of_the_same_tokens_without_the_prompts() -> None:
    alone_s = np.linspace(1.0, 2.0, 101)  # contexts grow
    alone_s[70] = 9.0  # something else ran on the machine
    beside_s = np.linspace(1.0, 2.0, 101)
    beside_s[60:90] *= 2.5
    played = Played(beside_s, slice(60, 90), 0.0, 1.0, alone_s)
    assert played.stall() == pytest.approx(2.5, rel=0.02)
