"""Requests that web pages of others send: what the router refuses, and what it passes on."""

from __future__ import annotations

import pytest
import requests

from tests.router.conftest import Net, Pair
from tests.router.farm import TIMEOUT_S

EVIL = "evil.example"
PAGE = "https://friend.example"


@pytest.mark.parametrize("path", ["/v1/models", "/upstreams", "/metrics", "/health", "/nowhere"])
def test_a_page_that_rebinds_its_name_reads_nothing(shared: Pair, path: str) -> None:
    router = shared.router
    answer = router.get(path, headers={"Host": f"{EVIL}:{router.port}"})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "forbidden"
    assert EVIL in error["message"]
    assert "--allow-hosts" in error["message"]
    assert router.get(path, headers={"Host": f"localhost:{router.port}"}).status_code != 403


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files", "/generate", "/upstreams"])
def test_a_page_of_another_origin_reaches_no_upstream(shared: Pair, path: str) -> None:
    before = len(shared.upstream.bodies)
    for name, value in (("Origin", f"http://{EVIL}"), ("Sec-Fetch-Site", "cross-site")):
        assert shared.router.post(path, headers={name: value}).status_code == 403
    assert len(shared.upstream.bodies) == before


def test_an_upstream_sees_its_own_name_and_none_of_the_pages(net: Net) -> None:
    """So a server accepts what the router sends if it has the name that the router knows it by."""
    upstream = net.upstream()
    named = f"localhost:{upstream.port}"
    router = net.router(f"http://{named}", cors_origin=PAGE, allow_hosts="front,.svc")
    for headers in (
        {"Host": "front:8000"},
        {"Host": "eb-router.default.svc", "Origin": PAGE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": router.url},
    ):
        assert router.post(headers=headers).status_code == 200
        assert upstream.headers[-1]["host"] == named
        assert not {"origin", "sec-fetch-site"} & set(upstream.headers[-1])
    for origin, told in ((PAGE, PAGE), (f"http://{EVIL}", None)):
        answer = router.get("/live", headers={"Origin": origin})
        assert answer.headers.get("Access-Control-Allow-Origin") == told
        assert answer.headers["Vary"] == "Origin"
    assert router.get("/live", headers={"Host": EVIL}).status_code == 403


def test_with_a_key_every_host_is_accepted_and_a_star_means_every_page(net: Net) -> None:
    strange = {"Host": EVIL, "Origin": f"http://{EVIL}", "Authorization": "Bearer sesame"}
    guarded = net.router(net.upstream(), cors_origin="*", api_keys="sesame")
    assert guarded.post(headers=strange).status_code == 200
    open_to_all = net.router(net.upstream(), cors_origin="*")
    refused = open_to_all.post(headers={**strange, "Host": f"127.0.0.1:{open_to_all.port}"})
    assert refused.status_code == 403
    assert "--cors-origin (* only with --api-keys)" in refused.json()["error"]["message"]
    # the page may read why
    assert refused.headers["Access-Control-Allow-Origin"] == "*"


def test_cross_origin_headers_are_on_answers_to_post_where_they_are_asked_for(
    shared: Pair, net: Net
) -> None:
    router = net.router(net.upstream(), cors_origin="*")
    for body in ({"model": "m"}, {"model": "m", "stream": True}, {"model": "none"}):
        assert router.post(json=body).headers["Access-Control-Allow-Origin"] == "*"
    asked = {"Access-Control-Request-Headers": "authorization, x-stainless-os"}
    preflight, by_default = (
        requests.options(f"{asker.url}/v1/completions", headers=asked, timeout=TIMEOUT_S)
        for asker in (router, shared.router)
    )
    assert preflight.status_code == 204
    assert "x-stainless-os" in preflight.headers["Access-Control-Allow-Headers"]
    for answer in (by_default, shared.router.post()):
        assert not [name for name in answer.headers if name.startswith("Access-Control")]
