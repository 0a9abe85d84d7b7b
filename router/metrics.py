"""Prometheus metrics of the router. Gauges are read from the state when they are scraped."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.dispatching import AsyncDispatcher
from router.workers import Workers

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1)


class Metrics:
    """Label values are existing upstreams and models, so their number is bounded."""

    def __init__(self, dispatcher: AsyncDispatcher, workers: Workers) -> None:
        self._dispatcher = dispatcher
        self._workers = workers
        number = None if workers.seat is None else str(workers.seat.number)
        workers.does["metrics"] = lambda _: (number, self._read())
        self._shown: set[str] = set()
        self._registry = CollectorRegistry()
        r = self._registry
        self.requests = Counter(
            "eb_router_requests", "Responses sent", ["upstream", "model", "status"], registry=r
        )
        self.refused = Counter(
            "eb_router_refused", "Requests that the router refused", ["reason"], registry=r
        )
        self.departed = Counter(
            "eb_router_departed", "Clients that left before their response ended", registry=r
        )
        self.broken = Counter(
            "eb_router_broken_answers",
            "Responses that broke off after their first byte",
            ["upstream", "model"],
            registry=r,
        )
        self.retries = Counter(
            "eb_router_retries",
            "Requests sent elsewhere after they failed on this upstream",
            ["upstream", "model"],
            registry=r,
        )
        self.queue_seconds = Histogram(
            "eb_router_queue_seconds",
            "Wait for a free upstream",
            ["model"],
            buckets=_SECONDS,
            registry=r,
        )
        self.first_byte_seconds = Histogram(
            "eb_router_first_byte_seconds",
            "From sending the request to the first byte of the response's body",
            ["upstream", "model"],
            buckets=_SECONDS,
            registry=r,
        )
        self.added_seconds = Histogram(
            "eb_router_added_seconds",
            "Time that the router adds until the response begins, without queue and upstream",
            buckets=_OVERHEAD,
            registry=r,
        )
        r.register(_State(dispatcher))

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
            for metric in (self.requests, self.broken, self.retries, self.first_byte_seconds):
                metric.remove_by_labels({"upstream": url})
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
        counts = self._dispatcher.state.waiting()
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
        now = self._dispatcher.now()
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
