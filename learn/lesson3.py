"""Iteration-level batching: requests join and leave at every iteration."""

from __future__ import annotations

from collections.abc import Mapping

from learn import require
from learn.lesson import FOUR, Answers, Lesson, product
from learn.measure import LIMIT, Contestant, in_turn, mixed, stage
from learn.play import Ask, hashed, play


def places_are_filled(answers: Answers) -> None:
    asks = [Ask([n], 2 + 3 * (n % 3)) for n in range(9)]
    for number, record in enumerate(play(asks, answers.EveryIteration(), hashed()).iterations, 1):
        sentence = f"iteration {number} has {record.batch_size} rows, though four are allowed"
        full = record.batch_size == 4 or not record.num_waiting
        require(full, f"{sentence} and {record.num_waiting} requests wait")


def they_advance(answers: Answers) -> None:
    seen = play(FOUR, answers.EveryIteration(), hashed())
    for number, rows in enumerate(seen.rows("xp"), 1):
        sentence = f"the requests {[*rows]} have a place in iteration {number} and do not advance"
        require(not rows, f"{sentence}. All advance until they are done; then they retire")
    late = [r for r, of in enumerate(seen.records) if of.end_s != of.last_token_s]
    require(not late, f"the answers of {late} left after their last token: `answers` is not 'own'")


def in_order(answers: Answers) -> None:
    rows = play(mixed(30, 0.001), answers.EveryIteration(), hashed()).rows()
    began = list(dict.fromkeys(request for of in rows for request in of))
    require(began == sorted(began), f"the requests began in the order {began}, not as they arrived")


def measure(answers: Answers) -> Mapping[str, float]:
    static = Contestant(lambda: product("static"), lambda: stage("static"))
    joined, batches = in_turn(mixed(48), Contestant(answers.EveryIteration), static)
    latency = joined.mean_latency_s / batches.mean_latency_s
    return {
        f"tokens a second, static batches of {LIMIT}": batches.tokens_per_s,
        f"tokens a second, {LIMIT} rows that change": joined.tokens_per_s,
        "times as many": joined.tokens_per_s / batches.tokens_per_s,
        "times as long until an answer is complete, on average": latency,
    }


LESSON = Lesson(
    title="Joining at every iteration",
    ours={"EveryIteration": lambda: product("dynamic")},
    solution="`Orca` in scheduling/policies/orca.py",
    checks={
        "all residents advance, and leave when they are done": they_advance,
        "free places are filled at once": places_are_filled,
        "first come, first served": in_order,
    },
    measure=measure,
    show=lambda: play(FOUR, product("dynamic"), hashed(), rows=3).picture(),
)
