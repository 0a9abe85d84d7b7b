"""A block table, and admission by memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from engine.inference import Inference
from generate.modes import MODES
from learn import require
from learn.hash_model import HashModel
from learn.lesson import FOUR, Answers, Lesson, product
from learn.measure import ROWS, Contestant, in_turn, mixed, stage
from learn.play import Stage, hashed, play
from seams import Sampling

PLACES = 4  # of a whole context each: the memory of the measurement
CONTEXT = 1024  # the longest sequence of the embedded model


def queue(*sizes: tuple[int, int]) -> Sequence[Inference]:
    """Requests with so many prompt tokens, and so many to generate."""
    requests = [Inference([0] * known, more, Sampling(), 0.0) for known, more in sizes]
    for id, request in enumerate(requests):
        request.id = id
    return requests


def expect(found: Any, right: int, what: str) -> None:
    said = "a list" if isinstance(found, list) else found  # its members would not be readable
    require(found == right, f"{what} is {said}, and should be {right}")


def counts(answers: Answers) -> None:
    memory = answers.KVBlocks(8, 16)
    for tokens, blocks in ((1, 1), (16, 1), (17, 2), (33, 3)):
        expect(memory.blocks_of(tokens), blocks, f"with blocks of 16, blocks_of({tokens})")
    request = queue((10, 39))[0]
    what = "with blocks of 16, `admission` of a request with"
    expect(memory.admission(request), 4, f"{what} 10 tokens and 39 to come")
    request.known += 20
    expect(memory.admission(request), 4, f"{what} 30 tokens and 19 to come, of 39 in all,")


def gives_and_takes(answers: Answers) -> None:
    memory: Any = answers.KVBlocks(8, 4)
    first, second, third = queue((3, 4), (5, 4), (16, 16))
    memory.open([first, second])
    expect(memory.used, 5, "after opening requests of 2 and of 3 blocks, the number of used blocks")
    memory.release(first)
    memory.release(second)
    expect(memory.used, 0, "after their release, the number of used blocks")
    expect(len(memory.grow([])), 0, "after their release, the number of requests in the table")
    memory.open([third])
    expect(memory.used, 8, "after opening a request of 8 blocks, the number of used blocks")


def fits_together(answers: Answers) -> None:
    memory = answers.KVBlocks(8, 4)
    waiting = queue((4, 8), (4, 8), (4, 8), (1, 1))
    expect(memory.fit(waiting), 2, "with 8 free blocks, `fit` of requests of 3, 3, 3 and 1 blocks")
    memory.open(waiting[:1])
    expect(memory.fit(waiting[1:]), 1, "with 5 free blocks, `fit` of requests of 3, 3 and 1 blocks")


def serves(answers: Answers) -> None:
    for size in (1, 4, 16):
        small = hashed(256 // size, size, ledger=answers.KVBlocks)
        play(mixed(40), product("dynamic"), small, rows=8)


def measure(answers: Answers) -> Mapping[str, float]:
    """The same memory as places of a whole context, and as blocks."""

    def table() -> Stage:
        on = stage()
        size = on.model.block_tokens
        return replace(on, ledger=answers.KVBlocks(PLACES * CONTEXT // size, size))

    blocks, whole = in_turn(
        mixed(64),
        Contestant(lambda: product("dynamic"), table, rows=ROWS[-1]),
        Contestant(lambda: product("dynamic"), rows=PLACES),
    )
    return {
        "requests at once, a place for the longest each": max(map(len, whole.rows())),
        f"requests at once, in blocks (at most {ROWS[-1]})": max(map(len, blocks.rows())),
        "tokens a second, a place for the longest each": whole.tokens_per_s,
        "tokens a second, in blocks": blocks.tokens_per_s,
    }


def show() -> str:
    on = hashed(8, 4)
    seen = play(FOUR, product("dynamic"), on)
    lines = [
        f"{number:9}  {' '.join('.' if owner is None else 'ABCD'[owner] for owner in owners)}"
        for number, owners in enumerate(cast(HashModel, on.model).owners, 1)
    ]
    return "\n".join([seen.picture(), "iteration  owners of the blocks 0 to 7", *lines])


LESSON = Lesson(
    title="Blocks of memory",
    ours={"KVBlocks": MODES["dynamic"].ledger},
    solution="`Ledger` in engine/blocks.py",
    checks={
        "a request has blocks for its prompt and its answer": counts,
        "blocks are given and come back": gives_and_takes,
        "requests fit as far as their blocks do, together": fits_together,
        "all requests get their tokens from a small memory": serves,
    },
    measure=measure,
    show=show,
)
