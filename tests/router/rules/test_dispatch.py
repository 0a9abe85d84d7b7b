"""Cases of the dispatcher that deserve a name of their own; its laws are in the properties."""

from dataclasses import replace

import pytest

from router.rules.breaker import LEAST_FAILURES, Breaker, BreakerState
from router.rules.dispatch import Dispatcher
from router.rules.fleet import Upstreams
from router.rules.policies import least_work
from router.rules.request import AttemptEnd, DispatchLimits, RequestState, RoutedRequest, outcome_of
from router.rules.upstream import Spec, Upstream


def fleet_of(*limits: int) -> Upstreams:
    fleet = Upstreams()
    for i, limit in enumerate(limits):
        upstream = fleet.add(Spec(f"http://u{i}:1", limit), "test")
        upstream.probe_succeeded({"m": b"{}"}, 0.01)
    return fleet


def dispatcher_over(fleet: Upstreams) -> Dispatcher:
    limits = DispatchLimits(max_attempts=3)
    return Dispatcher(fleet, least_work, limits, lambda request: None)


def at(request: RoutedRequest) -> Upstream:
    assert request.state is RequestState.PLACED
    assert request.upstream is not None
    return request.upstream


POD, POD_SOURCE = Spec("http://10.0.0.1:1", 4, "key", models=("m",)), "dns+http://pods:1"


def test_a_removed_server_of_a_name_stays_away_while_the_name_lists_it() -> None:
    """As long as the configuration is not read again."""
    fleet = Upstreams()
    for again in (lambda: fleet.reconcile(POD_SOURCE, []), fleet.forget_removals):
        fleet.reconcile(POD_SOURCE, [POD])
        fleet.remove(POD.url)
        fleet.reconcile(POD_SOURCE, [POD])
        assert not list(fleet)
        again()
        fleet.reconcile(POD_SOURCE, [POD])
        assert [u.url for u in fleet] == [POD.url], "a new pod with an old address"


def test_a_change_at_run_time_lasts_until_the_configuration_changes() -> None:
    fleet = Upstreams()
    fleet.add(Spec("http://env:1", 1), "environment")
    fleet.reconcile(POD_SOURCE, [POD])
    changed = fleet.add(replace(POD, limit=9), "admin")
    fleet.reconcile(POD_SOURCE, [POD])
    assert changed.spec.limit == 9
    fleet.reconcile(POD_SOURCE, [replace(POD, limit=2)])
    assert changed.spec.limit == 2
    assert [u.url for u in fleet] == ["http://env:1", POD.url], "other sources are kept"


@pytest.mark.parametrize(
    ("outcome", "statuses"),
    [
        (AttemptEnd.SUCCESS, [200, 399]),
        (AttemptEnd.REFUSED, [400, 404, 499, 501, 505]),
        (AttemptEnd.BUSY, [429, 503]),
        (AttemptEnd.SLOW, [504]),
        (AttemptEnd.FAILURE, [500, 502, 506, 599]),
    ],
)
def test_a_status_blames_the_server_only_where_it_failed(
    outcome: AttemptEnd, statuses: list[int]
) -> None:
    assert {outcome_of(status) for status in statuses} == {outcome}


@pytest.mark.parametrize(("outcome", "waves"), [("FAILURE", 2), ("UNREACHABLE", 9)])
def test_all_that_a_dying_server_had_may_be_sent_again(outcome: str, waves: int) -> None:
    fleet = fleet_of(20, 20)
    dying, other = fleet
    dispatcher = dispatcher_over(fleet)
    for _ in range(waves):
        other.in_flight, dying.breaker = 20, Breaker()
        requests = [dispatcher.arrive(RoutedRequest("m", client="a"), 0.0) for _ in range(20)]
        other.in_flight = 0
        for request in requests:
            assert at(request) is dying
            dispatcher.release(request, AttemptEnd[outcome], 0.0)
            assert dispatcher.may_retry(request, 0.0)


def test_a_request_that_no_server_received_waits_for_another_as_a_new_one_does() -> None:
    fleet = fleet_of(20, 20)
    dying, other = fleet
    dispatcher = dispatcher_over(fleet)
    other.ready = False
    requests = [dispatcher.arrive(RoutedRequest("m"), 0.0) for _ in range(2)]
    for request, outcome in zip(
        requests, (AttemptEnd.UNREACHABLE, AttemptEnd.FAILURE), strict=True
    ):
        assert at(request) is dying
        dispatcher.release(request, outcome, 0.0)
        assert dispatcher.may_retry(request, 0.0) is (outcome is AttemptEnd.UNREACHABLE)
    dispatcher.retry(requests[0], 0.0)
    assert requests[0].state is RequestState.WAITING
    other.ready = True
    dispatcher.tick(3.0)
    assert at(requests[0]) is other


def test_one_clients_failures_open_no_breaker_but_a_server_that_alone_fails_is_left() -> None:
    fleet = fleet_of(50, 50)
    first, second = fleet
    dispatcher = dispatcher_over(fleet)
    for _ in range(50):
        request = dispatcher.arrive(RoutedRequest("m", client="a", only=first), 0.0)
        dispatcher.release(request, AttemptEnd.FAILURE, 0.0)
    assert first.breaker.state(0.0) is BreakerState.CLOSED
    first.breaker = Breaker()
    for _ in range(LEAST_FAILURES):
        assert first.breaker.state(0.0) is BreakerState.CLOSED
        first.in_flight, second.in_flight = 0, 1
        request = dispatcher.arrive(RoutedRequest("m", client="a"), 0.0)
        assert at(request) is first
        dispatcher.release(request, AttemptEnd.FAILURE, 0.0)
        dispatcher.retry(request, 0.0)
        assert at(request) is second
        dispatcher.release(request, AttemptEnd.SUCCESS, 0.0)
    assert first.breaker.state(0.0) is BreakerState.OPEN
    closes = [AttemptEnd.SUCCESS, AttemptEnd.UNREACHABLE, AttemptEnd.SUCCESS, AttemptEnd.SUCCESS]
    for number, outcome in enumerate(closes, 1):  # two successes in a row close it again
        assert first.breaker.state(5.0 * number) is BreakerState.HALF_OPEN
        request = dispatcher.arrive(RoutedRequest("m", only=first), 5.0 * number)
        dispatcher.release(request, outcome, 5.0 * number)
    assert first.breaker.state(20.0) is BreakerState.CLOSED
