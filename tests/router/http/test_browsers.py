"""Requests that web pages of others send: what the router refuses, and what it passes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.router.conftest import Farm, RouterProcess

EVIL = "evil.example"
PAGE = "https://friend.example"
Start = Callable[..., RouterProcess]
Shared = tuple[RouterProcess, str]


@pytest.mark.parametrize("path", ["/v1/models", "/upstreams", "/metrics", "/health", "/nowhere"])
def test_a_page_that_rebinds_its_name_reads_nothing(shared: Shared, path: str) -> None:
    router, _ = shared
    answer = router.get(path, headers={"Host": f"{EVIL}:{router.port}"})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "forbidden"
    assert EVIL in error["message"]
    assert "--allow-hosts" in error["message"]
    assert router.get(path, headers={"Host": f"localhost:{router.port}"}).status_code != 403


@pytest.mark.parametrize(
    "page", [{"Origin": f"http://{EVIL}"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files", "/generate", "/upstreams"])
def test_a_page_of_another_origin_reaches_no_upstream(
    shared: Shared, farm: Farm, path: str, page: dict[str, str]
) -> None:
    router, upstream = shared
    before = len(farm.state(upstream)["seen"])
    assert router.post(path, headers=page).status_code == 403
    assert len(farm.state(upstream)["seen"]) == before


def test_an_upstream_sees_its_own_name_and_none_of_the_pages(start: Start, farm: Farm) -> None:
    """So a server accepts what the router sends if it has the name that the router knows it by."""
    upstream = farm.new().replace("127.0.0.1", "localhost")
    router = start(upstream, cors_origin=PAGE, allow_hosts="front,.svc").probed()
    for headers in (
        {"Host": "front:8000"},
        {"Host": "eb-router.default.svc", "Origin": PAGE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": router.url},
    ):
        assert router.post(headers=headers).status_code == 200
        seen = farm.state(upstream.replace("localhost", "127.0.0.1"))["seen"][-1]["headers"]
        assert seen["host"] == upstream.removeprefix("http://")
        assert not {"origin", "sec-fetch-site"} & set(seen)
    assert router.get("/live", headers={"Host": EVIL}).status_code == 403


def test_only_the_page_of_the_option_may_read(start: Start, farm: Farm) -> None:
    router = start(farm.new(), cors_origin=PAGE)
    for origin, told in ((PAGE, PAGE), (f"http://{EVIL}", None)):
        answer = router.get("/live", headers={"Origin": origin})
        assert answer.headers.get("Access-Control-Allow-Origin") == told
        assert answer.headers["Vary"] == "Origin"


def test_with_a_key_every_host_is_accepted_and_a_star_means_every_page(
    start: Start, farm: Farm
) -> None:
    strange = {"Host": EVIL, "Origin": f"http://{EVIL}", "Authorization": "Bearer sesame"}
    guarded = start(farm.new(), cors_origin="*", api_keys="sesame").probed()
    assert guarded.post(headers=strange).status_code == 200
    open_to_all = start(farm.new(), cors_origin="*").probed()
    refused = open_to_all.post(headers={**strange, "Host": f"127.0.0.1:{open_to_all.port}"})
    assert refused.status_code == 403
    assert "--cors-origin (* only with --api-keys)" in refused.json()["error"]["message"]
    # the page may read why
    assert refused.headers["Access-Control-Allow-Origin"] == "*"
