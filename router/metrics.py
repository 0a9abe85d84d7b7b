"""Prometheus metrics of the router. Gauges are read from the state when they are scraped."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from router.rules.dispatch import Dispatcher
from router.rules.upstream import Upstream
from router.workers import Workers

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1)
_OF_BOTH = ("upstream", "model")

# Gauges of an upstream
_GAUGES = {
    "in_flight": "Requests on the upstream",
    "ready": "1 if its probes succeed",
    "breaker_state": "0 closed, 1 half-open, 2 open",
    "latency_seconds": "Moving average of the time to first byte",
    "outstanding_tokens": "Tokens to compute; a generated one counts twice",
    "tokens_per_second": "That a request alone would get, as measured; 0: not known",
    "told_waiting": "Requests that the upstream said are waiting",
    "told_running": "Requests that the upstream said are running",
    "told_free_blocks": "Blocks of KV memory that the upstream said are free",
}

M = TypeVar("M", Counter, Histogram)


@dataclass(frozen=True)
class _Families:
    """What prometheus_client can write."""

    collect: Callable[[], list[Metric]]


class Metrics:
    """Label values are existing upstreams and models, so their number is bounded."""

    def __init__(self, dispatcher: Dispatcher, workers: Workers) -> None:
        self._dispatcher = dispatcher
        self._workers = workers
        number = None if workers.seat is None else str(workers.seat.number)
        workers.does["metrics"] = lambda _: (number, self._read())
        self._shown: set[str] = set()
        self._registry = CollectorRegistry()
        # those of upstreams, with what forgets their series
        self._of_upstreams: list[tuple[Counter | Histogram, Callable[[], None]]] = []
        self.requests = self._counter("requests", "Responses sent", *_OF_BOTH, "status")
        self.refused = self._counter("refused", "Requests that the router refused", "reason")
        text = "Clients that left before their response ended"
        self.departed = Counter("eb_router_departed", text, registry=self._registry)
        text = "Responses that broke off after their first byte"
        self.broken = self._counter("broken_answers", text, *_OF_BOTH)
        text = "Requests sent elsewhere after they failed on this upstream"
        self.retries = self._counter("retries", text, *_OF_BOTH)
        self.queue_seconds = self._seconds("queue", "Wait for a free upstream", "model")
        text = "From sending the request to the first byte of the response's body"
        self.first_byte_seconds = self._seconds("first_byte", text, *_OF_BOTH)
        text = "Time that the router adds until the response begins, without queue and upstream"
        name = "eb_router_added_seconds"
        self.added_seconds = Histogram(name, text, buckets=_OVERHEAD, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        metric = Counter(f"eb_router_{name}", text, labels, registry=self._registry)
        return self._series(metric, labels)

    def _seconds(self, name: str, text: str, *labels: str) -> Callable[..., Histogram]:
        name = f"eb_router_{name}_seconds"
        metric = Histogram(name, text, labels, buckets=_SECONDS, registry=self._registry)
        return self._series(metric, labels)

    def _series(self, metric: M, labels: tuple[str, ...]) -> Callable[..., M]:
        """The series of a metric by the values of its labels."""
        series = functools.cache(metric.labels)
        if "upstream" in labels:
            self._of_upstreams.append((metric, series.cache_clear))
        return series

    async def text(self) -> bytes:
        """The metrics in the exposition format. Of several workers, each has series of its own."""
        found: dict[str, Metric] = {}
        for number, families in await self._workers.ask("metrics"):
            label = {} if number is None else {"worker": number}
            for name, text, kind, samples in families:
                family = found.setdefault(name, Metric(name, text, kind))
                for sample, labels, value in samples:
                    family.add_sample(sample, labels | label, value)
        return generate_latest(_Families(lambda: [*found.values()]))

    def _read(self) -> list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]:
        """This worker's metrics, without upstreams that are gone."""
        present = {upstream.url for upstream in self._dispatcher.fleet}
        for url in self._shown - present:
            for metric, forget_series in self._of_upstreams:
                metric.remove_by_labels({"upstream": url})
                forget_series()
        self._shown = present
        return [
            (f.name, f.documentation, f.type, [(s.name, s.labels, s.value) for s in f.samples])
            for f in (*self._registry.collect(), *self._gauges())
        ]

    def _gauges(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("eb_router_waiting", "Requests in the queue", labels=["model"])
        counts = self._dispatcher.waiting()
        for model in self._dispatcher.fleet.models():
            waiting.add_metric([model], counts.get(model, 0))
        yield waiting
        values = {upstream.url: _values(upstream) for upstream in self._dispatcher.fleet}
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"eb_router_{name}", text, labels=["upstream"])
            for url, known in values.items():
                if name in known:
                    gauge.add_metric([url], known[name])
            yield gauge


def _values(upstream: Upstream) -> dict[str, float]:
    """Those of _GAUGES that are known."""
    now = monotonic()
    return {
        "in_flight": upstream.in_flight,
        "ready": upstream.ready,
        "breaker_state": upstream.breaker.state(now).value,
        "latency_seconds": upstream.latency_s or 0.0,
        "outstanding_tokens": upstream.load.work(now),
        "tokens_per_second": upstream.load.rate or 0.0,
        **{f"told_{name}": count for name, count in upstream.load.told.items()},
    }
