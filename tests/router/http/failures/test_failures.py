"""Upstreams that refuse, break, drop, freeze or push back."""

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.router.conftest import TIMEOUT_S, Farm, RouterProcess, until

Start = Callable[..., RouterProcess]
IN_TURN = "round-robin"  # the first request goes to the upstream that is listed first


@pytest.mark.parametrize(
    "how",
    [{"drop": "before"}, {"drop": "body"}, {"status": 500}, {"status": 503}, {"status": 429}],
)
def test_a_failure_before_the_first_byte_is_retried_elsewhere(
    farm: Farm, start: Start, how: dict[str, object]
) -> None:
    broken, good = farm.new(**how), farm.new()
    router = start(broken, good, policy=IN_TURN).probed()
    answer = router.post()
    assert answer.ok
    assert answer.headers["X-Upstream-Origin"] == good
    assert len(farm.state(broken)["seen"]) == 1
    assert router.metric("eb_router_retries_total", upstream=broken) == 1
    assert router.in_flight() == 0


def test_the_record_tells_every_attempt_within_its_request(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    broken, good = farm.new(status=500), farm.new()
    path = tmp_path / "router.jsonl"
    router = start(broken, good, policy=IN_TURN, record=path).probed()
    assert router.post(headers={"X-Request-Id": "mine"}).ok
    router.signal(signal.SIGTERM)
    router.process.wait(TIMEOUT_S)
    head, line = map(json.loads, path.read_text().splitlines())
    assert (head["type"], head["process"]) == ("head", "router")
    assert (line["type"], line["request_id"], line["status"]) == ("routed", "mine", 200)
    assert [upstream for upstream, _, _ in line["attempts"]] == [broken, good]
    times = [t for _, start_s, end_s in line["attempts"] for t in (start_s, end_s)]
    assert [head["clock_s"], line["start_s"], *times, line["end_s"]] == sorted(
        [head["clock_s"], line["start_s"], *times, line["end_s"]]
    )


def test_a_stream_that_breaks_before_its_first_event_is_retried_elsewhere(
    farm: Farm, start: Start
) -> None:
    broken, good = farm.new(cut_after=0), farm.new()
    router = start(broken, good, policy=IN_TURN).probed()
    answer = router.post(json={"model": "m", "stream": True})
    assert answer.headers["X-Upstream-Origin"] == good
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "unfinished" not in answer.text


@pytest.mark.parametrize("path", ["/v1/completions", "/generate_stream"])
def test_an_upstream_lost_mid_stream_ends_the_stream_with_an_error_event(
    farm: Farm, start: Start, path: str
) -> None:
    upstream, spare = farm.new(cut_after=3), farm.new()
    router = start(upstream, spare, policy=IN_TURN).probed()
    answer = router.post(path, json={"model": "m", "stream": True})
    events = [json.loads(e.removeprefix("data: ")) for e in answer.text.split("\n\n") if e]
    assert len(events) == 4
    assert "upstream_failed" in json.dumps(events[-1])
    assert "[DONE]" not in answer.text
    assert len(farm.state(spare)["seen"]) == 0
    assert router.metric("eb_router_broken_answers_total") == 1
    assert router.in_flight() == 0


def test_a_stream_that_falls_silent_ends_with_an_error_event(farm: Farm, start: Start) -> None:
    upstream = farm.new(hold_after=2)
    router = start(upstream, stream_idle=0.2).probed()
    answer = router.post(json={"model": "m", "stream": True})
    assert "silent for too long" in answer.text
    assert "[DONE]" not in answer.text
    until(lambda: farm.state(upstream)["cancelled"] == 1, "the upstream's request to be closed")


def test_errors_name_no_address_of_a_server_to_clients_but_in_the_log(
    farm: Farm, start: Start
) -> None:
    upstream = farm.new(drop="before")
    router = start(upstream, batch_upstream="any", stream_idle=2).probed()
    told = [router.post(), router.post("/v1/files")]
    for how in ({"drop": "", "cut_after": 2}, {"drop": "", "hold_after": 2}):
        told.append(router.post(json={"model": "m", "stream": True, "behave": how}))
    farm("stop", url=upstream)
    told += [router.post(), router.post("/v1/files")]
    assert [answer.status_code for answer in told] == [502, 502, 200, 200, 502, 502]
    port = upstream.rpartition(":")[2]
    for answer in told:
        assert "upstream_failed" in answer.text
        assert port not in answer.text
        assert answer.ok or "X-Upstream-Origin" not in answer.headers
    assert upstream in json.dumps(router.logged("attempt failed"))


def test_only_failures_of_the_server_open_its_breaker(farm: Farm, start: Start) -> None:
    upstream = farm.new()
    # TIMEOUT is long enough for eight answers on a busy machine
    keys = [f"k{i}" for i in range(8)]
    limits = {"timeout": 3000, "stream_idle": 0.3, "max_connect_per_upstream": 16}
    router = start(upstream, api_keys=",".join(keys), admin_key="a", **limits).probed()

    def post(key: str, **body: object) -> requests.Response:
        authorization = {"Authorization": f"Bearer {key}"}
        return router.post(json={"model": "m", **body}, headers=authorization)

    def breaker() -> str:
        shown = router.get("/upstreams", headers={"Authorization": "Bearer a"})
        return str(shown.json()["upstreams"][0]["breaker"])

    def eight(**body: object) -> set[int]:
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda key: post(key, **body), keys)
            return {answer.status_code for answer in answers}

    for status in (400, 501, 504):
        assert eight(behave={"status": status}) == {status}
    assert eight(behave={"delay": 60}) == {504}, "no answer within TIMEOUT"
    paused = {"stream": True, "behave": {"hold_after": 1}}
    assert eight(**paused, service_tier="flex") == {200}
    assert breaker() == "closed"
    assert eight(**paused) == {200}
    assert post(keys[0], **paused).ok
    assert breaker() == "closed", "9 of the last 20 failed"
    assert post(keys[1], **paused).ok
    until(lambda: breaker() == "open", "the breaker to open")


def test_a_retried_request_ends_when_the_server_it_waits_for_is_lost(
    farm: Farm, start: Start
) -> None:
    """Its model is still served: by the server that failed it."""
    broken, other = farm.new(status=500), farm.new(hold=True)
    router = start(broken, other, policy=IN_TURN, probe_interval=0.05).probed()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(router.post)
        until(lambda: farm.state(other)["current"] == 1, "the first request at the other server")
        second = pool.submit(router.post)
        until(lambda: router.waiting() == 1, "the second request to wait for the other server")
        farm("behave", url=other, models_status=500)
        answer = second.result()
        assert answer.status_code == 500
        assert answer.headers["X-Upstream-Origin"] == broken
        farm("release", url=other)
        assert first.result().ok


def test_retry_after_is_honoured_and_back_pressure_is_no_failure(farm: Farm, start: Start) -> None:
    pushing, other = farm.new(status=429, headers={"Retry-After": "30"}), farm.new()
    router = start(pushing, other).probed()
    for _ in range(8):
        assert router.post().ok
    assert len(farm.state(pushing)["seen"]) <= 1
    assert router.upstreams()[pushing]["breaker"] == "closed"
    if farm.state(pushing)["seen"]:
        assert router.upstreams()[pushing]["paused_s"] > 20
