"""What has been counted since the start: the one set of sums behind `/stats` and `/metrics`.

A figure that is a sum is declared here, as a field and as the addition that feeds it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from records import End, IterationRecord, RequestRecord
from requested import ServiceClass
from telemetry.durations import is_completed, latency_s


@dataclass(slots=True)
class Totals:
    received: int = 0  # requests, including rejected ones
    rejected: int = 0
    left: int = 0  # requests whose client left before they were handled
    ended: Counter[tuple[ServiceClass, End]] = field(default_factory=Counter)
    latency_per_token_s: float = 0.0
    preemptions: int = 0
    looked_up_tokens: int = 0  # of prompts, in the prefix cache
    hit_tokens: int = 0
    iterations: Counter[int] = field(default_factory=Counter)  # by number of rows
    model_s: float = 0.0
    generated: int = 0
    tokens: int = 0
    positions: int = 0  # computed, padding included
    accepted_drafts: int = 0  # also among the tokens
    rejected_drafts: int = 0  # also among the positions
    deferred_tokens: int = 0
    deferred_generated: int = 0

    def add_iteration(self, record: IterationRecord) -> None:
        self.iterations[record.batch_size] += 1
        self.model_s += record.duration_s
        self.generated += record.num_generated
        self.tokens += record.num_tokens
        self.positions += record.num_positions
        self.accepted_drafts += record.accepted_drafts
        self.rejected_drafts += record.rejected_drafts
        self.deferred_tokens += record.deferred_tokens
        self.deferred_generated += record.deferred_generated

    def add_request(self, record: RequestRecord) -> None:
        self.ended[record.service_class, record.end] += 1
        self.preemptions += record.num_preemptions
        if record.cached_tokens is not None:
            self.looked_up_tokens += record.prompt_tokens
            self.hit_tokens += record.cached_tokens
        if is_completed(record):
            self.latency_per_token_s += latency_s(record) / record.generated

    def since(self, start: Totals) -> Totals:
        """What was added after `start`, an earlier copy. With `Totals()` it is a copy itself."""
        names = [each.name for each in fields(self)]
        return Totals(**{name: getattr(self, name) - getattr(start, name) for name in names})

    def count(self, *ends: End, of: ServiceClass | None = None) -> int:
        """Requests that ended so, of one class or of all."""
        return sum(
            times
            for (service_class, end), times in self.ended.items()
            if end in ends and of in (None, service_class)
        )
