"""Chunks of long prompts, and a policy of one's own beside a published claim."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from learn import require
from learn.lesson import Answers, Lesson, product
from learn.measure import Contestant, in_turn, mixed, prompt
from learn.play import Account, Ask, hashed, play
from seams import Policy

BUDGET = 8  # tokens of an iteration, in the checks,
LARGE_BUDGET = 64  # and in what is measured
CLAIM = 0.65  # Qiu et al., arXiv 2404.08509: mean time to the end, beside first come, first served
ENOUGH = 0.8
CHUNKS = partial(product, "dynamic", "stall-free")
LONG = [Ask([1, 2], 12), Ask([3, 4, 5], 10), Ask(list(range(100, 124)), 3, at_s=0.004)]


def keeps_the_budget(answers: Answers) -> None:
    """Beside two decodes, what is left by the end of a prompt goes to the next one."""
    prompts = [Ask([n] * n, 3, at_s=0.004) for n in (21, 40)]
    seen = play([*LONG[:2], *prompts], answers.Chunks(BUDGET), hashed())
    parts = seen.rows("c")
    for number, rows in enumerate(seen.rows(), 1):
        used = sum(rows.values())
        sentence = f"iteration {number} computes {used} tokens (by request: {rows})"
        require(used <= BUDGET, f"{sentence}; the budget is {BUDGET}, decodes included")
        require(
            used == BUDGET or not (parts[number - 1] and parts[number]),
            f"iteration {number} leaves {BUDGET - used} tokens of the budget unused, and a prompt "
            "is not done",
        )


def never_stalls(answers: Answers) -> None:
    rows = play(LONG, answers.Chunks(BUDGET), hashed()).rows()
    for request in (0, 1):
        here = [number for number, of in enumerate(rows, 1) if request in of]
        stalled = sorted({*range(here[0], here[-1])} - {*here})
        sentence = f"request {request} decodes and is left out of the iterations {stalled}"
        require(not stalled, f"{sentence}: prompts get what decodes leave of the budget")


def in_order(answers: Answers) -> None:
    """Each prompt has more tokens than the budget."""
    seen = play([Ask([n] * 13, 4) for n in range(5)], answers.Chunks(BUDGET), hashed())
    read = Counter[int]()
    for number, rows in enumerate(seen.rows(), 1):
        read.update(rows)
        begun = [request for request, tokens in read.items() if tokens < 13]
        sentence = f"after iteration {number} parts of the prompts {begun} are computed"
        require(len(begun) < 2, f"{sentence}: finish one before the next begins")


def serves(answers: Answers) -> None:
    play(mixed(30, 0.001), answers.Chunks(BUDGET), hashed())


def heavy() -> Sequence[Ask]:
    """Most ask for little, some for much; together 1.4 times what eight rows can serve."""
    draw, asks, at_s = random.Random(7), list[Ask](), 0.0
    for _ in range(240):
        tokens = min(300, 1 + round(draw.lognormvariate(2.5, 1.2)))
        length = min(300, 4 + round(draw.lognormvariate(3.4, 0.8)))
        at_s += draw.expovariate(1 / 0.0066)
        asks.append(Ask([draw.randrange(900) for _ in range(length)], tokens, at_s))
    return asks


def mean_ratio(answers: Answers) -> float:
    """Of the mean time to the end of an answer, to that of first come, first served."""

    def mean_s(policy: Policy) -> float:
        return play(heavy(), policy, hashed(), rows=8).mean_latency_s

    return mean_s(answers.MyPolicy(LARGE_BUDGET)) / mean_s(CHUNKS(LARGE_BUDGET))


def answers_sooner(answers: Answers) -> None:
    found = mean_ratio(answers)
    require(
        found <= ENOUGH,
        f"the mean time to the end of an answer is {found:.2f} times that of first come, first "
        f"served; {ENOUGH} or less passes. Who should begin first, so that few wait for long?",
    )


def gap_ms(seen: Account) -> float:
    """The longest time between two tokens of a request."""
    return 1000 * max(gap_s for record in seen.iterations for _, gap_s, _ in record.gaps)


def measure(answers: Answers) -> Mapping[str, float]:
    """Seven requests decode, and prompts of 900 tokens arrive."""
    short = [Ask(prompt(n, 8), 120) for n in range(7)]
    long = [Ask(prompt(50 + n, 900), 1, at_s=0.03 + 0.03 * n) for n in range(4)]

    policies = partial(product, "dynamic"), partial(answers.Chunks, LARGE_BUDGET)
    whole, chunks = in_turn([*short, *long], *[Contestant(policy, rows=12) for policy in policies])
    return {
        "ms between two tokens at most, long prompts whole": gap_ms(whole),
        "ms between two tokens at most, long prompts in chunks": gap_ms(chunks),
        "times the tokens a second, in chunks": chunks.tokens_per_s / whole.tokens_per_s,
        f"times the mean answer time, MyPolicy (claimed: {CLAIM})": mean_ratio(answers),
    }


def show() -> str:
    lines = list[str]()
    for name, policy in (("whole", product("dynamic")), ("in chunks", CHUNKS(BUDGET))):
        seen = play(LONG, policy, hashed())
        lines += [f"long prompts {name}: at most {gap_ms(seen):.1f} ms from token to token"]
        lines += [seen.picture()]
    return "\n".join(lines)


LESSON = Lesson(
    title="Long prompts, and a policy of your own",
    ours={"Chunks": CHUNKS, "MyPolicy": partial(product, "dynamic", "srpt")},
    solution="`StallFree` in scheduling/policies/stall_free.py, and `SRPT` in orders/srpt.py there",
    checks={
        "an iteration uses its budget, and no more": keeps_the_budget,
        "no decode is ever left out": never_stalls,
        "a prompt is finished before the next one begins": in_order,
        "all requests get their tokens": serves,
        "MyPolicy answers sooner than first come, first served": answers_sooner,
    },
    measure=measure,
    show=show,
)
