"""Stored jobs on the page of `/metrics`; docs/metrics.md says what each figure means."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deferred.jobs import Jobs


class JobCollector(Collector):
    """Reports what the maintenance last read; does not query the database."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        progress = self._jobs.progress
        yield GaugeMetricFamily(
            "eb_job_store_up",
            "1 if the job store is open and responds",
            progress is not None,
        )
        if progress is None:
            return
        batches = GaugeMetricFamily("eb_batches", "Stored batches, by status", labels=["status"])
        for status, count in progress.batches.items():
            batches.add_metric([status], count)
        yield batches
        lines = GaugeMetricFamily(
            "eb_batch_lines", "Lines of stored batches, by state", labels=["state"]
        )
        for state, count in progress.items.items():
            lines.add_metric([state], count)
        yield lines
        if progress.next_deadline is not None:
            yield GaugeMetricFamily(
                "eb_batch_next_deadline_timestamp_seconds",
                "When the earliest window of the batches in progress ends",
                progress.next_deadline,
            )
