"""Defects found in text-inference-batcher's code, each as a fact about this router."""

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.router.conftest import TIMEOUT_S, Farm, RouterProcess, raw_post, until

Start = Callable[..., RouterProcess]


def origin(answer: requests.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers["X-Upstream-Origin"]


def together(pool: ThreadPoolExecutor, router: RouterProcess, n: int) -> list[Future[Any]]:
    return [pool.submit(router.post) for _ in range(n)]


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def test_a_request_goes_to_the_upstream_that_has_its_model(farm: Farm, start: Start) -> None:
    first, second = farm.new(models=["a"]), farm.new(models=["b"])
    router = start(first, second).probed()
    assert origin(router.post(json={"model": "a"})) == first
    assert origin(router.post(json={"model": "b"})) == second


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_upstreams_work(
    farm: Farm, start: Start, stream: bool
) -> None:
    upstream = farm.new(**({"hold_after": 1} if stream else {"hold": True}))
    router = start(upstream).probed()
    with socket.create_connection(("127.0.0.1", router.port), timeout=TIMEOUT_S) as client:
        client.sendall(raw_post(json.dumps({"model": "m", "stream": stream}).encode()))
        if stream:
            assert b"200 OK" in client.recv(4096)
        until(lambda: farm.state(upstream)["current"] == 1, "the request to run")
    until(lambda: farm.state(upstream)["cancelled"] == 1, "the upstream to see the client go")
    until(lambda: router.in_flight() == 0, "the place to be free")
    assert router.metric("eb_router_departed_total") == 1


def begun_stream(router: RouterProcess) -> requests.Response | None:
    """None where a busy machine took longer to begin it than TIMEOUT allows."""
    answer = router.post(json={"model": "m", "stream": True}, stream=True)
    if answer.ok:
        return answer
    answer.close()
    return None


def test_wait_for_and_timeout_last_what_they_say(farm: Farm, start: Start) -> None:
    """Bounds from below only: above, a busy machine decides."""
    upstream = farm.new(hold_after=1)
    router = start(upstream, timeout=700, wait_for=300).probed()
    running = until(lambda: begun_stream(router), "a running stream")
    begun = time.monotonic()
    late = router.post()
    assert time.monotonic() - begun >= 0.7
    assert late.status_code == 503
    assert "TIMEOUT" in late.json()["error"]["message"]
    farm("release", url=upstream)
    assert running.text.endswith("data: [DONE]\n\n"), "TIMEOUT does not cut a running stream"
    begun = time.monotonic()
    silent = router.post(json={"model": "m", "behave": {"delay": 60}})
    assert time.monotonic() - begun >= 0.7
    assert silent.status_code == 504
    lost = start("http://127.0.0.1:9", upstream, wait_for=300, probe_interval=0.1).probed()
    farm("behave", url=upstream, models_status=503)
    until(lambda: not any(u["ready"] for u in lost.upstreams().values()), "no ready upstream")
    begun = time.monotonic()
    refused = lost.post()
    assert time.monotonic() - begun >= 0.3
    assert refused.status_code == 503
    assert "WAIT_FOR" in refused.json()["error"]["message"]


def test_a_place_is_free_when_the_response_ends_even_if_other_servers_are_dead(
    farm: Farm, start: Start
) -> None:
    """The dead one's probe lasts longer than any request waits here."""
    upstream = farm.new()
    dead = farm.new(models_delay=3600)
    router = start(dead, upstream, probe_timeout=3600)
    until(lambda: router.upstreams()[upstream]["ready"], "the live upstream")
    assert router.get("/health").status_code == 503  # the dead one is being probed
    for _ in range(3):
        assert router.post().ok
        until(lambda: router.in_flight() == 0, "the place to be free")


@pytest.mark.parametrize("probe_interval", [0.05, 3600])
def test_a_router_that_starts_before_its_upstreams_finds_them(
    farm: Farm, start: Start, probe_interval: float
) -> None:
    upstream = farm.new()
    farm("stop", url=upstream)
    router = start(upstream, probe_interval=probe_interval).probed()
    assert router.post().status_code == 422
    farm("start", url=upstream)
    until(lambda: router.post().ok, "the router to find the upstream")


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_the_upstreams_status_and_headers_reach_the_client(
    farm: Farm, start: Start, status: int
) -> None:
    upstream = farm.new()
    router = start(upstream).probed()
    how = {"status": status, "headers": {"Retry-After": "7", "X-Usage": "3"}}
    answer = router.post(json={"model": "m", "behave": how})
    assert answer.status_code == status
    assert (answer.headers["Retry-After"], answer.headers["X-Usage"]) == ("7", "3")
    assert answer.json()["id"] == "cmpl-1"


@pytest.mark.parametrize("header", ["Bearer sk-1", None])
def test_authorization_reaches_the_upstream_as_it_was(
    shared: tuple[RouterProcess, str], farm: Farm, header: str | None
) -> None:
    router, upstream = shared
    assert router.post(headers={"Authorization": header} if header else {}).ok
    assert farm.state(upstream)["seen"][-1]["headers"].get("authorization") == header


def test_a_full_queue_is_reported(farm: Farm, start: Start, pool: ThreadPoolExecutor) -> None:
    busy = farm.new(hold=True)
    small = start(busy, max_queue=1).probed()
    taken = together(pool, small, 2)
    until(lambda: small.waiting() == 1, "a full queue")
    full = small.post()
    assert full.status_code == 429
    assert int(full.headers["Retry-After"]) >= 1
    assert "MAX_QUEUE" in full.json()["error"]["message"]
    farm("release", url=busy)
    assert all(a.result().ok for a in taken)


def test_latency_is_kept_fresh_and_dropped_models_are_dropped(farm: Farm, start: Start) -> None:
    upstream = farm.new(models=["m", "old"])
    router = start(upstream, probe_interval=0.03).probed()
    farm("behave", url=upstream, models=["m", "new"])
    until(lambda: router.upstreams()[upstream]["models"] == ["m", "new"], "the new models")
    # below what the delay makes of it, though a busy machine may have slowed the first probes
    until(lambda: router.upstreams()[upstream]["latency_s"] < 0.15, "a low latency")
    farm("behave", url=upstream, models_delay=0.3)
    until(lambda: router.upstreams()[upstream]["latency_s"] > 0.15, "a new latency")
    assert router.post(json={"model": "old"}).status_code == 422


def test_cross_origin_headers_are_on_answers_to_post_where_they_are_asked_for(
    shared: tuple[RouterProcess, str], farm: Farm, start: Start
) -> None:
    router = start(shared[1], cors_origin="*").probed()
    asked = {"Access-Control-Request-Headers": "authorization, x-stainless-os"}
    for body in ({"model": "m"}, {"model": "m", "stream": True}, {"model": "none"}):
        assert router.post(json=body).headers["Access-Control-Allow-Origin"] == "*"
    path = "/v1/completions"
    preflight = requests.options(router.url + path, headers=asked, timeout=TIMEOUT_S)
    assert preflight.status_code == 204
    assert "x-stainless-os" in preflight.headers["Access-Control-Allow-Headers"]
    by_default = requests.options(shared[0].url + path, headers=asked, timeout=TIMEOUT_S)
    for answer in (by_default, shared[0].post()):
        assert not [name for name in answer.headers if name.startswith("Access-Control")]
