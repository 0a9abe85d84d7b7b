"""Upstreams that refuse, break, drop, freeze, push back, are not there, or send what no server
should."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests
from urllib3.exceptions import HTTPError

from tests.router.conftest import Net, RouterProcess
from tests.support.process import PATIENCE_S, eventually
from tests.support.wire import post

IN_TURN = "round-robin"  # the first request goes to the upstream that is listed first
STREAM = {"model": "m", "stream": True}


@contextmanager
def side_by_side(router: RouterProcess, number: int) -> Iterator[list[Future[requests.Response]]]:
    with ThreadPoolExecutor(number) as pool:
        yield [pool.submit(router.post) for _ in range(number)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "how",
    [{"drop": "before"}, {"drop": "body", "cut_after": 0}, {"status": 500}, {"status": 429}],
    ids=["unanswered", "cut off", "500", "429"],
)
def test_a_failure_before_the_first_byte_is_retried_elsewhere(
    net: Net, how: dict[str, object], stream: bool
) -> None:
    broken, good = net.upstream(**how), net.upstream()
    router = net.router(broken, good, policy=IN_TURN)
    answer = router.post(json={"model": "m", "stream": stream})
    assert (answer.status_code, answer.headers["X-Upstream-Origin"]) == (200, good.url)
    assert answer.text.endswith("data: [DONE]\n\n") is stream
    assert "unfinished" not in answer.text
    assert len(broken.bodies) == 1
    assert router.metric("eb_router_retries_total", upstream=broken.url) == 1
    assert router.in_flight() == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/generate_stream"])
def test_an_upstream_lost_mid_stream_ends_the_stream_with_an_error_event(
    net: Net, path: str
) -> None:
    upstream, spare = net.upstream(cut_after=3), net.upstream()
    router = net.router(upstream, spare, policy=IN_TURN)
    answer = router.post(path, json=STREAM)
    events = [json.loads(e.removeprefix("data: ")) for e in answer.text.split("\n\n") if e]
    assert len(events) == 4
    assert "upstream_failed" in json.dumps(events[-1])
    assert not spare.bodies
    assert router.metric("eb_router_broken_answers_total") == 1
    assert router.in_flight() == 0


def test_errors_name_no_address_of_a_server_to_clients_but_in_the_log(net: Net) -> None:
    upstream = net.upstream(drop="before")
    router = net.router(upstream, batch_upstream="any", stream_idle=0.3)
    told = [router.post(), router.post("/v1/files")]
    for how in ({"drop": "", "cut_after": 2}, {"drop": "", "hold_after": 2}):
        told.append(router.post(json={**STREAM, "behave": how}))
    eventually(lambda: upstream.current == 0, "the silent stream to be closed")
    upstream.close()
    told += [router.post(), router.post("/v1/files")]
    assert [answer.status_code for answer in told] == [502, 502, 200, 200, 502, 502]
    for answer in told:
        assert "upstream_failed" in answer.text
        assert "[DONE]" not in answer.text
        assert str(upstream.port) not in answer.text
        assert answer.ok or "X-Upstream-Origin" not in answer.headers
    assert upstream.url in json.dumps(router.logged("attempt failed"))


def test_an_upstream_that_is_silent_opens_its_breaker_only_within_an_immediate_stream(
    net: Net,
) -> None:
    """Before a response begins it may be a long one, and a deferred one may be paused."""
    keys = [f"k{i}" for i in range(8)]
    upstream = net.upstream()
    router = net.router(
        upstream, api_keys=",".join(keys), admin_key="a", max_connect_per_upstream=16,
        timeout=2000, stream_idle=0.3,  # enough for eight answers on a busy machine
    )  # fmt: skip

    def each(**body: object) -> set[int]:
        def post(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return router.post(json={"model": "m", **body}, headers=headers).status_code

        with ThreadPoolExecutor(8) as pool:
            return set(pool.map(post, keys))

    assert each(behave={"delay": 60}) == {504}, "no answer within TIMEOUT"
    paused = {"stream": True, "behave": {"hold_after": 1}}
    assert each(**paused, service_tier="flex") == {200}
    assert router.upstreams()[upstream.url]["breaker"] == "closed"
    assert each(**paused) == {200}
    eventually(lambda: router.upstreams()[upstream.url]["breaker"] == "open", "the breaker")


@pytest.mark.parametrize("status", [404, 429, 500])
def test_the_upstreams_status_and_headers_reach_the_client(net: Net, status: int) -> None:
    how = {"status": status, "headers": {"Retry-After": "30", "X-Usage": "3"}}
    upstream = net.upstream(**how)
    router = net.router(upstream, net.upstream("other"))
    answer = router.post()
    assert (answer.status_code, answer.json()["id"]) == (status, "cmpl-1")
    assert (answer.headers["Retry-After"], answer.headers["X-Usage"]) == ("30", "3")
    # back pressure is no failure: the upstream rests as long as it says
    assert (router.upstreams()[upstream.url]["paused_s"] > 20) == (status == 429)


def test_wait_for_and_timeout_last_what_they_say(net: Net) -> None:
    """Bounds from below only: above, a busy machine decides."""
    upstream = net.upstream(hold_after=1)
    router = net.router(upstream, timeout=700, wait_for=300)
    lost = net.router("http://127.0.0.1:9", upstream, wait_for=300, probe_interval=0.1)

    def refused(by: RouterProcess, at_least_s: float, **behave: float) -> tuple[int, str]:
        begun = time.monotonic()
        answer = by.post(json={"model": "m", "behave": behave})
        assert time.monotonic() - begun >= at_least_s
        return answer.status_code, answer.json()["error"]["code"]

    # again where a busy machine took longer to begin it than TIMEOUT allows; a refusal is false
    running = eventually(lambda: router.post(json=STREAM, stream=True), "a running stream")
    assert refused(router, 0.7) == (503, "timeout")
    upstream.release()
    assert running.text.endswith("data: [DONE]\n\n"), "TIMEOUT does not cut a running stream"
    assert refused(router, 0.7, delay=60)[0] == 504
    upstream.behave(probe_status=503)
    eventually(lambda: not any(u["ready"] for u in lost.upstreams().values()), "no ready upstream")
    assert refused(lost, 0.3) == (503, "no_upstream_ready")


def test_a_router_that_starts_before_its_upstreams_finds_them(net: Net) -> None:
    upstream = net.upstream()
    upstream.close()
    router = net.router(upstream, probe_interval=3600)
    assert router.post().status_code == 422
    upstream.start()
    eventually(lambda: router.post().ok, "the router to find the upstream")


def test_a_full_queue_is_reported(net: Net) -> None:
    busy = net.upstream(hold=True)
    small = net.router(busy, max_queue=1)
    with side_by_side(small, 2) as taken:
        eventually(lambda: small.waiting() == 1, "a full queue")
        full = small.post()
        busy.release()
        assert all(answer.result().ok for answer in taken)
    assert full.status_code == 429
    assert int(full.headers["Retry-After"]) >= 1


def test_while_a_server_hangs_in_its_first_probe_the_others_serve(net: Net) -> None:
    busy, hanging = net.upstream(hold=True), net.upstream(said="", stalls=True)
    router = net.starting(busy, hanging, probe_timeout=PATIENCE_S)
    with side_by_side(router, 2) as asked:
        eventually(lambda: router.in_flight() == 1 and router.waiting() == 1, "one that waits")
        assert router.get("/health").status_code == 503, "not every upstream was probed once"
        busy.release()
        assert all(answer.result().ok for answer in asked)
    hasty = net.router(hanging, busy, probe_timeout=0.3)
    assert hasty.get("/health").json() == {"status": "ok", "upstreams": 2, "ready": 1}


# --- hostile upstreams: the router and its probes survive, and the others are served -----------

OK = "HTTP/1.1 200 OK\r\n"
JSON = OK + "Content-Type: application/json\r\nConnection: close\r\n"
LISTS = {
    "nested too deeply": JSON + '\r\n{"data": ' + "[" * 100_000,
    "an unknown charset": OK + "Content-Type: application/json; charset=martian\r\n\r\n[]",
    "not UTF-8": JSON + '\r\n{"data": [{"id": "\xff"}]}',
    "half a surrogate pair": JSON + '\r\n{"data": [{"id": "\\ud800"}]}',
    "not JSON": JSON + '\r\n{"data": [NaN]}',
    "empty": JSON + "Content-Length: 0\r\n\r\n",
    "wrong types": JSON + '\r\n{"data": [1, null, {"id": 5}, {"id": null}, [], {}]}',
    "not a list": JSON + '\r\n{"data": {"id": "m"}}',
    "broken chunks": JSON + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "compressed": JSON + "Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08garbage",
    "no HTTP": "\x00\xff\r\n\r\n",
    "an odd status": "HTTP/1.1 999 \xff\r\n\r\n",
    "switches protocols": "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "endless headers": OK + "X-A: b\r\n" * 100_000,
}


def test_no_list_of_models_ends_the_probes(net: Net) -> None:
    good = net.upstream()
    odd = {name: net.upstream(said=said) for name, said in LISTS.items()}
    odd["long"] = net.upstream(said=JSON + "\r\n" + " " * 2**21)
    router = net.router(*odd.values(), good, probe_interval=0.1, probe_timeout=5)
    states = router.upstreams()
    assert not [name for name, upstream in odd.items() if states[upstream.url]["models"]]
    assert "longer than" in states[odd["long"].url]["last_error"]
    good.behave(models=["m", "new"])  # seen by a later round
    eventually(lambda: router.upstreams()[good.url]["models"] == ["m", "new"], "another round")
    assert router.post(json={"model": "new"}).ok
    assert router.get("/metrics").ok


def test_no_answer_to_a_request_ends_the_router(net: Net, tmp_path: Path) -> None:
    """An odd content type is passed on as it is."""
    kinds = "text/event-stream; charset=martian", "\xff;=;", ""
    heads = [f"{OK}Content-Type: {kind}\r\nContent-Length: 2\r\n\r\n{{}}" for kind in kinds]
    odd = [net.upstream(said=said) for said in [*LISTS.values(), *heads]]
    listed = tmp_path / "upstreams"
    lines = [f"{upstream.url} models={number}" for number, upstream in enumerate(odd)]
    listed.write_text("\n".join([net.upstream("good").url, *lines]))
    # no probe between the first and the requests: some of them call an upstream not ready
    router = net.router(upstreams_file=listed, probe_interval=3600, max_attempts=1, wait_for=1)
    ready = [u["models"][0] for u in router.upstreams().values() if u["ready"]]
    assert len(ready) > 3
    for model in ready:
        for stream in (False, True):
            ask = {"model": model, "stream": stream}
            with router.post(json=ask, stream=True) as answer, suppress(HTTPError):
                assert answer.status_code in (200, 502), model
                answer.raw.read()  # may break off
    for number in range(len(LISTS), len(odd)):
        assert router.post(json={"model": str(number)}).content == b"{}"
    assert router.post(json={"model": "good"}).ok


def test_a_refusal_whose_body_is_late_holds_no_place(net: Net) -> None:
    refused = "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{"
    router = net.router(net.upstream(said=refused, said_to="POST", stalls=True))
    with socket.create_connection(("127.0.0.1", router.port)) as client:
        client.sendall(b"".join(post("/v1/completions", model="m")))
        begun = "eb_router_first_byte_seconds_count"
        eventually(lambda: router.metric(begun), "the head of the refusal")
        assert router.in_flight() == 0
