"""What the router decides before it chooses a server: other names of models, limits of a minute,
and the order of the queue."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import openai
import pytest

from tests.router.conftest import Net
from tests.support.process import eventually


def test_a_model_has_other_names_and_others_that_stand_in_for_it(net: Net) -> None:
    small, large = net.upstream("small"), net.upstream("large")
    router = net.router(
        small, large, alias="gpt-4o=large,large=small,none=small,none=large", admin_key="k"
    )
    asked = '{ "prompt" : ["\\u00e9 x", 1e2], "model":"gpt-4o" }'

    def answered(body: str) -> Any:
        return router.post(data=body, headers={"Content-Type": "application/json"}).json()["model"]

    assert answered(asked) == "large"
    assert json.loads(large.bodies[-1]) == json.loads(asked) | {"model": "large"}
    assert b'"\\u00e9 x"' in large.bodies[-1], "as the client wrote it"
    assert answered('{"model": "none"}') == "small"
    assert answered('{"model": "large"}') == "large"
    untouched = '{ "model" : "large"}'
    answered(untouched)
    assert large.bodies[-1].decode() == untouched
    assert router.change("POST", large.url, "/drain") == 200
    assert answered('{"model": "large"}') == "small"
    assert router.get("/v1/models/none").json()["id"] == "small"
    assert router.post(json={"model": "other"}).status_code == 422


def test_a_clients_minute_is_told_and_kept_as_openai_tells_and_keeps_it(net: Net) -> None:
    upstream = net.upstream()
    router = net.router(upstream, api_keys="a,b", requests_per_minute=2, tokens_per_minute=1000)
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="a", max_retries=0)
    answer = client.completions.with_raw_response.create(model="m", prompt="x", max_tokens=100)
    told = answer.headers
    assert told["x-ratelimit-limit-requests"] == "2"
    assert told["x-ratelimit-remaining-requests"] == "1"
    assert told["x-ratelimit-limit-tokens"] == "1000"
    assert 800 <= int(told["x-ratelimit-remaining-tokens"]) <= 900
    for kind in ("requests", "tokens"):
        assert re.fullmatch(r"(\d+m)?[\d.]+m?s", told[f"x-ratelimit-reset-{kind}"])
    with client.completions.create(model="m", prompt="x", stream=True) as stream:
        assert list(stream)
        assert stream.response.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(model="m", prompt="x")
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["Retry-After"]) <= 30
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(upstream.bodies) == 2
    other = {"Authorization": "Bearer b"}
    too_large = router.post(json={"model": "m", "max_tokens": 2000}, headers=other)
    assert too_large.status_code == 429
    assert "Retry-After" not in too_large.headers, "it will never fit"
    assert too_large.json()["error"]["type"] == "tokens"
    assert router.post(headers=other).ok, "what was refused does not count"
    assert router.metric("eb_router_refused_total", reason="rate_limit") == 2


def test_a_fair_queue_serves_urgent_requests_first_and_users_in_turn(net: Net) -> None:
    upstream = net.upstream(hold=True)
    router = net.router(upstream, queue_order="fair", max_priority=-1)

    def send(number: int, user: str, priority: int) -> int:
        headers = {"X-User-Id": user, "X-Priority": str(priority)}
        body = {"model": "m", "prompt": "x" * 400, "max_tokens": 10, "number": number}
        return router.post(json=body, headers=headers).status_code

    def all_wait(number: int) -> bool:
        return router.waiting() == number and router.in_flight() == 1

    asked = [*[("a", 0)] * 4, ("b", 0), ("b", 0), ("c", 5), ("a", -9)]
    with ThreadPoolExecutor(len(asked)) as pool:
        ends = []
        for number, (user, priority) in enumerate(asked):
            ends.append(pool.submit(send, number, user, priority))
            eventually(partial(all_wait, number), "the queue")
        upstream.release()
        assert {end.result() for end in ends} == {200}
    # a was charged for the first when b began to wait; the last counts as -1
    served = [json.loads(body)["number"] for body in upstream.bodies]
    assert served == [0, 7, 4, 1, 5, 2, 3, 6]
