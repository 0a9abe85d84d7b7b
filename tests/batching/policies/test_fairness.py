"""The bound of the virtual token counter: Sheng et al., OSDI '24, theorem 4.4."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.orders.vtc import GENERATED_TOKEN, PROMPT_TOKEN
from tests.batching.modes import DYNAMIC_MODES
from tests.batching.virtual import World, check_closed
from tests.examples import examples

VTC = next(mode for mode in DYNAMIC_MODES if mode.name == "vtc, reserve")
LONGEST_PROMPT, BUDGET = 20, 120


@examples(30)
@given(
    sizes=st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 2]), st.integers(1, LONGEST_PROMPT), st.integers(1, 24)
        ),
        min_size=20,
        max_size=60,
    ),
    limit=st.integers(1, 8),
)
def test_the_service_of_two_backlogged_users_never_differs_by_more_than_the_bound(
    sizes: list[tuple[int, int, int]], limit: int
) -> None:
    """All requests are there from the start, so a user is backlogged until its last admission."""
    world = World(VTC, max_batch_size=limit, budget=BUDGET)
    for seed, (user, prompt, tokens) in enumerate(sizes):
        world.submit([seed % 13] * prompt, tokens, seed, user=user)
    bound = 2 * max(PROMPT_TOKEN * LONGEST_PROMPT, GENERATED_TOKEN * BUDGET)
    while all(
        any(i.user == user and i.admitted_s is None for i in world.submitted) for user in (1, 2)
    ):
        world.step()
        first, second = (
            sum(
                PROMPT_TOKEN * i.prompt_tokens + GENERATED_TOKEN * i.generated
                for i in world.submitted
                if i.user == user and i.admitted_s is not None
            )
            for user in (1, 2)
        )
        assert abs(first - second) <= bound
    world.run()
    check_closed(world)
