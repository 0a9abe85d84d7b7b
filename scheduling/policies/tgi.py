"""Prefill interrupts decode: the scheduling of Text Generation Inference's router.

Hugging Face, text-generation-inference, `backends/v3/src/{backend,queue}.rs`, without chunking.
Prompts and decodes never share an iteration. Running requests decode until the queue offers a
batch that is worth an interruption: as many requests as `waiting_served_ratio` x the running ones,
or any number once `max_waiting_tokens` were decoded since the last prefill. The new batch's prompts
are prefilled alone, under `max_batch_prefill_tokens`; then all decode together. Requests are taken
in order of arrival, up to the first that does not fit. TGI refuses a request that exceeds a limit
by itself; here it runs alone.

Bounds. Waiting: no request is overtaken. Decoding: every prefill that interrupts is followed by a
decode of all requests, so between two of a request's tokens lies at most one prefill, of
`max_batch_prefill_tokens` or of a single longer prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scheduling.fitting import fitting
from seams import Advance, Plan, Policy, Request, Served, View


class TGI(Policy):
    """`max_batch_total_tokens`: tokens of all requests of a batch together; None leaves it to the
    KV memory. All limits are in tokens; `max_waiting_tokens` counts iterations, as TGI's does."""

    def __init__(
        self,
        max_batch_prefill_tokens: int = 4096,
        max_batch_total_tokens: int | None = None,
        waiting_served_ratio: float = 0.3,
        max_waiting_tokens: int = 20,
    ) -> None:
        self.max_batch_prefill_tokens = max_batch_prefill_tokens
        self.max_batch_total_tokens = max_batch_total_tokens
        self.waiting_served_ratio = waiting_served_ratio
        self.max_waiting_tokens = max_waiting_tokens
        self._waiting_tokens = 0  # iterations since the last prefill, itself included
        self._running: set[int] = set()  # those whose prefill has been computed
        self._interrupted = False  # those who run have waited for a prefill and are next

    def plan(self, view: View) -> Plan:
        running = view.resident
        if not (running and (self._interrupted or self._prefilling(running))):
            new = self._next_batch(view)
            if new and len(new) >= self._worth_it(len(running)):
                return Plan([Advance(request, request.known) for request in new])
        return Plan([Advance(request, request.known - request.computed) for request in running])

    def observe(self, rows: Iterable[Served]) -> None:
        rows = list(rows)
        ids = {row.request.id for row in rows}
        going_on = {row.request.id for row in rows if not row.request.done}
        if ids.isdisjoint(self._running):
            self._waiting_tokens, self._interrupted = 1, bool(self._running)
            self._running |= going_on
        else:
            self._waiting_tokens += 1
            self._interrupted = False
            self._running = going_on

    def _prefilling(self, running: Sequence[Request]) -> bool:
        """Whether a prefill that interrupts others is in flight."""
        return 0 < sum(request.id in self._running for request in running) < len(running)

    def _worth_it(self, running: int) -> int:
        """The least number of new requests for which `running` ones are interrupted."""
        if self._waiting_tokens >= self.max_waiting_tokens:
            return 1
        return int(running * self.waiting_served_ratio)

    def _next_batch(self, view: View) -> Sequence[Request]:
        prefill = self.max_batch_prefill_tokens
        total = math.inf if self.max_batch_total_tokens is None else self.max_batch_total_tokens
        total -= sum(_total(request) for request in view.resident)
        batch: list[Request] = []
        for request in fitting(view, view.waiting):
            prefill -= request.known - view.memory.hit_tokens(request)
            total -= _total(request)
            if (prefill < 0 and batch) or (total < 0 and (batch or view.resident)):
                break
            batch.append(request)
        return batch


def _total(request: Request) -> int:
    """Tokens that the request comes to hold."""
    return request.known + request.max_tokens - request.generated
