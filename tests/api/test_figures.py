"""What operators see: `/metrics`, read by Prometheus' own parser, `/stats`, headers and recordings,
against the answers that were given."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import DURATIONS_S, Histogram, Metrics
from batching import BatchingManager
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Iteration
from generate import dynamic
from records import DECODE, PREFILL, Arrived, History, IterationRecord, RequestRecord, Rows
from requested import Sampling, ServiceClass
from scheduling.policies.orca import Orca
from serving.config import MODES, Config
from telemetry.recording import Recording
from telemetry.stats import Recorders, Stats
from tests.api.conftest import MOST_DRAFTS, TWO, serving, speculating
from tests.support.dialects import NATIVE, OPENAI, TGI, Json, ask
from tests.support.hash_app import FAIL_ON
from tests.support.hash_model import HashModel
from tests.support.openai_calls import CHAT, chat, chunks

Labels = tuple[tuple[str, str], ...]
DYNAMIC = Config(mode="dynamic")

# what TGI's Grafana dashboard asks of a server that does not concatenate batches
OF_TGI = {
    "counter": {
        *(f"tgi_request_{end}" for end in ("count", "success", "failure")),
        *(f"tgi_batch_inference_{end}" for end in ("count", "success", "failure")),
    },
    "gauge": {
        "tgi_queue_size",
        *(f"tgi_batch_{of}" for of in ("current_size", "current_max_tokens", "max_total_tokens")),
    },
    "histogram": {
        *(f"tgi_request_{of}duration" for of in ("", "validation_", "queue_", "inference_")),
        "tgi_request_mean_time_per_token_duration",
        *(f"tgi_request_{of}_tokens" for of in ("generated", "max_new", "skipped")),
        "tgi_request_input_length",
        *(f"tgi_batch_{of}" for of in ("next_size", "inference_duration", "forward_duration")),
    },
}

# what the model server protocol of Gateway API's inference extension (proposal 003) and vLLM's own
# dashboard (examples/online_serving/prometheus_grafana) read
OF_VLLM = {
    "gauge": {
        *(f"vllm:num_requests_{of}" for of in ("waiting", "running")),
        *(f"vllm:{of}_cache_usage_perc" for of in ("kv", "gpu")),
        "vllm:cache_config_info",
    },
    "counter": {
        *(f"vllm:{of}_tokens" for of in ("prompt", "generation")),
        "vllm:request_success",
        "vllm:num_preemptions",
    },
    "histogram": {
        "vllm:e2e_request_latency_seconds",
        *(f"vllm:{of}_seconds" for of in ("time_to_first_token", "time_per_output_token")),
        *(f"vllm:request_{of}_time_seconds" for of in ("queue", "prefill", "decode")),
        *(f"vllm:request_{of}_tokens" for of in ("prompt", "generation")),
    },
}


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


def stats_of(client: FlaskClient) -> Json:
    stats: Json = client.get("/stats").get_json()
    return stats


def test_tgis_names_are_there_with_their_types_and_buckets(client: FlaskClient) -> None:
    generate(client)
    generate(client, tokens=0)
    text = client.get("/metrics").get_data(as_text=True)
    types = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    told = {re.split("[ {]", line)[0] for line in text.splitlines()}
    assert told >= OF_TGI["counter"] | OF_TGI["gauge"]
    assert not {name for name in told if name.startswith("tgi_") and name.endswith("_total")}
    expected = {name: kind for kind, names in OF_TGI.items() for name in names}
    assert {name: kind for name, kind in types.items() if name.startswith("tgi_")} == expected
    bounds: dict[str, list[float]] = {name: [] for name in OF_TGI["histogram"]}
    for name, labels in scrape(client):
        if (of := name.removesuffix("_bucket")) != name and of in bounds:
            bounds[of].append(float(dict(labels)["le"]))
    durations = bounds["tgi_request_duration"]
    assert durations[:2] == pytest.approx([0.00015, 0.00015 * 1.5])
    assert (len(durations), durations[-1]) == (36, float("inf"))
    lengths = bounds["tgi_request_input_length"]
    assert (lengths[:2], len(lengths)) == ([10.24, 20.48], 101)
    assert bounds["tgi_batch_next_size"][:3] == [1, 2, 3]


def test_vllms_names_are_there_with_their_types_and_the_models_name(client: FlaskClient) -> None:
    assert [generate(client, tokens=n) for n in (1, 2, 3, 0)] == [200, 200, 200, 422]
    text = client.get("/metrics").get_data(as_text=True)
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for kind, names in OF_VLLM.items():
        assert {name: found[name].type for name in names} == dict.fromkeys(names, kind)
    own = [sample for name in found if name.startswith("vllm:") for sample in found[name].samples]
    assert {sample.labels["model_name"] for sample in own} == {"embedded"}
    values: dict[str, float] = {}
    for sample in own:
        values[sample.name] = values.get(sample.name, 0.0) + sample.value
    assert values["vllm:generation_tokens_total"] == 1 + 2 + 3
    assert values["vllm:prompt_tokens_total"] == 3 * 3
    assert values["vllm:request_success_total"] == 3
    assert values["vllm:time_to_first_token_seconds_count"] == 3
    parts = ("queue_time", "prefill_time", "decode_time")
    total_s = sum(values[f"vllm:request_{part}_seconds_sum"] for part in parts)
    assert 0 < total_s <= values["vllm:e2e_request_latency_seconds_sum"] * (1 + 1e-9)
    assert values["vllm:kv_cache_usage_perc"] == values["vllm:num_requests_running"] == 0
    reasons = {sample.labels["finished_reason"] for sample in found["vllm:request_success"].samples}
    assert reasons == {"length", "stop"}
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
    assert found["tgi_request_generated_tokens_sum", ()] == 1 + 2 + 3
    assert found["tgi_request_input_length_sum", ()] == 3 * 3
    assert found["tgi_request_duration_count", ()] == 3
    assert found["eb_time_to_first_token_seconds_count", immediate] == 3
    assert found["eb_inter_token_seconds_count", immediate] == 0 + 1 + 2
    assert found["tgi_batch_inference_count", (("method", "prefill"),)] == 3
    assert found["tgi_batch_inference_count", (("method", "decode"),)] == 0 + 1 + 2
    assert found["tgi_batch_next_size_count", ()] == 6
    assert found["tgi_queue_size", ()] == found["tgi_batch_current_size", ()] == 0
    assert found["eb_kv_used_tokens", ()] == 0
    assert found["eb_kv_budget_tokens", ()] == found["tgi_batch_max_total_tokens", ()] > 0
    client.post("/stats/reset")  # leaves the counters alone
    assert scrape(client)["tgi_request_success", ()] == 3


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5)), max_size=50))
def test_a_histogram_holds_what_it_was_given(values: list[tuple[float, int]]) -> None:
    histogram = Histogram(DURATIONS_S)
    for value, times in values:
        histogram.observe(value, times)
    for bound, count in histogram.cumulated():
        assert count == sum(times for value, times in values if value <= float(bound))
    assert histogram.sum == pytest.approx(sum(value * times for value, times in values))


def test_failed_departed_and_deferred_requests_are_distinguished(client: FlaskClient) -> None:
    metrics = Metrics(stats := Stats(0.0))
    recorder, manager = Recorders(stats, metrics), client.application.extensions["engine"].manager
    for end, admitted_s in (("failed", 1.0), ("cancelled", None), ("cancelled", 2.0)):
        recorder.request(
            RequestRecord(0.0, admitted_s, None, None, 3.0, 4, 5, 0, 1, "immediate", end)  # type: ignore[arg-type]
        )
    recorder.request(RequestRecord(0.0, 1.0, 2.0, 4.0, 4.0, 4, 3, 3, 2, "deferred", "length"))
    gaps: tuple[tuple[ServiceClass, float, int], ...] = (("deferred", 0.5, 1), ("deferred", 3.0, 1))
    rows = Rows((0, 1), (0, 1), (6, 1), bytes((PREFILL, DECODE)))
    tokens: Json = {"num_positions": 10, "num_generated": 2}
    tokens |= {"deferred_tokens": 5, "deferred_generated": 1}
    recorder.iteration(IterationRecord(2, 7, rows=rows, duration_s=0.5, gaps=gaps, **tokens))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.families(manager)
        for sample in family.samples
    }
    expected: dict[tuple[str, ...], float] = {
        ("tgi_request_failure", "generation"): 1,
        ("tgi_request_failure", "dropped"): 2,
        ("eb_cancelled_total",): 2,
        ("eb_preemptions_total",): 5,
        ("eb_requests_total", "immediate", "cancelled"): 2,
        ("eb_requests_total", "deferred", "length"): 1,
        ("eb_time_to_first_token_seconds_sum", "deferred"): 2.0,
        ("eb_inter_token_seconds_count", "deferred"): 2,
        ("eb_inter_token_seconds_sum", "deferred"): 3.5,
        ("eb_inter_token_seconds_count", "immediate"): 0,
        ("eb_deferred_tokens_total", "computed"): 5,
        ("eb_deferred_tokens_total", "generated"): 1,
        ("eb_positions_total", "padding"): 3,
        ("tgi_batch_inference_duration_sum", "prefill"): 0.5,
    }
    assert {name: found[name] for name in expected} == expected


def test_iterations_that_fail_are_counted_by_what_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FAIL_ON, "1,4")  # in prefill, in the second decode
    with serving(DYNAMIC) as client:
        assert [generate(client) for _ in range(2)] == [424, 424]
        found = scrape(client)
    for method in ("prefill", "decode"):
        assert found["tgi_batch_inference_failure", (("method", method),)] == 1
        assert found["tgi_batch_inference_success", (("method", method),)] == 1
        assert found["tgi_batch_inference_count", (("method", method),)] == 2


def test_a_single_stall_is_one_gap() -> None:
    """Not spread over its request."""
    metrics, model = Metrics(Stats(0.0)), HashModel()
    manager = BatchingManager(Orca(), metrics, max_batch_size=1, max_waiting=1)
    manager.serve(model, Ledger(model.num_blocks))
    manager.enqueue(Inference([1], 9, Sampling(), 0.0))
    now_s = 0.0
    for number in range(9):
        iteration = manager.begin(now_s, dynamic.lay_out)
        assert isinstance(iteration, Iteration)
        now_s += 4.0 if number == 4 else 2**-10
        manager.finish(now_s, iteration.outcome())
    (gaps,) = (m for m in metrics.families(manager) if m.name == "eb_inter_token_seconds")
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in gaps.samples
        if sample.name.endswith("_bucket") and sample.labels["class"] == "immediate"
    }
    assert max(count for le, count in buckets.items() if le < 3) == 7
    assert buckets[float("inf")] == 8


def test_the_loop_need_not_wait_while_the_page_is_made(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, manager = Metrics(Stats(0.0)), client.application.extensions["engine"].manager
    cumulated, noted = Histogram.cumulated, []

    def note(histogram: Histogram) -> list[tuple[str, float]]:
        if not metrics._lock.locked():
            noted.append(histogram)
        return cumulated(histogram)

    monkeypatch.setattr(Histogram, "cumulated", note)
    metrics.families(manager)
    assert noted


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


@pytest.mark.parametrize("config", [Config("dynamic", prefix_caching=False), Config("static")])
def test_without_a_prefix_cache_nothing_is_looked_up(config: Config) -> None:
    with serving(config) as client:
        assert [cached(client, PROMPT) for _ in range(2)] == [0, 0]
        assert stats_of(client)["prefix-cache"] == {"looked-up-tokens": 0, "hit-tokens": 0}


@pytest.mark.parametrize("caching", [True, False])
def test_the_choices_of_each_call_compute_its_prompt_once(caching: bool) -> None:
    """Blocks of the hash model hold one token, so another choice computes the last one alone."""
    with serving(Config(mode="dynamic", prefix_caching=caching)) as client:
        assert ask(client, OPENAI[0], PROMPT, n=8).status_code == 200
        assert ask(client, TGI, PROMPT + "b", best_of=2, do_sample=True).status_code == 200
        told = client.get("/stats/iterations").get_json()
    tokens = told["columns"].index("tokens")
    known = len(PROMPT) if caching else 0
    expected = len(PROMPT) + 7 + len(PROMPT) + 1 - known + 1
    assert sum(iteration[tokens] for iteration in told["iterations"]) == expected


# --- drafts: that answers are those without them is tested in openai/test_openai.py ---------


@pytest.fixture(scope="module")
def drafting() -> Iterator[FlaskClient]:
    with speculating() as client:
        yield client


def test_statistics_metrics_headers_and_the_live_page_tell_the_drafts(
    drafting: FlaskClient, client: FlaskClient
) -> None:
    drafting.post("/stats/reset")
    head = ask(drafting, TGI, "drafts", 40, seed=1).headers
    accepted, rejected = (int(head[f"x-{kind}-drafts"]) for kind in ("accepted", "rejected"))
    assert accepted > 0
    assert rejected > 0
    stats = stats_of(drafting)
    assert stats["drafts"] == {"accepted": accepted, "rejected": rejected}
    assert (stats["padding-share"], stats["options"]["speculate"]) == (0, MOST_DRAFTS)
    found = scrape(drafting)
    assert found["eb_drafts_total", (("kind", "accepted"),)] >= accepted
    assert found["eb_positions_total", (("kind", "rejected_draft"),)] >= rejected
    skipped = found["tgi_request_skipped_tokens_sum", ()]
    assert skipped == found["eb_drafts_total", (("kind", "accepted"),)]
    assert ("tgi_request_skipped_tokens_bucket", (("le", f"{MOST_DRAFTS}.0"),)) in found
    assert '"accepted drafts"' in drafting.get("/watch/trace?format=chrome").text
    assert "x-accepted-drafts" not in ask(client, TGI).headers, "without drafts"


@pytest.mark.parametrize("content", ["12345", [{"type": "text", "text": "12345"}]])
def test_usage_counts_the_drafts_of_an_answer_that_was_predicted(
    drafting: FlaskClient, content: object
) -> None:
    fields: Json = {"max_tokens": 40, "seed": 1}
    fields["prediction"] = {"type": "content", "content": content}
    drafting.post("/stats/reset")
    details = chat(drafting, **fields)["usage"]["completion_tokens_details"]
    kinds = ("accepted", "rejected")
    assert stats_of(drafting)["drafts"] == {k: details[f"{k}_prediction_tokens"] for k in kinds}
    assert details["accepted_prediction_tokens"] > 0
    streamed = chunks(drafting, CHAT, **fields, stream_options={"include_usage": True})
    assert streamed[-1]["usage"]["completion_tokens_details"] == details


# --- recordings -----------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("mode", MODES)
def test_a_recording_has_every_request_and_adds_up_to_stats(mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with serving(Config(mode=mode, record=str(path), data_dir=str(tmp_path))) as client:
        for tokens in (3, 8):
            assert ask(client, NATIVE, "hello", tokens).status_code == 200
        stats = stats_of(client)
    head, *lines = lines_of(path)
    assert (head["type"], head["version"], head["mode"]) == ("head", 1, mode)
    iterations = [line for line in lines if line["type"] == "iteration"]
    assert sum(line["generated"] for line in iterations) == stats["total-tokens-handled"] == 11
    assert len(iterations) == sum(stats["batch-size"]["histogram"].values())
    for request, tokens in enumerate((3, 8)):
        (arrived,) = (e for e in lines if e["type"] == "arrived" and e["request"] == request)
        (ended,) = (e for e in lines if e["type"] == "ended" and e["request"] == request)
        mine = [i for i in iterations if request in [row[0] for row in i["rows"]]]
        kinds = [row[3] for line in mine for row in line["rows"]]
        assert kinds == ["prefill", *["decode"] * (tokens - 1)]
        assert (arrived["max_tokens"], ended["generated"]) == (tokens, tokens)
        assert ended["end"] == "length"
        ends_s = [line["start_s"] + line["duration_s"] for line in mine]
        assert arrived["at_s"] <= ended["admitted_s"] <= mine[0]["start_s"]
        assert ended["first_token_s"] == pytest.approx(ends_s[0], abs=1e-9)
        assert ended["last_token_s"] == pytest.approx(ends_s[-1], abs=1e-9)
        assert head["clock_s"] <= arrived["at_s"] <= ended["end_s"]


def test_a_full_disk_is_a_warning_and_requests_are_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Config(mode="dynamic", record="/dev/full", data_dir=str(tmp_path))) as client:
        assert ask(client, NATIVE, "hello", 3).status_code == 200
    assert "--record /dev/full ends here: No space left on device" in [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]


def test_a_file_that_lags_behind_says_how_many_events_are_missing(tmp_path: Path) -> None:
    history = History(2**16)
    for request in range(20):
        history.add(Arrived(request, float(request), 1, 1, "immediate"))
    recording = Recording(tmp_path / "run.jsonl", history, {})
    recording.start()
    recording.stop(60.0)
    _, missed, *kept = lines_of(recording.path)
    assert missed == {"type": "missed", "events": 20 - len(kept)}
    assert [line["request"] for line in kept] == list(range(20 - len(kept), 20))
