"""`/metrics` for Prometheus, with the names of text-generation-inference, so that its Grafana
dashboard works with this server; docs/metrics.md defines them.

Sums are those of `/stats` (`telemetry/totals.py`); histograms are kept here. Receiving a record is
a few additions in the loop's thread; cumulation and text are made in the reader's thread.
prometheus_client's own types take a lock for each value of each series, in the loop's thread.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import get_args

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from api.vllm_names import under_vllms_names
from batching import BatchingManager
from records import PHASES, End, IterationRecord, RequestRecord, phase_of
from requested import ServiceClass
from telemetry.durations import latency_s, queue_s, ttft_s
from telemetry.stats import Stats
from telemetry.totals import Totals

DURATIONS_S = tuple(0.0001 * 1.5**i for i in range(1, 36))  # TGI's, up to 145 s
LENGTH_BUCKETS = 100
REFUSED = {**dict.fromkeys((400, 413, 415, 422), "validation"), 429: "overloaded"}
FAILED: Mapping[End, str] = {"failed": "generation", "cancelled": "dropped"}
CLASSES: tuple[ServiceClass, ...] = get_args(ServiceClass)
GENERATING = frozenset(
    (
        "/",
        "/generate",
        "/generate_stream",
        "/inference",
        "/invocations",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
    )
)

_REQUEST_DURATIONS = {
    "tgi_request_duration": "From arrival to end, in seconds like all durations",
    "tgi_request_validation_duration": "From arrival to the queue",
    "tgi_request_queue_duration": "From arrival to admission",
    "tgi_request_inference_duration": "From admission to end",
    "tgi_request_mean_time_per_token_duration": "From admission to end, per generated token",
    "eb_request_prefill_seconds": "From admission to first token",
    "eb_request_decode_seconds": "From first token to last",
}
_OWN_DURATIONS = {
    "eb_time_to_first_token_seconds": "From arrival to first token",
    "eb_inter_token_seconds": "Between two tokens of a request",
}
_ITERATION_DURATIONS = {
    "tgi_batch_inference_duration": "An iteration",
    "tgi_batch_forward_duration": "An iteration; forward pass and sampling are one here",
}
PROMPT_LENGTH = "tgi_request_input_length"
_LENGTHS = {
    PROMPT_LENGTH: "Tokens of the prompt",
    "tgi_request_max_new_tokens": "Requested tokens",
    "tgi_request_generated_tokens": "Tokens generated",
}

# The exposition format allows any name for a counter; the library requires _total.
_TOTAL_OF_TGI = re.compile(rb"^(# (?:HELP|TYPE) tgi_\w+)_total ", re.MULTILINE)


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulated(self) -> list[tuple[str, float]]:
        total, buckets = 0, []
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return buckets


@dataclass(slots=True)
class _Counts:
    """What `/stats` does not show."""

    refused: Counter[str] = field(default_factory=Counter)  # by TGI's word
    durations: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram(DURATIONS_S) for name in _REQUEST_DURATIONS}
    )
    by_class: dict[tuple[str, ServiceClass], Histogram] = field(
        default_factory=lambda: {
            (name, of): Histogram(DURATIONS_S) for name in _OWN_DURATIONS for of in CLASSES
        }
    )
    lengths: dict[str, Counter[int]] = field(
        default_factory=lambda: {name: Counter() for name in _LENGTHS}
    )
    skipped: Counter[int] = field(default_factory=Counter)  # accepted drafts of a drawing row
    iterations: dict[str, Histogram] = field(
        default_factory=lambda: {method: Histogram(DURATIONS_S) for method in PHASES}
    )


class Metrics:
    """A records.Recorder, and the handlers' counts. All methods may be called from any thread."""

    def __init__(self, stats: Stats) -> None:
        """`stats` receives the same records."""
        self._stats = stats
        self._lock = threading.Lock()
        self._counts = _Counts()

    # --- receiving --------------------------------------------------------------------------

    def received(self, validation_s: float) -> None:
        """An accepted request, and the time since it arrived."""
        with self._lock:
            self._counts.durations["tgi_request_validation_duration"].observe(validation_s)

    def refused(self, why: str) -> None:
        with self._lock:
            self._counts.refused[why] += 1

    def iteration(self, record: IterationRecord) -> None:
        method = phase_of(record.rows.kinds)
        with self._lock:
            self._counts.iterations[method].observe(record.duration_s)
            self._counts.skipped[0] += record.num_drawn
            for accepted in filter(None, record.rows.accepted):
                self._counts.skipped[0] -= 1
                self._counts.skipped[accepted] += 1
            for of, gap_s, times in record.gaps:
                self._counts.by_class["eb_inter_token_seconds", of].observe(gap_s, times)

    def request(self, record: RequestRecord) -> None:
        with self._lock:
            counts = self._counts
            counts.lengths[PROMPT_LENGTH][record.prompt_tokens] += 1
            counts.lengths["tgi_request_max_new_tokens"][record.max_tokens] += 1
            if record.end in FAILED:
                return
            counts.lengths["tgi_request_generated_tokens"][record.generated] += 1
            assert record.admitted_s is not None
            assert record.first_token_s is not None
            assert record.last_token_s is not None
            inference_s = record.end_s - record.admitted_s
            for name, value in (
                ("tgi_request_duration", latency_s(record)),
                ("tgi_request_queue_duration", queue_s(record)),
                ("tgi_request_inference_duration", inference_s),
                ("tgi_request_mean_time_per_token_duration", inference_s / record.generated),
                ("eb_request_prefill_seconds", record.first_token_s - record.admitted_s),
                ("eb_request_decode_seconds", record.last_token_s - record.first_token_s),
            ):
                counts.durations[name].observe(value)
            of = record.service_class
            counts.by_class["eb_time_to_first_token_seconds", of].observe(ttft_s(record))

    def busy(self, start_s: float, end_s: float) -> None:
        """Not used: Prometheus computes rates itself."""

    # --- reading ----------------------------------------------------------------------------

    def families(self, manager: BatchingManager) -> list[Metric]:
        with self._lock:  # only to copy, since the loop needs it too
            counts = deepcopy(self._counts)
        totals = self._stats.totals()
        return [
            *_counters(counts, totals, manager.failed_iterations),
            *_histograms(counts, totals, manager),
            *_gauges(manager),
        ]


def _counters(counts: _Counts, totals: Totals, failed: Mapping[str, int]) -> Iterator[Metric]:
    refused = counts.refused
    accepted = sum(counts.durations["tgi_request_validation_duration"].counts)
    count = accepted + refused.total()
    yield _counter("tgi_request_count", "Requests, including refused ones", count)
    yield _counter("tgi_request_success", "Completed requests", totals.count("length", "stop"))
    failures = {why: refused[why] for why in sorted(set(REFUSED.values()))}
    failures |= {why: totals.count(end) for end, why in FAILED.items()}
    yield _labelled(
        "tgi_request_failure", "Requests without a response, by reason", "err", failures
    )
    well = {method: sum(counts.iterations[method].counts) for method in PHASES}
    badly = {method: failed.get(method, 0) for method in PHASES}
    calls = {method: well[method] + badly[method] for method in PHASES}
    for end, text, values in (
        ("count", "Iterations", calls),
        ("success", "Successful iterations", well),
        ("failure", "Iterations in which the model failed", badly),
    ):
        yield _labelled(f"tgi_batch_inference_{end}", text, "method", values)
    yield _counter("eb_preemptions", "Preempted requests", totals.preemptions)
    for name, tokens in (("looked_up", totals.looked_up_tokens), ("hit", totals.hit_tokens)):
        which = "found" if name == "hit" else "looked up"
        text = f"Prompt tokens {which} in the prefix cache"
        yield _counter(f"eb_prefix_cache_{name}_tokens", text, tokens)
    yield _counter("eb_cancelled", "Requests whose client disconnected", totals.count("cancelled"))
    family = CounterMetricFamily("eb_requests", "Ended requests", labels=["class", "end"])
    for of in CLASSES:
        for end in get_args(End):
            family.add_metric([of, end], totals.ended[of, end])
    yield family
    deferred = {"computed": totals.deferred_tokens, "generated": totals.deferred_generated}
    yield _labelled("eb_deferred_tokens", "Tokens of deferred requests", "kind", deferred)
    prompts = sum(size * times for size, times in counts.lengths[PROMPT_LENGTH].items())
    yield _counter("eb_prompt_tokens", "Tokens of the prompts of ended requests", prompts)
    yield _counter("eb_generated_tokens", "Generated tokens", totals.generated)
    drafts = {"accepted": totals.accepted_drafts, "rejected": totals.rejected_drafts}
    yield _labelled("eb_drafts", "Drafts computed", "kind", drafts)
    positions = {
        "wanted": totals.tokens,
        "rejected_draft": totals.rejected_drafts,
        "padding": totals.positions - totals.tokens - totals.rejected_drafts,
    }
    yield _labelled("eb_positions", "Positions computed", "kind", positions)


def _histograms(counts: _Counts, totals: Totals, manager: BatchingManager) -> Iterator[Metric]:
    for name, text in _REQUEST_DURATIONS.items():
        histogram = counts.durations[name]
        yield HistogramMetricFamily(name, text, histogram.cumulated(), histogram.sum)
    for name, text in _OWN_DURATIONS.items():
        family = HistogramMetricFamily(name, text, labels=["class"])
        for of in CLASSES:
            histogram = counts.by_class[name, of]
            family.add_metric([of], histogram.cumulated(), histogram.sum)
        yield family
    for name, text in _ITERATION_DURATIONS.items():
        family = HistogramMetricFamily(name, text, labels=["method"])
        for method, histogram in counts.iterations.items():
            family.add_metric([method], histogram.cumulated(), histogram.sum)
        yield family
    if manager.model is not None:
        most = manager.model.context
        bounds = [most / LENGTH_BUCKETS * i for i in range(1, LENGTH_BUCKETS + 1)]
        for name, text in _LENGTHS.items():
            yield _of_counts(name, text, bounds, counts.lengths[name])
    most_drafts = 0 if manager.speculation is None else manager.speculation.most
    bounds = [float(n) for n in range(most_drafts + 1)]
    text = "Accepted drafts of a row in an iteration"
    yield _of_counts("tgi_request_skipped_tokens", text, bounds, counts.skipped)
    sizes = range(1, manager.max_batch_size + 1)
    text = "Rows of an iteration"
    yield _of_counts("tgi_batch_next_size", text, [float(n) for n in sizes], totals.iterations)


def _counter(name: str, text: str, value: float) -> Metric:
    return _named(CounterMetricFamily(name, text, value), name)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return _named(family, name)


def _named(family: Metric, name: str) -> Metric:
    if name.startswith("tgi_"):
        family.samples = [sample._replace(name=name) for sample in family.samples]
    return family


def _of_counts(
    name: str, text: str, bounds: Sequence[float], counts: Mapping[int, int]
) -> HistogramMetricFamily:
    histogram = Histogram(bounds)
    for value, times in counts.items():
        histogram.observe(value, times)
    return HistogramMetricFamily(name, text, histogram.cumulated(), histogram.sum)


def _gauges(manager: BatchingManager) -> Iterator[Metric]:
    counts = manager.counts
    yield GaugeMetricFamily("tgi_queue_size", "Waiting requests", counts["waiting"])
    yield GaugeMetricFamily("tgi_batch_current_size", "Running requests", counts["running"])
    if manager.model is not None:
        memory, size = manager.memory, manager.memory.block_tokens
        used, budget = memory.used * size, memory.num_blocks * size
        yield GaugeMetricFamily("tgi_batch_current_max_tokens", "KV taken, in tokens", used)
        yield GaugeMetricFamily("eb_kv_used_tokens", "KV taken, in tokens", used)
        yield GaugeMetricFamily("tgi_batch_max_total_tokens", "KV budget, in tokens", budget)
        yield GaugeMetricFamily("eb_kv_budget_tokens", "KV budget, in tokens", budget)
        yield GaugeMetricFamily("eb_kv_used_ratio", "KV taken, from 0 to 1", used / budget)
        blocks = GaugeMetricFamily(
            "eb_kv_blocks_info",
            "Tokens of a block, and blocks",
            labels=["block_size", "num_gpu_blocks"],
        )
        blocks.add_metric([str(size), str(memory.num_blocks)], 1)
        yield blocks


class _Collector(Collector):
    def __init__(
        self,
        metrics: Metrics,
        manager: BatchingManager,
        unused_gpu: Callable[[], str | None],
        model: str,
    ) -> None:
        self._metrics, self._manager = metrics, manager
        self._unused_gpu, self._model = unused_gpu, model

    def collect(self) -> list[Metric]:
        text = "1: a GPU computes nothing, or without its kernels or CUDA graphs"
        unused = GaugeMetricFamily("eb_unused_gpu", text, self._unused_gpu() is not None)
        families = self._metrics.families(self._manager)
        return [*families, *under_vllms_names(families, self._model), unused]


def register_metrics(
    app: Flask,
    metrics: Metrics,
    manager: BatchingManager,
    unused_gpu: Callable[[], str | None],
    model: str,
    *others: Collector,
) -> None:
    """The metrics page, and a count of refused requests. `unused_gpu`: as in
    runtime.executor.ModelInfo; `model`: its name; `others`: further metrics on the page."""
    registry = CollectorRegistry()
    for collector in (_Collector(metrics, manager, unused_gpu, model), *others):
        registry.register(collector)

    @app.get("/metrics")
    def page() -> Response:
        text = _TOTAL_OF_TGI.sub(rb"\1 ", generate_latest(registry))
        return Response(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.after_request
    def count(response: Response) -> Response:
        if request.path in GENERATING and response.status_code in REFUSED:
            metrics.refused(REFUSED[response.status_code])
        return response
