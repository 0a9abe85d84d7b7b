"""One request at a time, and what an iteration with a second row costs."""

from __future__ import annotations

from collections.abc import Mapping

from learn import require
from learn.lesson import FOUR, Answers, Lesson, product
from learn.measure import ROWS, decode_ms, mixed, stage
from learn.play import Ask, hashed, play


def one_request(answers: Answers) -> None:
    first = play([Ask([1, 2, 3], 5)], answers.OneAtATime(), hashed()).rows()[0]
    sentence = f"the first iteration advances by {first[0]} of the 3 tokens of the prompt"
    require(first == {0: 3}, f"{sentence}; all of them are known and not yet computed")


def one_at_a_time(answers: Answers) -> None:
    began = list[int]()
    for number, rows in enumerate(play(FOUR, answers.OneAtATime(), hashed()).rows(), 1):
        sentence = f"iteration {number} advances the requests {[*rows]}"
        require(len(rows) == 1, f"{sentence}. While one is resident, nobody else advances")
        began += [request for request in rows if began[-1:] != [request]]
    require(
        began == [0, 1, 2, 3],
        f"the requests advance in the order {began}. Each goes on until it is done, and then comes "
        "the first of `view.waiting`",
    )


def measure(answers: Answers) -> Mapping[str, float]:
    times_ms = {rows: decode_ms(rows) for rows in ROWS}
    alone = play(mixed(16), answers.OneAtATime(), stage("nobatch"), rows=1)
    return {
        "tokens a second, one request at a time": alone.tokens_per_s,
        **{f"ms for an iteration of {n} row{'s'[: n - 1]}": t for n, t in times_ms.items()},
        f"tokens a second, {ROWS[-1]} requests at once": 1000 * ROWS[-1] / times_ms[ROWS[-1]],
    }


LESSON = Lesson(
    title="One at a time",
    ours={"OneAtATime": lambda: product("nobatch")},
    solution="`NoBatch` in scheduling/policies/nobatch.py",
    checks={
        "a request gets its tokens": one_request,
        "one request at a time, first come, first served": one_at_a_time,
    },
    measure=measure,
    show=lambda: play(FOUR, product("nobatch"), hashed()).picture(),
)
