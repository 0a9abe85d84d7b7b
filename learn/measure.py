"""Measures on the model that ships with the project, on the reader's machine.

What is compared is played in turn, several times, and the fastest play of each counts.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from generate.modes import MODES, ModeName
from learn.lesson import product
from learn.play import Account, Ask, Stage, WorkClock, play
from seams import DECODE, Model, Policy

ROUNDS = 3
ROWS = (1, 2, 4, 8, 16, 32)  # of the iterations that lesson 1 times
LIMIT = 8  # rows of an iteration in the other lessons
OUTPUTS = (4, 6, 8, 10, 12, 16, 48, 64)  # tokens that are asked for, in turn


@cache
def embedded(mode: ModeName) -> Model:
    """Torch is imported here, so that all else starts at once."""
    from model import LoadOptions, load_model

    most = ROWS[-1]
    return load_model(
        LoadOptions(mode, "embedded", device="cpu", dtype="auto", seed=0, max_batch_size=most)
    )


def stage(mode: ModeName = "dynamic") -> Stage:
    """With the embedded model, and the memory and the layout of the mode."""
    model, of_mode = embedded(mode), MODES[mode]
    ledger = of_mode.ledger(model.num_blocks, model.block_tokens)
    return Stage(model, ledger, WorkClock(), of_mode.lay_out)


def prompt(seed: int, length: int) -> Sequence[int]:
    """Which tokens they are does not change the time of an iteration."""
    draw = random.Random(seed)
    return [draw.randrange(4000) for _ in range(length)]


def mixed(count: int, apart_s: float = 0.0) -> Sequence[Ask]:
    """Requests of different lengths."""
    return [
        Ask(prompt(n, 8 + 5 * (n % 7)), OUTPUTS[n * 5 % len(OUTPUTS)], n * apart_s)
        for n in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One of those that are compared."""

    policy: Callable[[], Policy]
    stage: Callable[[], Stage] = stage
    rows: int = LIMIT


def in_turn(asks: Sequence[Ask], *sides: Contestant) -> Sequence[Account]:
    """The fastest play of each side."""
    rounds = [
        [play(asks, side.policy(), side.stage(), rows=side.rows) for side in sides]
        for _ in range(ROUNDS)
    ]
    return [max(plays, key=lambda seen: seen.tokens_per_s) for plays in zip(*rounds, strict=True)]


def decode_ms(rows: int) -> float:
    """The time of the fastest iteration in which so many requests decode."""
    asks = [Ask(prompt(n, 64), 32) for n in range(rows)]
    seen = play(asks, product("dynamic"), stage(), rows=rows)
    return 1000 * min(r.duration_s for r in seen.iterations if {*r.rows.kinds} == {DECODE})


def machine() -> str:
    """The processor and its cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{(names or ['unknown'])[0]}, {os.cpu_count()} cores"
