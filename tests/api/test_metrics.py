"""`/metrics` against the answers that were given, read by Prometheus' own parser."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
from records import DECODE, PREFILL, IterationRecord, RequestRecord, Rows
from requested import Sampling, ServiceClass
from scheduling.policies.orca import Orca
from serving.config import Config
from telemetry.stats import Recorders, Stats
from tests.api.conftest import serving
from tests.support.hash_app import FAIL_ON
from tests.support.hash_model import HashModel

Labels = tuple[tuple[str, str], ...]

# what TGI's Grafana dashboard asks of a server that does not concatenate batches
TGI = {
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


def generate(client: FlaskClient, inputs: str = "abc", tokens: int = 4) -> int:
    """The status; greedy, so that the hash model gives no end token here."""
    body = {"inputs": inputs, "parameters": {"max_new_tokens": tokens}}
    return client.post("/generate", json=body).status_code


def test_tgis_names_are_there_with_their_types(client: FlaskClient) -> None:
    generate(client)
    generate(client, tokens=0)
    text = client.get("/metrics").get_data(as_text=True)
    types = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    told = {re.split("[ {]", line)[0] for line in text.splitlines()}
    assert told >= TGI["counter"] | TGI["gauge"]
    assert not {name for name in told if name.startswith("tgi_") and name.endswith("_total")}
    expected = {name: kind for kind, names in TGI.items() for name in names}
    assert {name: kind for name, kind in types.items() if name.startswith("tgi_")} == expected


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


def test_buckets_are_tgis(client: FlaskClient) -> None:
    found = scrape(client)
    of = {
        name: [dict(labels)["le"] for n, labels in found if n == f"{name}_bucket"]
        for name in TGI["histogram"]
    }
    durations = of["tgi_request_duration"]
    assert len(durations) == 36
    assert float(durations[0]) == pytest.approx(0.00015)
    assert float(durations[1]) == pytest.approx(0.00015 * 1.5)
    assert durations[-1] == "+Inf"
    assert [float(le) for le in of["tgi_request_input_length"][:2]] == [10.24, 20.48]
    assert len(of["tgi_request_input_length"]) == 101
    assert [float(le) for le in of["tgi_batch_next_size"]][:3] == [1, 2, 3]


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5)), max_size=50))
def test_a_histogram_holds_what_it_was_given(values: list[tuple[float, int]]) -> None:
    histogram = Histogram(DURATIONS_S)
    for value, times in values:
        histogram.observe(value, times)
    for bound, count in histogram.cumulated():
        assert count == sum(times for value, times in values if value <= float(bound))
    assert histogram.sum == pytest.approx(sum(value * times for value, times in values))


def test_failed_and_departed_requests_are_distinguished(client: FlaskClient) -> None:
    metrics = Metrics(stats := Stats(0.0))
    recorder, manager = Recorders(stats, metrics), client.application.extensions["engine"].manager
    for end, admitted_s in (("failed", 1.0), ("cancelled", None), ("cancelled", 2.0)):
        recorder.request(
            RequestRecord(0.0, admitted_s, None, None, 3.0, 4, 5, 0, 1, "immediate", end)  # type: ignore[arg-type]
        )
    recorder.request(RequestRecord(0.0, 1.0, 2.0, 4.0, 4.0, 4, 3, 3, 2, "deferred", "length"))
    gaps: tuple[tuple[ServiceClass, float, int], ...] = (("deferred", 0.5, 1), ("deferred", 3.0, 1))
    recorder.iteration(
        IterationRecord(
            2,
            7,
            deferred_tokens=5,
            rows=Rows((0, 1), (0, 1), (6, 1), bytes((PREFILL, DECODE))),
            duration_s=0.5,
            num_positions=10,
            num_generated=2,
            deferred_generated=1,
            gaps=gaps,
        )
    )
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
    monkeypatch.setenv(FAIL_ON, "1,4")
    with serving(Config(mode="dynamic")) as client:
        # in prefill, in the second decode
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
            metrics.iteration(
                IterationRecord(2, 7, duration_s=0.5, num_positions=10, num_generated=2)
            )
            noted.append(histogram)
        return cumulated(histogram)

    monkeypatch.setattr(Histogram, "cumulated", note)
    metrics.families(manager)
    assert noted
