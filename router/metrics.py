"""Prometheus metrics of the router. Gauges are read from the state when they are scraped."""

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.dispatching import AsyncDispatcher
from router.workers import Workers

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1)


M = TypeVar("M", Counter, Histogram)


class Series(dict[tuple[str, ...], M]):
    """The series of a metric by the values of its labels."""

    def __init__(self, metric: M) -> None:
        super().__init__()
        self.metric: M = metric

    def __missing__(self, values: tuple[str, ...]) -> M:
        one: M = self.metric.labels(*values)
        self[values] = one
        return one


class Metrics:
    """Label values are existing upstreams and models, so their number is bounded."""

    def __init__(self, dispatcher: AsyncDispatcher, workers: Workers) -> None:
        self._dispatcher = dispatcher
        self._workers = workers
        number = None if workers.seat is None else str(workers.seat.number)
        workers.does["metrics"] = lambda _: (number, self._read())
        self._shown: set[str] = set()
        self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"eb_router_{name}", text, labels, registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            name = f"eb_router_{name}_seconds"
            return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

        of_both = ("upstream", "model")
        self.requests = Series(counter("requests", "Responses sent", *of_both, "status"))
        self.refused = Series(counter("refused", "Requests that the router refused", "reason"))
        self.departed = counter("departed", "Clients that left before their response ended")
        self.broken = Series(
            counter("broken_answers", "Responses that broke off after their first byte", *of_both)
        )
        self.retries = Series(
            counter(
                "retries", "Requests sent elsewhere after they failed on this upstream", *of_both
            )
        )
        self.queue_seconds = Series(
            histogram("queue", "Wait for a free upstream", _SECONDS, "model")
        )
        self.first_byte_seconds = Series(
            histogram(
                "first_byte",
                "From sending the request to the first byte of the response's body",
                _SECONDS,
                *of_both,
            )
        )
        self.added_seconds = histogram(
            "added",
            "Time that the router adds until the response begins, without queue and upstream",
            _OVERHEAD,
        )
        self._registry.register(_State(dispatcher))

    async def text(self) -> bytes:
        """The metrics in the exposition format. Of several workers, each has series of its own."""
        found: dict[str, Metric] = {}
        for number, families in await self._workers.ask("metrics"):
            label = {} if number is None else {"worker": number}
            for name, text, kind, samples in families:
                family = found.setdefault(name, Metric(name, text, kind))
                for sample, labels, value in samples:
                    family.add_sample(sample, labels | label, value)
        shown = CollectorRegistry()
        shown.register(_Read(found.values()))
        return generate_latest(shown)

    def _read(self) -> list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]:
        """This worker's metrics, without upstreams that are gone."""
        present = {upstream.url for upstream in self._dispatcher.fleet}
        for url in self._shown - present:
            of_upstreams = (self.requests, self.broken, self.retries, self.first_byte_seconds)
            for series in of_upstreams:
                series.metric.remove_by_labels({"upstream": url})
                series.clear()
        self._shown = present
        return [
            (f.name, f.documentation, f.type, [(s.name, s.labels, s.value) for s in f.samples])
            for f in self._registry.collect()
        ]


class _Read(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._families


class _State(Collector):
    def __init__(self, dispatcher: AsyncDispatcher) -> None:
        self._dispatcher = dispatcher

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("eb_router_waiting", "Requests in the queue", labels=["model"])
        counts = self._dispatcher.waiting()
        known = self._dispatcher.fleet.models()
        for model in known:
            waiting.add_metric([model], counts.get(model, 0))
        yield waiting
        gauges = {
            name: GaugeMetricFamily(f"eb_router_{name}", text, labels=["upstream"])
            for name, text in (
                ("in_flight", "Requests on the upstream"),
                ("ready", "1 if its probes succeed"),
                ("breaker_state", "0 closed, 1 half-open, 2 open"),
                ("latency_seconds", "Moving average of the time to first byte"),
                ("outstanding_tokens", "Tokens to compute; a generated one counts twice"),
                ("tokens_per_second", "That a request alone would get, as measured; 0: not known"),
                ("told_waiting", "Requests that the upstream said are waiting"),
                ("told_running", "Requests that the upstream said are running"),
                ("told_free_blocks", "Blocks of KV memory that the upstream said are free"),
            )
        }
        now = monotonic()
        for upstream in self._dispatcher.fleet:
            gauges["in_flight"].add_metric([upstream.url], upstream.in_flight)
            gauges["ready"].add_metric([upstream.url], upstream.ready)
            gauges["breaker_state"].add_metric([upstream.url], upstream.breaker.state(now).value)
            gauges["latency_seconds"].add_metric([upstream.url], upstream.latency_s or 0.0)
            load = upstream.load
            gauges["outstanding_tokens"].add_metric([upstream.url], load.work(now))
            rate = load.rate or 0.0
            gauges["tokens_per_second"].add_metric([upstream.url], rate)
            for name, count in load.told.items():
                gauges[f"told_{name}"].add_metric([upstream.url], count)
        yield from gauges.values()
