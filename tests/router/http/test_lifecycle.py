"""Starting, changing and stopping a router; its keys and metrics; names as upstreams."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.router.conftest import Net, Pair, RouterProcess
from tests.support.process import PATIENCE_S, eventually
from tests.support.upstream import ScriptedUpstream


@contextmanager
def ending(net: Net, **options: Any) -> Iterator[tuple[RouterProcess, ScriptedUpstream, Any, Any]]:
    """A router that ends while a stream runs and a request waits."""
    upstream = net.upstream(hold_after=1)
    router = net.router(upstream, **options)
    running = router.streaming()
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(router.post)
        eventually(lambda: router.waiting() == 1, "a queued request")
        router.process.send_signal(signal.SIGTERM)
        yield router, upstream, running, queued
    assert router.process.wait(timeout=PATIENCE_S) == 0


def test_sigterm_finishes_what_runs_and_waits_and_refuses_the_rest(net: Net) -> None:
    with ending(net) as (router, upstream, running, queued):
        eventually(lambda: router.get("/health").status_code == 503, "draining")
        refused = router.post()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert router.get("/live").ok
        upstream.release()
        assert running.raw.read().endswith(b"data: [DONE]\n\n")
        assert queued.result().ok


def test_at_the_drain_limit_streams_end_with_an_error_event_and_the_rest_with_503(
    net: Net,
) -> None:
    with ending(net, drain_timeout=0.2) as (_, _, running, queued):
        rest = running.raw.read()
        assert b"shutting_down" in rest
        assert b"[DONE]" not in rest
        assert queued.result().status_code == 503


def test_sighup_reads_the_file_again_and_running_streams_survive(net: Net, tmp_path: Path) -> None:
    old, new = net.upstream(hold_after=1), net.upstream()
    listed = tmp_path / "upstreams"
    listed.write_text(old.url)
    router = net.router(upstreams_file=listed)
    running = router.streaming()
    listed.write_text(f"{new.url} limit=5")
    router.process.send_signal(signal.SIGHUP)
    eventually(lambda: router.upstreams().get(new.url, {}).get("ready"), "the new upstream")
    assert [(u["url"], u["limit"]) for u in router.upstreams().values()] == [(new.url, 5)]
    assert router.post().headers["X-Upstream-Origin"] == new.url
    old.release()
    assert running.raw.read().endswith(b"data: [DONE]\n\n")
    listed.write_text("nonsense")
    router.process.send_signal(signal.SIGHUP)
    eventually(lambda: router.logged("upstreams not read again"), "the refusal in the log")
    assert router.post().ok


def test_upstreams_are_added_drained_and_removed_at_run_time(net: Net) -> None:
    first, second = net.upstream(), net.upstream()
    router = net.router(first, admin_key="adm")
    assert router.change("POST", second.url, limit=3) == 201
    eventually(lambda: router.upstreams()[second.url]["ready"], "the added upstream")
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
    body = {"url": second.url}
    assert requests.post(address, json=body, timeout=PATIENCE_S).status_code == 401
    for broken in (b"{", b"[" * 100_000):
        answer = requests.post(address, data=broken, headers=key, timeout=PATIENCE_S)
        assert answer.status_code == 400


def test_a_configured_server_that_is_drained_or_removed_comes_back_as_it_was(
    net: Net, tmp_path: Path
) -> None:
    """It serves the models that are declared for it."""
    upstream = net.upstream()
    listed = tmp_path / "upstreams"
    listed.write_text(f"{upstream.url} limit=7 key=secret models=a,b")
    router = net.router(upstreams_file=listed, admin_key="adm", probe_interval=0.05)
    assert [m["id"] for m in router.get("/v1/models").json()["data"]] == ["a", "b"]
    for verb, path in (("POST", "/drain"), ("DELETE", "")):
        assert router.change(verb, upstream.url, path) == 200
        assert router.change("POST", upstream.url) in (200, 201)
        eventually(lambda: router.post(json={"model": "b"}).ok, "the server to be back")
        shown = router.upstreams()[upstream.url]
        assert (shown["limit"], shown["source"]) == (7, "file")
        assert upstream.headers[-1]["authorization"] == "Bearer secret"
    upstream.behave(probe_status=503)
    eventually(lambda: not router.upstreams()[upstream.url]["ready"], "the upstream to be lost")


def test_a_server_added_at_run_time_gets_no_key_but_its_own(net: Net) -> None:
    configured, bare, keyed = net.upstream(), net.upstream("bare"), net.upstream("keyed")
    router = net.router(configured, admin_key="adm", api_keys="one", upstream_api_key="up")
    assert router.change("POST", bare.url) == 201
    assert router.change("POST", keyed.url, api_key="own") == 201
    sent: dict[str, Any] = {"headers": {"Authorization": "Bearer one"}}
    shown = {}
    for model, upstream in (("m", configured), ("bare", bare), ("keyed", keyed)):
        sent["json"] = {"model": model}
        eventually(lambda: router.post(**sent).ok, "an answer")
        shown[model] = upstream.headers[-1].get("authorization")
    assert shown == {"m": "Bearer up", "bare": None, "keyed": "Bearer own"}


def test_without_keys_nothing_can_be_changed_and_authorization_reaches_the_upstream(
    shared: Pair,
) -> None:
    assert shared.router.get("/upstreams").ok
    assert shared.router.change("DELETE", shared.upstream.url) == 403
    for key in ("Bearer sk-1", None):
        assert shared.router.post(headers={"Authorization": key} if key else {}).ok
        assert shared.upstream.headers[-1].get("authorization") == key


def test_router_keys_are_demanded_and_go_no_further(net: Net) -> None:
    upstream = net.upstream()
    router = net.router(upstream, api_keys="one,two")
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
        assert router.post(headers=headers).status_code == 401
    for path in ("/v1/models", "/upstreams"):
        assert router.get(path).status_code == 401
        assert router.get(path, headers={"Authorization": "Bearer two"}).ok
    assert router.post(headers={"Authorization": "Bearer one"}).ok
    assert ["authorization" in headers for headers in upstream.headers] == [False]


def test_the_same_prompt_prefix_goes_to_the_same_upstream(net: Net) -> None:
    upstreams = [net.upstream() for _ in range(3)]
    router = net.router(*upstreams, policy="prefix", max_connect_per_upstream=8)
    turns: list[dict[str, str]] = []
    for _ in range(5):
        turns.append({"role": "user", "content": "a long turn of the talk " * 40})
        assert router.post("/v1/chat/completions", json={"model": "m", "messages": turns}).ok
    assert sorted(len(upstream.bodies) for upstream in upstreams) == [0, 0, 5]


def test_the_metrics_tell_what_happened(net: Net) -> None:
    upstream = net.upstream()
    router = net.router(upstream)
    assert router.post(headers={"X-Request-Id": "mine"}).headers["X-Request-Id"] == "mine"
    assert upstream.headers[-1]["x-request-id"] == "mine"
    assert router.post(headers={"X-Request-Id": "x" * 500}).headers["X-Request-Id"][:4] == "req-"
    router.post(json={"model": "none"})
    labels = {"upstream": upstream.url, "model": "m"}
    assert router.metric("eb_router_requests_total", status="200", **labels) == 2
    for name in ("first_byte", "added", "queue"):
        assert router.metric(f"eb_router_{name}_seconds_count") == 2
    assert router.metric("eb_router_refused_total", reason="unknown_model") == 1


NOWHERE = f"dns+http://{'n' * 64}:8500"  # a label of more than 63 characters: no server is asked


def test_names_without_an_address_are_no_reason_to_be_healthy_and_harm_no_other_server(
    net: Net,
) -> None:
    router = net.starting(NOWHERE, wait_for=50)
    eventually(lambda: router.logged("name not resolved"), "a lookup")
    assert router.get("/health").status_code == 503
    for refused in (router.post(), router.post(json={}), router.get("/v1/models/m")):
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == "no_upstream_ready"
    pod = net.upstream()
    named = f"dns+http://localhost:{pod.port}"  # each address of a name is an upstream
    router = net.router(named, NOWHERE, wait_for=50, batch_upstream="any")
    eventually(lambda: router.upstreams().get(pod.url, {}).get("ready"), "the pod")
    assert router.upstreams()[pod.url]["source"] == named
    assert router.post(json={"prompt": "x"}).ok
    for model, status in (("m", 200), ("other", 503)):  # its servers may have the other one
        assert router.post(json={"model": model}).status_code == status
        asked = router.post("/v1/batches", json={}, headers={"X-Model": model})
        assert asked.status_code == status
