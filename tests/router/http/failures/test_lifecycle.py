"""Starting, changing and stopping a router; keys; clients that leave or dawdle."""

import base64
import json
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.router.conftest import TIMEOUT_S, Farm, RouterProcess, raw_post, until

Start = Callable[..., RouterProcess]
ADMIN = {"Authorization": "Bearer adm"}


def streaming(router: RouterProcess) -> requests.Response:
    """A stream of which the first event has come."""
    answer = router.post(json={"model": "m", "stream": True}, stream=True)
    assert answer.raw.read(4) == b"data"
    return answer


def test_sigterm_finishes_what_runs_and_waits_and_refuses_the_rest(
    farm: Farm, start: Start
) -> None:
    upstream = farm.new(hold_after=1)
    router = start(upstream).probed()
    running = streaming(router)
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(router.post)
        until(lambda: router.waiting() == 1, "a queued request")
        router.signal(signal.SIGTERM)
        until(lambda: router.get("/health").status_code == 503, "draining")
        refused = router.post()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert router.get("/live").ok
        farm("release", url=upstream)
        assert running.raw.read().endswith(b"data: [DONE]\n\n")
        assert queued.result().ok
    assert router.process.wait(timeout=TIMEOUT_S) == 0


def test_at_the_drain_limit_streams_end_with_an_error_event_and_the_rest_with_503(
    farm: Farm, start: Start
) -> None:
    router = start(farm.new(hold_after=1), drain_timeout=0.2).probed()
    running = streaming(router)
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(router.post)
        until(lambda: router.waiting() == 1, "a queued request")
        router.signal(signal.SIGTERM)
        rest = running.raw.read()
        assert b"shutting_down" in rest
        assert b"[DONE]" not in rest
        assert queued.result().status_code == 503
    assert router.process.wait(timeout=TIMEOUT_S) == 0


def test_sighup_reads_the_file_again_and_running_streams_survive(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    old, new = farm.new(hold_after=1), farm.new()
    listed = tmp_path / "upstreams"
    listed.write_text(old)
    router = start(upstreams_file=listed).probed()
    running = streaming(router)
    listed.write_text(f"{new} limit=5")
    router.signal(signal.SIGHUP)
    until(lambda: router.upstreams().get(new, {}).get("ready"), "the new upstream")
    assert set(router.upstreams()) == {new}
    assert router.upstreams()[new]["limit"] == 5
    assert router.post().headers["X-Upstream-Origin"] == new
    farm("release", url=old)
    assert running.raw.read().endswith(b"data: [DONE]\n\n")
    listed.write_text("nonsense")
    router.signal(signal.SIGHUP)
    until(lambda: router.logged("upstreams not read again"), "the refusal in the log")
    assert router.post().ok


def test_a_server_without_a_model_list_serves_the_models_declared_for_it(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    upstream = farm.new(models_status=404)
    listed = tmp_path / "upstreams"
    listed.write_text(f"{upstream} models=a,b")
    router = start(upstreams_file=listed, probe_interval=0.05).probed()
    assert [m["id"] for m in router.get("/v1/models").json()["data"]] == ["a", "b"]
    assert router.post(json={"model": "b"}).ok
    farm("behave", url=upstream, health_status=503)
    until(lambda: not router.upstreams()[upstream]["ready"], "the upstream to be lost")


def admin(router: RouterProcess) -> Callable[..., int]:
    """Changes the upstreams; returns the status."""

    def change(method: str, url: str, path: str = "", **body: object) -> int:
        address = f"{router.url}/upstreams{path}"
        body["url"] = url
        answer = requests.request(method, address, json=body, headers=ADMIN, timeout=TIMEOUT_S)
        return answer.status_code

    return change


def states(router: RouterProcess) -> dict[str, dict[str, object]]:
    shown = router.get("/upstreams", headers=ADMIN).json()["upstreams"]
    return {u["url"]: u for u in shown}


def test_every_address_of_a_dns_name_is_an_upstream_until_it_is_removed(
    farm: Farm, start: Start
) -> None:
    port, other = farm.new().rpartition(":")[2], farm.new(models=["before"])
    pod = f"http://127.0.0.1:{port}"
    listed = f"dns+http://localhost:{port}"
    router = start(listed, other, admin_key="adm", probe_interval=0.05).probed()
    until(lambda: states(router).get(pod, {}).get("ready"), "the pod")
    assert router.post().headers["X-Upstream-Origin"] == pod
    assert str(states(router)[pod]["source"]).startswith("dns+")
    assert admin(router)("DELETE", pod) == 200
    for models in (["one"], ["two"]):  # each seen in a round of probes of its own
        farm("behave", url=other, models=models)
        until(lambda models=models: states(router)[other]["models"] == models, "a round of probes")  # type: ignore[misc]
    assert pod not in states(router)


def test_upstreams_are_added_drained_and_removed_at_run_time(farm: Farm, start: Start) -> None:
    first, second = farm.new(), farm.new()
    router = start(first, admin_key="adm").probed()
    change = admin(router)
    assert change("POST", second, limit=3) == 201
    until(lambda: states(router)[second]["ready"], "the added upstream")
    assert states(router)[second]["limit"] == 3
    assert change("POST", first, "/drain") == 200
    assert {router.post().headers["X-Upstream-Origin"] for _ in range(5)} == {second}
    assert change("POST", first) == 200
    assert change("DELETE", second) == 200
    assert router.post().headers["X-Upstream-Origin"] == first
    assert set(states(router)) == {first}
    assert change("DELETE", second) == 404
    assert change("POST", "file:///etc/passwd") == 400
    assert change("POST", second, limit=0) == 400
    assert router.get("/upstreams").status_code == 401
    address, key = f"{router.url}/upstreams", {"Authorization": "Bearer adm"}
    refused = requests.post(address, json={"url": second}, timeout=TIMEOUT_S)
    assert refused.status_code == 401
    assert "ADMIN_KEY" in refused.json()["error"]["message"]
    for body in (b"{", b"[" * 100_000):
        broken = requests.post(address, data=body, headers=key, timeout=TIMEOUT_S)
        assert broken.status_code == 400
        assert "not valid JSON" in broken.json()["error"]["message"]


def test_a_configured_server_that_is_drained_or_removed_comes_back_as_it_was(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    upstream = farm.new(models_status=404)
    listed = tmp_path / "upstreams"
    listed.write_text(f"{upstream} limit=7 key=secret models=declared")
    router = start(upstreams_file=listed, admin_key="adm").probed()
    for verb, path in (("POST", "/drain"), ("DELETE", "")):
        assert admin(router)(verb, upstream, path) == 200
        assert admin(router)("POST", upstream) in (200, 201)
        until(lambda: router.post(json={"model": "declared"}).ok, "the server to be back")
        assert states(router)[upstream]["limit"] == 7
        assert states(router)[upstream]["source"] == "file"
        seen = farm.state(upstream)["seen"][-1]["headers"]
        assert seen["authorization"] == "Bearer secret"


def test_a_server_added_at_run_time_gets_no_key_but_its_own(farm: Farm, start: Start) -> None:
    configured, bare, keyed = farm.new(), farm.new(models=["bare"]), farm.new(models=["keyed"])
    router = start(configured, admin_key="adm", api_keys="one", upstream_api_key="up").probed()
    assert admin(router)("POST", bare) == 201
    assert admin(router)("POST", keyed, api_key="own") == 201
    client = {"Authorization": "Bearer one"}
    shown = {}
    for model, upstream in (("m", configured), ("bare", bare), ("keyed", keyed)):
        body = {"model": model}
        until(lambda body=body: router.post(json=body, headers=client).ok, "an answer")  # type: ignore[misc]
        shown[model] = farm.state(upstream)["seen"][-1]["headers"].get("authorization")
    assert shown == {"m": "Bearer up", "bare": None, "keyed": "Bearer own"}


def test_without_an_admin_key_nothing_can_be_changed(shared: tuple[RouterProcess, str]) -> None:
    router, upstream = shared
    assert router.get("/upstreams").ok
    refused = requests.delete(f"{router.url}/upstreams", json={"url": upstream}, timeout=TIMEOUT_S)
    assert refused.status_code == 403
    assert "ADMIN_KEY" in refused.json()["error"]["message"]


def test_router_keys_are_demanded_and_go_no_further(farm: Farm, start: Start) -> None:
    upstream = farm.new()
    router = start(upstream, api_keys="one,two").probed()
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
        refused = router.post(headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "invalid_request_error"
    for path in ("/v1/models", "/upstreams"):
        assert router.get(path).status_code == 401
        assert router.get(path, headers={"Authorization": "Bearer two"}).ok
    for key in ("one", "two"):
        assert router.post(headers={"Authorization": f"Bearer {key}"}).ok
    seen = farm.state(upstream)["seen"]
    assert len(seen) == 2
    assert all("authorization" not in s["headers"] for s in seen)


def test_a_client_that_leaves_the_queue_is_never_sent_on(farm: Farm, start: Start) -> None:
    upstream = farm.new(hold=True)
    router = start(upstream).probed()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(router.post)
        until(lambda: router.in_flight() == 1, "a running request")
        with socket.create_connection(("127.0.0.1", router.port), timeout=TIMEOUT_S) as leaver:
            leaver.sendall(raw_post(b'{"model": "m"}'))
            until(lambda: router.waiting() == 1, "a queued request")
        until(lambda: router.waiting() == 0, "the leaver to leave the queue")
        farm("release", url=upstream)
        assert running.result().ok
    assert len(farm.state(upstream)["seen"]) == 1


def test_a_body_with_broken_chunks_is_400_and_the_next_request_is_served(
    shared: tuple[RouterProcess, str],
) -> None:
    router, _ = shared
    with socket.create_connection(("127.0.0.1", router.port), timeout=TIMEOUT_S) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head + b"zz\r\n{}\r\n")
        assert b" 400 " in client.recv(4096).splitlines()[0]
    assert router.post().ok


@pytest.fixture(scope="module")
def hasty(farm: Farm) -> Iterator[RouterProcess]:
    router = RouterProcess(farm.new(), client_idle=1)
    yield router
    router.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/comple",
        b"",
        b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nContent-Length: 100\r\n\r\n{",
    ],
)
def test_a_client_that_dawdles_over_headers_or_body_is_dropped(
    hasty: RouterProcess, sent: bytes
) -> None:
    router = hasty
    with socket.create_connection(("127.0.0.1", router.port), timeout=TIMEOUT_S) as client:
        client.sendall(sent)
        answer = b""
        while chunk := client.recv(4096):
            answer += chunk
    assert not answer or b" 408 " in answer.splitlines()[0]


def test_a_client_that_stops_reading_loses_its_place(farm: Farm, start: Start) -> None:
    upstream = farm.new(events=200_000)
    router = start(upstream, stream_idle=0.3).probed()
    with socket.create_connection(("127.0.0.1", router.port), timeout=TIMEOUT_S) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(raw_post(b'{"model": "m", "stream": true}'))
        until(lambda: farm.state(upstream)["seen"], "the request to run")
        until(lambda: farm.state(upstream)["current"] == 0, "the place to be taken back")
        assert farm.state(upstream)["cancelled"] == 1
    assert router.upstreams()[upstream]["breaker"] == "closed"


def test_the_same_prompt_prefix_goes_to_the_same_upstream(farm: Farm, start: Start) -> None:
    urls = [farm.new() for _ in range(3)]
    router = start(*urls, policy="prefix", max_connect_per_upstream=8).probed()
    turns: list[dict[str, str]] = []
    for _ in range(5):
        turns.append({"role": "user", "content": "a long turn of the talk " * 40})
        assert router.post("/v1/chat/completions", json={"model": "m", "messages": turns}).ok
    assert sorted(len(farm.state(u)["seen"]) for u in urls) == [0, 0, 5]


def test_health_is_503_until_every_upstream_was_probed_once(farm: Farm, start: Start) -> None:
    silent = farm.new(models_delay=60)
    router = start(silent, farm.new(), probe_timeout=3)  # longer than the next line takes
    assert router.get("/health").status_code == 503
    until(lambda: router.get("/health").status_code == 200, "health")
    assert router.get("/health").json() == {"status": "ok", "upstreams": 2, "ready": 1}


def test_the_metrics_tell_what_happened(farm: Farm, start: Start) -> None:
    upstream = farm.new()
    router = start(upstream).probed()
    for _ in range(3):
        router.post()
    router.post(json={"model": "none"})
    labels = {"upstream": upstream, "model": "m"}
    assert router.metric("eb_router_requests_total", status="200", **labels) == 3
    assert router.metric("eb_router_first_byte_seconds_count", **labels) == 3
    assert router.metric("eb_router_added_seconds_count") == 3
    assert router.metric("eb_router_queue_seconds_count", model="m") == 3
    assert router.metric("eb_router_refused_total", reason="unknown_model") == 1
    assert router.metric("eb_router_ready", upstream=upstream) == 1
    assert router.metric("eb_router_breaker_state", upstream=upstream) == 0
    assert router.metric("eb_router_in_flight", upstream=upstream) == 0


def test_no_more_bytes_of_bodies_are_held_than_allowed(farm: Farm, start: Start) -> None:
    upstream = farm.new(hold=True)
    bounds = {"max_body_bytes": 100_000, "max_held_bytes": 150_000}
    router = start(upstream, max_connect_per_upstream=8, **bounds).probed()
    large = json.dumps({"model": "m", "prompt": "x" * 90_000}).encode()
    pieces = [large[at : at + 10_000] for at in range(0, len(large), 10_000)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(router.post, data=large)
        until(lambda: router.in_flight() == 1, "a large request to be held")
        for refused in (router.post(data=large), router.post(data=iter(pieces))):
            assert refused.status_code == 503
            assert refused.headers["Retry-After"]
            assert "MAX_HELD_BYTES" in refused.json()["error"]["message"]
        small = pool.submit(router.post)
        until(lambda: router.in_flight() == 2, "a small request beside it")
        farm("release", url=upstream)
        assert first.result().ok
        assert small.result().ok
    assert router.post(data=iter(pieces)).ok, "what was held is given back"
    answer = bytes(range(256)) * 1024
    how = {"raw": base64.b64encode(answer).decode()}
    farm("behave", url=upstream, **how)
    assert router.post().content == answer, "an answer that may not be held is passed on"
