"""`/metrics` for Prometheus, with the names of text-generation-inference, so that its Grafana
dashboard works with this server; docs/deployment.md defines them.

The figures are kept by `telemetry/stats.py`; cumulation and text are made here, in the reader's
thread. prometheus_client's own types take a lock for each value of each series, in the loop's
thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, get_args

from flask import Flask, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from api.http.hooks import REFUSED
from api.openapi import plain_errors
from batching import BatchingManager
from deferred.jobs import Jobs
from seams import PHASES, End
from telemetry.stats import CLASSES, Distributions, Histogram, Stats, Totals

LENGTH_BUCKETS = 100
FAILED: Mapping[End, str] = {"failed": "generation", "cancelled": "dropped"}
# our names: vLLM's, for which Gateway API's inference extension, llm-d, rules of autoscalers and
# vLLM's dashboards look. The extension's protocol asks for the first three; older dashboards read
# the names behind.
VLLM_NAMES = {
    "tgi_queue_size": ("num_requests_waiting",),
    "tgi_batch_current_size": ("num_requests_running",),
    "eb_kv_used_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "eb_kv_blocks_info": ("cache_config_info",),
    "eb_prompt_tokens": ("prompt_tokens",),
    "eb_generated_tokens": ("generation_tokens",),
    "eb_preemptions": ("num_preemptions",),
    "eb_prefix_cache_looked_up_tokens": ("prefix_cache_queries",),
    "eb_prefix_cache_hit_tokens": ("prefix_cache_hits",),
    "eb_requests": ("request_success",),
    "eb_time_to_first_token_seconds": ("time_to_first_token_seconds",),
    "eb_inter_token_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tgi_request_duration": ("e2e_request_latency_seconds",),
    "tgi_request_queue_duration": ("request_queue_time_seconds",),
    "tgi_request_inference_duration": ("request_inference_time_seconds",),
    "eb_request_prefill_seconds": ("request_prefill_time_seconds",),
    "eb_request_decode_seconds": ("request_decode_time_seconds",),
    "tgi_request_input_length": ("request_prompt_tokens",),
    "tgi_request_generated_tokens": ("request_generation_tokens",),
    "tgi_request_max_new_tokens": ("request_params_max_tokens",),
}
REASON = "finished_reason"
REASONS = ("length", "stop")  # of a success

# The exposition format allows any name for a counter; the library requires _total.
_TOTAL_OF_TGI = re.compile(rb"^(# (?:HELP|TYPE) tgi_\w+)_total ", re.MULTILINE)


Kind = type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]


def _family(kind: Kind, name: str, text: str, values: Any, *labels: str) -> Metric:
    """`values`: a number, or by the value of the one label, or the values of all, what `kind` has:
    a number, or a Histogram."""
    family = kind(name, text, labels=labels)
    each: Mapping[Any, Any] = values if labels else {(): values}
    for key, value in each.items():
        numbers = (value.cumulated(), value.sum) if isinstance(value, Histogram) else (value,)
        family.add_metric([key] if len(labels) == 1 else key, *numbers)
    if kind is CounterMetricFamily and name.startswith("tgi_"):  # TGI's have no _total
        family.samples = [sample._replace(name=name) for sample in family.samples]
    return family


_counter = partial(_family, CounterMetricFamily)
_gauge = partial(_family, GaugeMetricFamily)
_histogram = partial(_family, HistogramMetricFamily)


def families(stats: Stats, manager: BatchingManager) -> list[Metric]:
    totals, distributions = stats.since_start()
    return [
        *_counted(totals, distributions),
        *_of_iterations(totals, distributions, manager),
        *_declared(totals, distributions, manager),
        *_gauges(manager),
    ]


def _counted(totals: Totals, distributions: Distributions) -> Iterator[Metric]:
    refused, count = totals.refused, totals.count
    received = sum(distributions.validation.counts) + refused.total()
    failures = {why: refused[why] for why in sorted(set(REFUSED.values()))}
    failures |= {why: count(end) for end, why in FAILED.items()}
    ended = {(of, end): totals.ended[of, end] for of in CLASSES for end in get_args(End)}
    prompts = sum(size * times for size, times in distributions.prompt_tokens.items())
    deferred = {"computed": totals.deferred_tokens, "generated": totals.deferred_generated}
    drafts = {"accepted": totals.accepted_drafts, "rejected": totals.rejected_drafts}
    positions = {
        "wanted": totals.tokens,
        "rejected_draft": totals.rejected_drafts,
        "padding": totals.positions - totals.tokens - totals.rejected_drafts,
    }
    yield _counter("tgi_request_count", "Requests, including refused ones", received)
    yield _counter("tgi_request_success", "Completed requests", count("length", "stop"))
    yield _counter("tgi_request_failure", "Requests without a response, by reason", failures, "err")
    yield _counter("eb_cancelled", "Requests whose client disconnected", count("cancelled"))
    yield _counter("eb_requests", "Ended requests", ended, "class", "end")
    yield _counter("eb_deferred_tokens", "Tokens of deferred requests", deferred, "kind")
    yield _counter("eb_prompt_tokens", "Tokens of the prompts of ended requests", prompts)
    yield _counter("eb_drafts", "Drafts computed", drafts, "kind")
    yield _counter("eb_positions", "Positions computed", positions, "kind")


def _of_iterations(
    totals: Totals, distributions: Distributions, manager: BatchingManager
) -> Iterator[Metric]:
    durations, failed = distributions.iterations, manager.failed_iterations
    well = {method: sum(durations[method].counts) for method in PHASES}
    badly = {method: failed.get(method, 0) for method in PHASES}
    calls = {method: well[method] + badly[method] for method in PHASES}
    name, text = "tgi_batch_inference", "Iterations in which the model failed"
    yield _counter(f"{name}_count", "Iterations", calls, "method")
    yield _counter(f"{name}_success", "Successful iterations", well, "method")
    yield _counter(f"{name}_failure", text, badly, "method")
    text = "An iteration; forward pass and sampling are one here"
    yield _histogram("tgi_batch_forward_duration", text, durations, "method")
    most_drafts = 0 if manager.speculation is None else manager.speculation.most
    text, drafts = "Accepted drafts of a row in an iteration", range(most_drafts + 1)
    yield _of_counts("tgi_request_skipped_tokens", text, drafts, distributions.accepted)
    text, sizes = "Rows of an iteration", range(1, manager.max_batch_size + 1)
    yield _of_counts("tgi_batch_next_size", text, sizes, totals.iterations)


def _declared(
    totals: Totals, distributions: Distributions, manager: BatchingManager
) -> Iterator[Metric]:
    bounds: list[float] = []
    if manager.model is not None:
        width = manager.model.context / LENGTH_BUCKETS
        bounds = [width * i for i in range(1, LENGTH_BUCKETS + 1)]
    for record, field in ((each, f) for each in (totals, distributions) for f in fields(each)):
        if "metric" not in field.metadata:
            continue
        name, text, label = field.metadata["metric"]
        match getattr(record, field.name):
            case int(value):
                yield _counter(name, text, value)
            case Histogram() as one:
                yield _histogram(name, text, one)
            case Counter() as lengths if bounds:
                yield _of_counts(name, text, bounds, lengths)
            case dict(by_key) if label is not None:
                yield _histogram(name, text, by_key, label)


def _of_counts(name: str, text: str, bounds: Iterable[float], counts: Mapping[int, int]) -> Metric:
    histogram = Histogram(list(map(float, bounds)))
    for value, times in counts.items():
        histogram.observe(value, times)
    return _histogram(name, text, histogram)


def _gauges(manager: BatchingManager) -> Iterator[Metric]:
    counts = manager.counts
    yield _gauge("tgi_queue_size", "Waiting requests", counts["waiting"])
    yield _gauge("tgi_batch_current_size", "Running requests", counts["running"])
    if manager.model is None:
        return
    memory, size = manager.memory, manager.memory.block_tokens
    used, budget = memory.used * size, memory.num_blocks * size
    for name in ("tgi_batch_current_max_tokens", "eb_kv_used_tokens"):
        yield _gauge(name, "KV taken, in tokens", used)
    for name in ("tgi_batch_max_total_tokens", "eb_kv_budget_tokens"):
        yield _gauge(name, "KV budget, in tokens", budget)
    yield _gauge("eb_kv_used_ratio", "KV taken, from 0 to 1", used / budget)
    blocks = {(str(size), str(memory.num_blocks)): 1}
    text = "Tokens of a block, and blocks"
    yield _gauge("eb_kv_blocks_info", text, blocks, "block_size", "num_gpu_blocks")


def under_vllms_names(families: Iterable[Metric], model: str) -> Iterator[Metric]:
    """Each of these families a second time, with the label `model_name`. Types and meanings are
    vLLM's; docs/deployment.md says what is counted otherwise."""
    for family in families:
        for name in VLLM_NAMES.get(family.name, ()):
            other = Metric(f"vllm:{name}", family.documentation, family.type)
            for sample in family.samples:
                labels = {"model_name": model, **sample.labels}
                if (end := labels.pop("end", None)) is not None:
                    if end not in REASONS:
                        continue
                    labels[REASON] = end
                suffix = sample.name.removeprefix(family.name)
                other.add_sample(other.name + suffix, labels, sample.value)
            yield other


def of_jobs(jobs: Jobs) -> Iterator[Metric]:
    """Stored jobs: what the maintenance last read; does not query the database."""
    progress = jobs.progress
    text = "1 if the job store is open and responds"
    yield _gauge("eb_job_store_up", text, progress is not None)
    if progress is None:
        return
    yield _gauge("eb_batches", "Stored batches, by status", progress.batches, "status")
    yield _gauge("eb_batch_lines", "Lines of stored batches, by state", progress.items, "state")
    if progress.next_deadline is not None:
        text = "When the earliest window of the batches in progress ends"
        yield _gauge("eb_batch_next_deadline_timestamp_seconds", text, progress.next_deadline)


@dataclass(frozen=True, slots=True)
class MetricsPage(Collector):
    """`unused_gpu`: as in runtime.executor.ModelInfo; `model`: its name."""

    stats: Stats
    manager: BatchingManager
    jobs: Jobs
    unused_gpu: Callable[[], str | None]
    model: str

    def collect(self) -> Iterator[Metric]:
        ours = families(self.stats, self.manager)
        yield from (*ours, *under_vllms_names(ours, self.model))
        text = "1: a GPU computes nothing, or without its kernels or CUDA graphs"
        yield _gauge("eb_unused_gpu", text, self.unused_gpu() is not None)
        yield from of_jobs(self.jobs)


def register_metrics(app: Flask, collector: Collector) -> None:
    """The metrics page."""
    registry = CollectorRegistry()
    registry.register(collector)

    @app.get("/metrics")
    @plain_errors(media="text/plain")
    def page() -> Response:
        text = _TOTAL_OF_TGI.sub(rb"\1 ", generate_latest(registry))
        return Response(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)
