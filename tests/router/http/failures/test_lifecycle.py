"""Starting, changing and stopping a router; its keys, its metrics and its log."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.router.conftest import Net, Pair, until
from tests.router.farm import TIMEOUT_S


def test_sigterm_finishes_what_runs_and_waits_and_refuses_the_rest(net: Net) -> None:
    upstream = net.upstream(hold_after=1)
    router = net.router(upstream)
    running = router.streaming()
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(router.post)
        until(lambda: router.waiting() == 1, "a queued request")
        router.signal(signal.SIGTERM)
        until(lambda: router.get("/health").status_code == 503, "draining")
        refused = router.post()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert router.get("/live").ok
        net.release(upstream)
        assert running.raw.read().endswith(b"data: [DONE]\n\n")
        assert queued.result().ok
    assert router.process.wait(timeout=TIMEOUT_S) == 0


def test_at_the_drain_limit_streams_end_with_an_error_event_and_the_rest_with_503(
    net: Net,
) -> None:
    router = net.router(net.upstream(hold_after=1), drain_timeout=0.2)
    running = router.streaming()
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(router.post)
        until(lambda: router.waiting() == 1, "a queued request")
        router.signal(signal.SIGTERM)
        rest = running.raw.read()
        assert b"shutting_down" in rest
        assert b"[DONE]" not in rest
        assert queued.result().status_code == 503
    assert router.process.wait(timeout=TIMEOUT_S) == 0


def test_sighup_reads_the_file_again_and_running_streams_survive(net: Net, tmp_path: Path) -> None:
    old, new = net.upstream(hold_after=1), net.upstream()
    listed = tmp_path / "upstreams"
    listed.write_text(old.url)
    router = net.router(upstreams_file=listed)
    running = router.streaming()
    listed.write_text(f"{new.url} limit=5")
    router.signal(signal.SIGHUP)
    until(lambda: router.upstreams().get(new.url, {}).get("ready"), "the new upstream")
    assert [(u["url"], u["limit"]) for u in router.upstreams().values()] == [(new.url, 5)]
    assert router.post().headers["X-Upstream-Origin"] == new.url
    net.release(old)
    assert running.raw.read().endswith(b"data: [DONE]\n\n")
    listed.write_text("nonsense")
    router.signal(signal.SIGHUP)
    until(lambda: router.logged("upstreams not read again"), "the refusal in the log")
    assert router.post().ok


def test_a_server_without_a_model_list_serves_the_models_declared_for_it(
    net: Net, tmp_path: Path
) -> None:
    upstream = net.upstream(models_status=404)
    listed = tmp_path / "upstreams"
    listed.write_text(f"{upstream.url} models=a,b")
    router = net.router(upstreams_file=listed, probe_interval=0.05)
    assert [m["id"] for m in router.get("/v1/models").json()["data"]] == ["a", "b"]
    assert router.post(json={"model": "b"}).ok
    upstream.behave(health_status=503)
    until(lambda: not router.upstreams()[upstream.url]["ready"], "the upstream to be lost")


def test_every_address_of_a_dns_name_is_an_upstream_until_it_is_removed(net: Net) -> None:
    pod, other = net.upstream(), net.upstream("before")
    listed = f"dns+http://localhost:{pod.port}"
    router = net.router(listed, other, admin_key="adm", probe_interval=0.05)
    until(lambda: router.upstreams().get(pod.url, {}).get("ready"), "the pod")
    assert router.post().headers["X-Upstream-Origin"] == pod.url
    assert router.upstreams()[pod.url]["source"].startswith("dns+")
    assert router.change("DELETE", pod.url) == 200
    for model in ("one", "two"):  # each seen in a round of probes of its own
        other.behave(models=[model])
        until(lambda m=model: router.upstreams()[other.url]["models"] == [m], "a round of probes")  # type: ignore[misc]
    assert pod.url not in router.upstreams()


def test_upstreams_are_added_drained_and_removed_at_run_time(net: Net) -> None:
    first, second = net.upstream(), net.upstream()
    router = net.router(first, admin_key="adm")
    assert router.change("POST", second.url, limit=3) == 201
    until(lambda: router.upstreams()[second.url]["ready"], "the added upstream")
    assert router.upstreams()[second.url]["limit"] == 3
    assert router.change("POST", first.url, "/drain") == 200
    assert {router.post().headers["X-Upstream-Origin"] for _ in range(5)} == {second.url}
    assert router.change("POST", first.url) == 200
    assert router.change("DELETE", second.url) == 200
    assert router.post().headers["X-Upstream-Origin"] == first.url
    assert set(router.upstreams()) == {first.url}
    assert router.change("DELETE", second.url) == 404
    assert router.change("POST", "file:///etc/passwd") == 400
    assert router.change("POST", second.url, limit=0) == 400
    assert router.get("/upstreams").status_code == 401
    address, key = f"{router.url}/upstreams", {"Authorization": "Bearer adm"}
    refused = requests.post(address, json={"url": second.url}, timeout=TIMEOUT_S)
    assert refused.status_code == 401
    assert "ADMIN_KEY" in refused.json()["error"]["message"]
    for body in (b"{", b"[" * 100_000):
        broken = requests.post(address, data=body, headers=key, timeout=TIMEOUT_S)
        assert broken.status_code == 400
        assert "not valid JSON" in broken.json()["error"]["message"]


def test_a_configured_server_that_is_drained_or_removed_comes_back_as_it_was(
    net: Net, tmp_path: Path
) -> None:
    upstream = net.upstream(models_status=404)
    listed = tmp_path / "upstreams"
    listed.write_text(f"{upstream.url} limit=7 key=secret models=declared")
    router = net.router(upstreams_file=listed, admin_key="adm")
    for verb, path in (("POST", "/drain"), ("DELETE", "")):
        assert router.change(verb, upstream.url, path) == 200
        assert router.change("POST", upstream.url) in (200, 201)
        until(lambda: router.post(json={"model": "declared"}).ok, "the server to be back")
        shown = router.upstreams()[upstream.url]
        assert (shown["limit"], shown["source"]) == (7, "file")
        assert upstream.headers[-1]["authorization"] == "Bearer secret"


def test_a_server_added_at_run_time_gets_no_key_but_its_own(net: Net) -> None:
    configured, bare, keyed = net.upstream(), net.upstream("bare"), net.upstream("keyed")
    router = net.router(configured, admin_key="adm", api_keys="one", upstream_api_key="up")
    assert router.change("POST", bare.url) == 201
    assert router.change("POST", keyed.url, api_key="own") == 201
    sent: dict[str, Any] = {"headers": {"Authorization": "Bearer one"}}
    shown = {}
    for model, upstream in (("m", configured), ("bare", bare), ("keyed", keyed)):
        sent["json"] = {"model": model}
        until(lambda: router.post(**sent).ok, "an answer")
        shown[model] = upstream.headers[-1].get("authorization")
    assert shown == {"m": "Bearer up", "bare": None, "keyed": "Bearer own"}


def test_without_an_admin_key_nothing_can_be_changed(shared: Pair) -> None:
    assert shared.router.get("/upstreams").ok
    assert shared.router.change("DELETE", shared.upstream.url) == 403
    assert shared.router.post().ok


def test_router_keys_are_demanded_and_go_no_further(net: Net) -> None:
    upstream = net.upstream()
    router = net.router(upstream, api_keys="one,two")
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
        refused = router.post(headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "invalid_request_error"
    for path in ("/v1/models", "/upstreams"):
        assert router.get(path).status_code == 401
        assert router.get(path, headers={"Authorization": "Bearer two"}).ok
    for key in ("one", "two"):
        assert router.post(headers={"Authorization": f"Bearer {key}"}).ok
    assert ["authorization" in headers for headers in upstream.headers] == [False, False]


@pytest.mark.parametrize("key", ["Bearer sk-1", None])
def test_without_router_keys_authorization_reaches_the_upstream(
    shared: Pair, key: str | None
) -> None:
    assert shared.router.post(headers={"Authorization": key} if key else {}).ok
    assert shared.upstream.headers[-1].get("authorization") == key


def test_the_same_prompt_prefix_goes_to_the_same_upstream(net: Net) -> None:
    upstreams = [net.upstream() for _ in range(3)]
    router = net.router(*upstreams, policy="prefix", max_connect_per_upstream=8)
    turns: list[dict[str, str]] = []
    for _ in range(5):
        turns.append({"role": "user", "content": "a long turn of the talk " * 40})
        assert router.post("/v1/chat/completions", json={"model": "m", "messages": turns}).ok
    assert sorted(len(upstream.bodies) for upstream in upstreams) == [0, 0, 5]


def test_the_metrics_and_the_log_tell_what_happened(net: Net) -> None:
    upstream = net.upstream()
    router = net.router(upstream, debug=True)
    for name in ("one", "two", "three"):
        router.post(headers={"X-Request-Id": name})
    router.post(json={"model": "none"})
    labels = {"upstream": upstream.url, "model": "m"}
    assert router.metric("eb_router_requests_total", status="200", **labels) == 3
    assert router.metric("eb_router_first_byte_seconds_count", **labels) == 3
    assert router.metric("eb_router_added_seconds_count") == 3
    assert router.metric("eb_router_queue_seconds_count", model="m") == 3
    assert router.metric("eb_router_refused_total", reason="unknown_model") == 1
    assert router.metric("eb_router_ready", upstream=upstream.url) == 1
    assert router.metric("eb_router_breaker_state", upstream=upstream.url) == 0
    assert router.metric("eb_router_in_flight", upstream=upstream.url) == 0
    until(lambda: len(router.logged("request")) == 4, "the lines, written after the answers")
    (line,) = (line for line in router.logged("request") if line["request"] == "two")
    assert line["upstream"] == upstream.url
    assert (line["status"], line["attempts"], line["model"]) == (200, 1, "m")
