"""Static batching: a rectangle of rows that runs until its longest request is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from generate.modes import MODES
from learn import require
from learn.lesson import FOUR, Answers, Lesson, product
from learn.measure import LIMIT, Contestant, in_turn, mixed, stage
from learn.play import Ask, hashed, play, watched
from seams import Step

LAY_OUT = MODES["static"].lay_out


def equally_wide(answers: Answers) -> None:
    """The layout alone: three prompts, and a row that is held."""
    steps = [Step(id, 0, n, n > 0, ()) for id, n in enumerate((3, 5, 2, 0))]
    laid = watched(answers.lay_out, [])(steps)
    paddings = [step.padding for step in laid]
    sentence = f"rows of 3, 5, 2 and 0 tokens got the paddings {paddings}"
    require(paddings == [2, 0, 3, 5], f"{sentence}. [2, 0, 3, 5] make all of them 5 wide")


def a_batch_stays(answers: Answers) -> None:
    """Four places: one request too many, and one that arrives late while places are free. The
    longest of each batch needs nine iterations."""
    many = [Ask([n, n], 3 + 2 * n) for n in range(5)]
    late = [Ask([1], 3), Ask([2], 9), Ask([3], 3, at_s=0.002)]
    stays(answers, many, {0, 1, 2, 3})
    stays(answers, late, {0, 1})


def stays(answers: Answers, asks: Sequence[Ask], batch: set[int]) -> None:
    seen = play(asks, answers.WholeBatch(), hashed(lay_out=answers.lay_out))
    for number, rows in enumerate(seen.rows()[:9], 1):
        new, gone = sorted({*rows} - batch), sorted(batch - {*rows})
        sentence = f"the requests {new} join in iteration {number}, and a batch runs"
        require(not new, f"{sentence}. Newcomers wait until nobody is resident")
        require(
            not gone,
            f"the requests {gone} have no row in iteration {number}. A batch takes the first four "
            "that wait; those that are done are held (`hold`), and all retire together",
        )


def serves(answers: Answers) -> None:
    play(mixed(30, 0.001), answers.WholeBatch(), hashed(lay_out=answers.lay_out))


def measure(answers: Answers) -> Mapping[str, float]:
    batched, one = in_turn(
        mixed(48),
        Contestant(answers.WholeBatch, lambda: replace(stage("static"), lay_out=answers.lay_out)),
        Contestant(lambda: product("nobatch"), lambda: stage("nobatch"), rows=1),
    )
    return {
        "tokens a second, one request at a time": one.tokens_per_s,
        f"tokens a second, static batches of {LIMIT}": batched.tokens_per_s,
        "times as many": batched.tokens_per_s / one.tokens_per_s,
        "% of what was computed is padding": batched.padding,
    }


def show() -> str:
    seen = play(FOUR, product("static"), hashed(lay_out=LAY_OUT), rows=3)
    return f"{seen.picture()}\n{seen.padding:.0f} % of what was computed is padding"


LESSON = Lesson(
    title="Static batching",
    ours={"WholeBatch": lambda: product("static"), "lay_out": LAY_OUT},
    solution="`Static` in scheduling/policies/static.py, `padded` in generate/modes.py",
    checks={
        "the rows of an iteration are equally wide": equally_wide,
        "a batch takes as many as wait, and stays as it is": a_batch_stays,
        "all requests get their tokens": serves,
    },
    measure=measure,
    show=show,
)
