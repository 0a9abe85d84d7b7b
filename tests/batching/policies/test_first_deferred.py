"""The policy runs as it is until the first deferred request arrives."""

from __future__ import annotations

from scheduling.classes.budget import Budget
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Load, Predictor
from seams import Policy
from tests.batching.modes import MODES
from tests.batching.virtual import World, check_closed


def test_the_first_deferred_request_puts_the_wrapper_on_which_knows_the_load_before_it() -> None:
    predictor, wrapped = Predictor(), list[Budget]()

    def with_deferred(policy: Policy) -> Policy:
        wrapped.append(Budget(policy, predictor))
        return wrapped[-1]

    world = World(MODES[3], also=predictor, with_deferred=with_deferred)
    assert world.policy.policy.__class__ is Orca
    for _ in range(3):
        world.submit([1, 2], 4)
    world.step()
    assert not wrapped
    world.submit([5], 3, service_class="deferred")
    world.submit([6], 3, service_class="deferred")
    world.step()
    (budget,) = wrapped
    assert world.manager.policy is budget
    assert budget.inner is world.policy
    assert predictor.load == Load(0.0, 3, 3 * (2 + 4))
    assert budget._seen.load.residents == 3
    world.run()
    check_closed(world)
