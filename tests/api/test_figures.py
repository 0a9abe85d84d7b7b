"""What operators see: `/metrics`, read by Prometheus' own parser, `/stats` and headers, against the
answers that were given."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from serving.config import Config
from telemetry.stats import Histogram
from tests.api.conftest import TWO, serving, speculating, stats_of
from tests.support.dialects import TGI, Json, ask
from tests.support.openai_calls import chat

Labels = tuple[tuple[str, str], ...]
# what is read by TGI's Grafana dashboard (of a server that does not concatenate batches), by the
# model server protocol of Gateway API's inference extension (proposal 003) and by vLLM's dashboard
NAMES = {
    "counter": {
        *(f"tgi_{of}_{end}" for of in ("request", "batch_inference")
          for end in ("count", "success", "failure")),
        *(f"vllm:{of}_tokens" for of in ("prompt", "generation")),
        "vllm:request_success", "vllm:num_preemptions",
    },
    "gauge": {
        "tgi_queue_size",
        *(f"tgi_batch_{of}" for of in ("current_size", "current_max_tokens", "max_total_tokens")),
        *(f"vllm:num_requests_{of}" for of in ("waiting", "running")),
        *(f"vllm:{of}_cache_usage_perc" for of in ("kv", "gpu")), "vllm:cache_config_info",
    },
    "histogram": {
        *(f"tgi_request_{of}duration" for of in ("", "validation_", "queue_", "inference_")),
        "tgi_request_mean_time_per_token_duration", "tgi_request_input_length",
        *(f"tgi_request_{of}_tokens" for of in ("generated", "max_new", "skipped")),
        *(f"tgi_batch_{of}" for of in ("next_size", "inference_duration", "forward_duration")),
        "vllm:e2e_request_latency_seconds",
        *(f"vllm:{of}_seconds" for of in ("time_to_first_token", "time_per_output_token")),
        *(f"vllm:request_{of}_time_seconds" for of in ("queue", "prefill", "decode")),
        *(f"vllm:request_{of}_tokens" for of in ("prompt", "generation")),
    },
}  # fmt: skip


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    """A server of its own, so that its counters begin at zero."""
    with serving(Config(mode="dynamic", max_batch_size=8, prefix_caching=False)) as client:
        yield client


def scrape(client: FlaskClient) -> dict[tuple[str, Labels], float]:
    """The parser calls every counter `..._total`, which TGI's are not."""
    answer = client.get("/metrics")
    assert answer.content_type.startswith("text/plain; version=0.0.4")
    return {
        (_tgi(sample.name), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.get_data(as_text=True))
        for sample in family.samples
    }


def _tgi(name: str) -> str:
    return name.removesuffix("_total") if name.startswith("tgi_") else name


def generate(client: FlaskClient, tokens: int = 4) -> int:
    """The status; greedy, so that the hash model gives no end token here."""
    return ask(client, TGI, "abc", tokens).status_code


def test_names_of_tgi_and_vllm_are_there_with_their_types(client: FlaskClient) -> None:
    generate(client)
    text = client.get("/metrics").get_data(as_text=True)
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for kind, names in NAMES.items():
        assert {name: found[name].type for name in names} == dict.fromkeys(names, kind)
    assert re.search("^tgi_request_count 1.0$", text, re.MULTILINE), "without _total"
    own = [sample for name in found if name.startswith("vllm:") for sample in found[name].samples]
    assert {sample.labels["model_name"] for sample in own} == {"embedded"}
    success = found["vllm:request_success"].samples
    assert {sample.labels["finished_reason"] for sample in success} == {"length", "stop"}
    assert sum(sample.value for sample in success) == 1
    (blocks,) = found["vllm:cache_config_info"].samples
    tokens = int(blocks.labels["block_size"]) * int(blocks.labels["num_gpu_blocks"])
    assert tokens == scrape(client)["eb_kv_budget_tokens", ()]


def test_requests_are_counted_by_what_became_of_them(client: FlaskClient) -> None:
    statuses = [generate(client, tokens=n) for n in (1, 2, 3, 0, -1)]
    assert statuses == [200, 200, 200, 422, 422]
    assert client.post("/inference", json={}).status_code == 400
    client.post("/tokenize", json={})  # not a request for text
    found, immediate = scrape(client), (("class", "immediate"),)
    assert found["tgi_request_count", ()] == 6
    assert found["tgi_request_success", ()] == 3
    assert found["tgi_request_failure", (("err", "validation"),)] == 3
    assert found["eb_generated_tokens_total", ()] == 1 + 2 + 3
    assert found["tgi_request_input_length_sum", ()] == 3 * 3
    assert found["tgi_request_duration_count", ()] == 3
    decode_s = found["eb_request_decode_seconds_sum", ()]
    prefill_s = found["eb_request_prefill_seconds_sum", ()]
    total_s = found["tgi_request_queue_duration_sum", ()] + prefill_s + decode_s
    assert 0 < total_s <= found["tgi_request_duration_sum", ()] * (1 + 1e-9)
    assert found["eb_time_to_first_token_seconds_count", immediate] == 3
    assert found["eb_inter_token_seconds_count", immediate] == 0 + 1 + 2
    assert found["eb_inter_token_seconds_sum", immediate] == pytest.approx(decode_s)
    assert found["tgi_batch_inference_count", (("method", "prefill"),)] == 3
    assert found["tgi_batch_inference_count", (("method", "decode"),)] == 0 + 1 + 2
    assert found["eb_kv_budget_tokens", ()] == found["tgi_batch_max_total_tokens", ()] > 0
    client.post("/stats/reset")  # leaves the counters alone
    assert scrape(client)["tgi_request_success", ()] == 3


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5)), max_size=50))
def test_a_histogram_holds_what_it_was_given(values: list[tuple[float, int]]) -> None:
    histogram = Histogram()
    for value, times in values:
        histogram.observe(value, times)
    for bound, count in histogram.cumulated():
        assert count == sum(times for value, times in values if value <= float(bound))
    assert histogram.sum == pytest.approx(sum(value * times for value, times in values))


# --- shared prefixes ------------------------------------------------------------------------

PROMPT = "You are a helpful assistant. "


def cached(client: FlaskClient, prompt: str, key: Json | None = None, **fields: object) -> int:
    asked = {"model": "embedded", "prompt": prompt, "max_tokens": 1, **fields}
    answer = client.post("/v1/completions", json=asked, headers=key).get_json()
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_beginning_is_found_by_requests_of_the_same_key_alone_and_counted() -> None:
    with serving(Config(mode="dynamic", api_key="one,two")) as client:
        assert cached(client, PROMPT + "a") == 0
        assert cached(client, PROMPT + "b") == len(PROMPT)
        assert cached(client, PROMPT + "b", key=TWO) == 0
        assert cached(client, PROMPT + "c", key=TWO) == len(PROMPT)
        looked_up, hit = 4 * (len(PROMPT) + 1), 2 * len(PROMPT)
        figures = {"looked-up-tokens": looked_up, "hit-tokens": hit}
        assert stats_of(client)["prefix-cache"] == figures
        found = scrape(client)
        assert found["eb_prefix_cache_looked_up_tokens_total", ()] == looked_up
        assert found["eb_prefix_cache_hit_tokens_total", ()] == hit
        whole = cached(client, PROMPT + "a", n=3, temperature=1)
        assert whole == len(PROMPT), "once for all choices, without the last token"


def test_drafts_are_told_in_statistics_metrics_headers_and_usage(client: FlaskClient) -> None:
    with speculating() as drafting:
        head = ask(drafting, TGI, "drafts", 40, seed=1).headers
        accepted, rejected = (int(head[f"x-{kind}-drafts"]) for kind in ("accepted", "rejected"))
        assert accepted > 0
        assert rejected > 0
        assert stats_of(drafting)["drafts"] == {"accepted": accepted, "rejected": rejected}
        found = scrape(drafting)
        assert found["eb_drafts_total", (("kind", "accepted"),)] == accepted
        assert found["eb_positions_total", (("kind", "rejected_draft"),)] == rejected
        assert found["tgi_request_skipped_tokens_sum", ()] == accepted
        drafting.post("/stats/reset")
        predicted = {"type": "content", "content": [{"type": "text", "text": "12345"}]}
        fields: Json = {"max_tokens": 40, "seed": 1, "prediction": predicted}
        details = chat(drafting, **fields)["usage"]["completion_tokens_details"]
        told = {kind: details[f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected")}
        assert stats_of(drafting)["drafts"] == told
    assert "x-accepted-drafts" not in ask(client, TGI).headers, "without drafts"
