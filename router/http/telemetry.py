"""What is kept of a request that has ended: its trace, its line of the record, metrics, log."""

import logging
import time

from router import log
from router.dispatching import AsyncDispatcher
from router.http.exchange import ProxiedRequest
from router.metrics import Metrics
from telemetry.journal import Journal, Line
from telemetry.tracing import Traced


class RequestTelemetry:
    def __init__(
        self, dispatcher: AsyncDispatcher, metrics: Metrics, journal: Journal | None
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._journal = journal

    @staticmethod
    def _end_trace(x: ProxiedRequest, trace: Traced, status: int) -> None:
        trace.span.update_name(f"{x.request.method} {x.request.path}")
        attributes: dict[str, str | int | float] = {
            "http.request.method": x.request.method,
            "url.path": x.request.path,
            "http.response.status_code": status,
            "request.id": x.request_id,
            "gen_ai.request.model": x.model,
            "queue_time": x.routed.queued_s if x.routed is not None else 0.0,
            "attempts": len(x.routed.tried) if x.routed is not None else 0,
        }
        trace.end(time.time_ns(), attributes, error=x.broken or None)

    def _line(self, x: ProxiedRequest, status: int) -> Line:
        """The request ends just before the last piece of its answer is passed on: the client does
        not wait for what comes later."""
        return {
            "type": "routed",
            "request_id": x.request_id,
            "path": x.request.path,
            "start_s": x.started,
            "queued_s": x.routed.queued_s if x.routed is not None else 0.0,
            "end_s": self._dispatcher.now() if x.passed_s is None else x.passed_s,
            "status": status,
            "attempts": x.attempts,
        }

    def report(self, x: ProxiedRequest, status: int) -> None:
        routed = x.routed
        upstream = routed.upstream.url if routed is not None and routed.upstream else None
        total_s = self._dispatcher.now() - x.started
        if x.trace is not None:
            self._end_trace(x, x.trace, status)
        if self._journal is not None:
            self._journal.write(self._line(x, status))
        if routed is not None and upstream is not None:
            self._metrics.requests.labels(upstream, x.model, status).inc()
            self._metrics.queue_seconds.labels(x.model).observe(routed.queued_s)
            if x.begun_s and len(routed.tried) == 1:
                self._metrics.added_seconds.observe(
                    max(0.0, x.begun_s - routed.queued_s - x.upstream_s)
                )
        level = logging.WARNING if status >= 500 or x.broken else logging.DEBUG
        log.event(
            level,
            "request",
            request=x.request_id,
            path=x.request.path,
            model=x.model,
            upstream=upstream,
            status=status,
            attempts=len(routed.tried) if routed is not None else 0,
            queued_s=round(routed.queued_s, 4) if routed is not None else 0,
            first_byte_s=round(x.first_byte_s, 4),
            total_s=round(total_s, 4),
            broken=x.broken,
        )
