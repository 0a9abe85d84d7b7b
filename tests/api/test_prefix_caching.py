"""What clients and operators see of shared prefixes, and what other clients do not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from flask.testing import FlaskClient

from serving.config import Config
from tests.api.conftest import serving

PROMPT = "You are a helpful assistant. "


def cached(client: FlaskClient, prompt: str, key: str = "one", **fields: object) -> int:
    answer = client.post(
        "/v1/completions",
        json={"model": "embedded", "prompt": prompt, "max_tokens": 1, **fields},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.get_json()
    assert answer.json is not None
    found: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def figures(client: FlaskClient) -> Mapping[str, int]:
    answer = client.get("/stats", headers={"Authorization": "Bearer one"}).json
    assert answer is not None
    found: Mapping[str, int] = answer["prefix-cache"]
    return found


def test_a_beginning_is_found_by_requests_of_the_same_key_alone() -> None:
    with serving(Config(mode="dynamic", api_key="one,two")) as client:
        assert cached(client, PROMPT + "a") == 0
        assert cached(client, PROMPT + "b") == len(PROMPT)
        assert cached(client, PROMPT + "b", key="two") == 0
        assert cached(client, PROMPT + "c", key="two") == len(PROMPT)


def test_figures_and_metrics_count_what_was_looked_up_and_found() -> None:
    with serving(Config(mode="dynamic", api_key="one")) as client:
        for end in "ab":
            cached(client, PROMPT + end)
        looked_up, hit = 2 * (len(PROMPT) + 1), len(PROMPT)
        assert figures(client) == {"looked-up-tokens": looked_up, "hit-tokens": hit}
        page = client.get("/metrics", headers={"Authorization": "Bearer one"}).text
        assert f"eb_prefix_cache_looked_up_tokens_total {looked_up}.0" in page
        assert f"eb_prefix_cache_hit_tokens_total {hit}.0" in page


def test_choices_of_a_prompt_count_it_once() -> None:
    with serving(Config(mode="dynamic")) as client:
        cached(client, PROMPT)
        assert cached(client, PROMPT, n=3, temperature=1) == len(PROMPT) - 1


@pytest.mark.parametrize("config", [Config("dynamic", prefix_caching=False), Config("static")])
def test_without_a_prefix_cache_nothing_is_looked_up(config: Config) -> None:
    with serving(config) as client:
        assert [cached(client, PROMPT) for _ in range(2)] == [0, 0]
        assert figures(client) == {"looked-up-tokens": 0, "hit-tokens": 0}


@pytest.mark.parametrize("caching", [True, False])
def test_the_choices_of_each_call_compute_its_prompt_once(caching: bool) -> None:
    """Blocks of the hash model hold one token, so another choice computes the last one alone."""
    calls: Mapping[str, object] = {
        "/v1/completions": {"prompt": PROMPT, "n": 8, "max_tokens": 1},
        "/generate": {
            "inputs": PROMPT + "b",
            "parameters": {"best_of": 2, "do_sample": True, "max_new_tokens": 1},
        },
    }
    with serving(Config(mode="dynamic", prefix_caching=caching)) as client:
        for path, body in calls.items():
            assert client.post(path, json=body).status_code == 200
        told = client.get("/stats/iterations").get_json()
    tokens = told["columns"].index("tokens")
    known = len(PROMPT) if caching else 0
    expected = len(PROMPT) + 7 + len(PROMPT) + 1 - known + 1
    assert sum(iteration[tokens] for iteration in told["iterations"]) == expected
