"""The token budget that stall-free takes from the step time: how long an iteration with prompts may
take, and how it learns that. And fair-slack, which extends it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.fair_slack import FairSlack
from scheduling.policies.stall_free import (
    LEAST_PROMPT_TOKENS,
    MOST_STALL,
    PROMPT_TOKENS,
    StallFree,
)
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.step_time import Work
from scheduling.registry import make_policy
from seams import Advance, Plan
from serving.config import Config
from tests.scheduling.shown import Shown, advanced, decoding, view
from tests.scheduling.step_times import FixedStepTime

# ten milliseconds and one more for each token
law_of = partial(FixedStepTime, constant_s=0.010, row_s=0.0, token_s=0.001)


def decodes_of(count: int) -> list[Shown]:
    return [decoding(id) for id in range(count)]


def long(past: int = 0) -> Shown:
    return Shown(100, prompt_tokens=8000, computed=past)


@pytest.mark.parametrize("law", [None, law_of(known=False)], ids=["no predictor", "nothing learnt"])
@pytest.mark.parametrize("decodes", [0, 5])
def test_before_anything_is_learnt_an_iteration_holds_the_batch_limit_and_some_tokens(
    law: FixedStepTime | None, decodes: int
) -> None:
    shown = view([long()], decodes_of(decodes), limit=9, budget=9000)
    plan = StallFree(predictor=law).plan(shown)
    assert sum(step.num_tokens for step in plan.advance) == 9 + PROMPT_TOKENS


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    begun=st.integers(0, 4000),
    decodes=st.integers(1, 6),
    law=st.builds(
        law_of,
        constant_s=st.floats(0.001, 0.1),
        token_s=st.floats(0.0, 0.01),
        pair_s=st.floats(0.0, 1e-5),
        reach_tokens=st.integers(0, 600),
    ),
)
def test_prompts_fill_the_time_that_decodes_may_be_stalled_for(
    lengths: Sequence[int], begun: int, decodes: int, law: FixedStepTime
) -> None:
    waiting = [Shown(200 + n, prompt_tokens=length) for n, length in enumerate(lengths)]
    residents = [*decodes_of(decodes), long(begun)] if begun else decodes_of(decodes)
    shown = view(waiting, residents, limit=12, budget=20_000)
    plan = StallFree(predictor=law).plan(shown)
    alone_s = law.seconds(Work.of(plan.advance[:decodes])) or 0.0
    assert [step.num_tokens for step in plan.advance[:decodes]] == [1] * decodes
    prompts = plan.advance[decodes:]
    total = sum(step.num_tokens for step in plan.advance)
    taken_s = law.seconds(Work.of(plan.advance)) or 0.0
    most_tokens = max(law.reach_tokens, 12 + PROMPT_TOKENS)
    assert total <= most_tokens
    assert total - decodes <= LEAST_PROMPT_TOKENS or taken_s <= MOST_STALL * alone_s
    wanted = ([long(begun)] if begun else []) + waiting
    assert [step.request for step in prompts] == wanted[: len(prompts)]
    last, left = prompts[-1], prompts[-1].request.known - prompts[-1].request.computed
    if last.num_tokens < left and total < most_tokens:
        one_more = Advance(last.request, last.num_tokens + 1)
        longer_s = law.seconds(Work.of([*plan.advance[:-1], one_more])) or 0.0
        assert longer_s > MOST_STALL * alone_s
        assert total - decodes >= LEAST_PROMPT_TOKENS


@pytest.mark.parametrize(
    ("law", "tokens"),
    [
        (law_of(constant_s=0.0), 288),  # twice the tokens save nothing
        (law_of(constant_s=1.0, token_s=0.0, reach_tokens=3000), 2304),  # more were never seen
        (law_of(constant_s=0.1, token_s=0.001), 4608),  # a token takes 1.022 ms, then 1.011 ms
    ],
)
def test_where_no_request_decodes_a_chunk_is_as_large_as_is_efficient(
    law: FixedStepTime, tokens: int
) -> None:
    shown = view([Shown(1, prompt_tokens=20_000)], limit=32, budget=30_000)
    assert advanced(StallFree(predictor=law).plan(shown)) == [(1, tokens)]


@pytest.mark.parametrize("name", ["stall-free", "fair-slack"])
def test_tokens_that_were_yielded_together_are_a_decode_and_wait_for_no_prompt(name: str) -> None:
    """A constraint forced four tokens behind the newest; the prompt takes the rest."""
    config = Config(mode="dynamic", max_batch_size=8, token_budget=24)
    forced = Shown(7, prompt_tokens=8, generated=9, computed=12, max_tokens=99)
    again = Shown(8, prompt_tokens=8, generated=90, computed=12, max_tokens=99)  # a preempted one
    shown = view((), [long(past=16), forced, again])
    plan = make_policy(name, config, Predictor()).plan(shown)
    assert {step.request.id: step.num_tokens for step in plan.advance} == {7: 5, 100: 19}


# --- fair-slack: the slack of decodes pays for prompts -----------------------------------------

NOW_S = 100.0
TTFT_S, TPOT_S = 1.0, 0.1  # the defaults
LAW = FixedStepTime()


def due(id: int, slack_s: float, own: bool = False) -> Shown:
    """Its next token is due so many seconds from now. `own`: it has targets of its own."""
    ttft_s, tpot_s = (3.0, 0.5) if own else (TTFT_S, TPOT_S)
    arrival_s = NOW_S + slack_s - ttft_s - 2 * tpot_s
    told = {"ttft_target_s": ttft_s, "tpot_target_s": tpot_s} if own else {}
    return Shown(id, arrival_s, generated=2, computed=5, max_tokens=99, **told)  # type: ignore[arg-type]


def prompt(tokens: int, id: int = 50) -> Shown:
    return Shown(id, NOW_S, prompt_tokens=tokens)


def planned(waiting: list[Shown], resident: list[Shown], law: FixedStepTime = LAW) -> Plan:
    shown = view(waiting, resident, now_s=NOW_S, limit=12, budget=20_000)
    return FairSlack(predictor=law).plan(shown)


def test_decodes_that_would_be_late_are_first_then_prompts_then_the_others_by_slack() -> None:
    told = [due(2, 0.5, own=True), due(4, 0.010, own=True)]
    residents = [due(1, 0.6), told[0], due(3, 0.015), told[1]]
    plan = planned([prompt(100)], residents)
    assert advanced(plan) == [(4, 1), (3, 1), (50, 100), (2, 1), (1, 1)]
    # a long prompt takes all time until the first decode is due from those that can wait
    plan = planned([prompt(8000)], residents)
    *decodes, chunk = plan.advance
    assert [step.request.id for step in plan.advance] == [4, 3, 50]
    longer = Advance(chunk.request, chunk.num_tokens + 1)
    taken_s = [LAW.seconds(Work.of([*decodes, one])) or 0.0 for one in (chunk, longer)]
    assert taken_s[0] <= 0.010 < taken_s[1]


@pytest.mark.parametrize(
    ("waiting", "residents", "law"),
    [
        ([prompt(8000)], [due(1, -0.1), due(2, -0.2)], LAW),
        ([prompt(8000)], [due(1, 0.6), due(2, 0.010)], FixedStepTime(known=False)),
        ([prompt(8000)], [], LAW),
        ([], [due(1, 0.6), due(2, 0.010)], LAW),
    ],
    ids=["all are late", "nothing is learnt", "no request decodes", "no prompt"],
)
def test_where_there_is_no_slack_to_spend_it_is_stall_free(
    waiting: list[Shown], residents: list[Shown], law: FixedStepTime
) -> None:
    shown = view(waiting, residents, now_s=NOW_S, limit=12, budget=20_000)
    plan = planned(waiting, residents, law)
    assert plan == StallFree(predictor=law).plan(shown)
    assert [step.request for step in plan.advance] == [*residents, *waiting]
