"""Statistics of a server: receives the records of requests and iterations, and aggregates them on
request. The sums behind `/stats` and `/metrics` are the same.

A figure is declared as a field of `Totals` or `Distributions`, with its name in `/metrics`, and
`Stats` adds to it. Receiving is a few additions in the loop's thread;
sorting and counting happen in the reader's thread. Memory is bounded: totals cover everything,
percentiles and lists the newest records of the window since the last reset. No torch, no clock:
times come with the records.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, get_args

from seams import PHASES, End, IterationRecord, RequestRecord, ServiceClass, phase_of
from telemetry.figures import Figures, Iterations, figures

REQUESTS_KEPT = 20_000
ITERATIONS_KEPT = 20_000
ITERATION_COLUMNS = ("start_s", "duration_s", "rows", "tokens", "padding")
DURATIONS_S = tuple(0.0001 * 1.5**i for i in range(1, 36))  # TGI's buckets, up to 145 s
CLASSES: tuple[ServiceClass, ...] = get_args(ServiceClass)


class Histogram:
    def __init__(self, bounds: Sequence[float] = DURATIONS_S) -> None:
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


def shown(
    name: str, text: str, make: Callable[[], Any] = Histogram, *, label: str | None = None
) -> Any:
    """A field that `/metrics` shows as it is, under this name; one with keys has a label."""
    return field(default_factory=make, metadata={"metric": (name, text, label)})


def _by(keys: Sequence[str]) -> Callable[[], dict[str, Histogram]]:
    return lambda: {key: Histogram() for key in keys}


@dataclass(slots=True)
class Distributions:
    """Of requests and iterations since the server's start; durations in seconds."""

    latency: Histogram = shown(
        "tgi_request_duration", "From arrival to end, in seconds like all durations"
    )
    validation: Histogram = shown("tgi_request_validation_duration", "From arrival to the queue")
    queue: Histogram = shown("tgi_request_queue_duration", "From arrival to admission")
    inference: Histogram = shown("tgi_request_inference_duration", "From admission to end")
    per_token: Histogram = shown(
        "tgi_request_mean_time_per_token_duration", "From admission to end, per generated token"
    )
    prefill: Histogram = shown("eb_request_prefill_seconds", "From admission to first token")
    decode: Histogram = shown("eb_request_decode_seconds", "From first token to last")
    ttft: dict[str, Histogram] = shown(
        "eb_time_to_first_token_seconds",
        "From arrival to first token",
        _by(CLASSES),
        label="class",
    )
    inter_token: dict[str, Histogram] = shown(
        "eb_inter_token_seconds", "Between two tokens of a request", _by(CLASSES), label="class"
    )
    iterations: dict[str, Histogram] = shown(
        "tgi_batch_inference_duration", "An iteration", _by(PHASES), label="method"
    )
    prompt_tokens: Counter[int] = shown("tgi_request_input_length", "Tokens of the prompt", Counter)
    max_tokens: Counter[int] = shown("tgi_request_max_new_tokens", "Requested tokens", Counter)
    generated: Counter[int] = shown("tgi_request_generated_tokens", "Tokens generated", Counter)
    accepted: Counter[int] = field(default_factory=Counter)  # drafts of a row that drew


@dataclass(slots=True)
class Totals:
    received: int = 0  # requests, including rejected ones
    rejected: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by TGI's word for the reason
    left: int = 0  # requests whose client left before they were handled
    ended: Counter[tuple[ServiceClass, End]] = field(default_factory=Counter)
    latency_per_token_s: float = 0.0
    preemptions: int = shown("eb_preemptions", "Preempted requests", int)
    looked_up_tokens: int = shown(
        "eb_prefix_cache_looked_up_tokens", "Prompt tokens looked up in the prefix cache", int
    )
    hit_tokens: int = shown(
        "eb_prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache", int
    )
    iterations: Counter[int] = field(default_factory=Counter)  # by number of rows
    model_s: float = 0.0
    generated: int = shown("eb_generated_tokens", "Generated tokens", int)
    tokens: int = 0
    positions: int = 0  # computed, padding included
    accepted_drafts: int = 0  # also among the tokens
    rejected_drafts: int = 0  # also among the positions
    deferred_tokens: int = 0
    deferred_generated: int = 0

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


class Queue(Protocol):
    """What is in flight, as the manager knows it."""

    @property
    def counts(self) -> Mapping[str, int]: ...  # waiting, running

    @property
    def pending(self) -> int: ...  # of the waiting ones, those that were not received yet

    @property
    def busy_since_s(self) -> float | None: ...  # start of the present time with work


class Stats:
    """A `seams.Recorder` for a server. All methods may be called from any thread."""

    def __init__(self, now_s: float) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()
        self._distributions = Distributions()
        self.reset(now_s)

    def reset(self, now_s: float) -> None:
        """Starts a new window. What is in flight counts where it ends."""
        with self._lock:
            self._start_s, self._since_unix_s = now_s, time.time()
            self._at_start = self._totals.since(Totals())
            self._busy_s = 0.0
            self._busy_until_s = 0.0  # end of what `_busy_s` holds
            self._requests = deque[RequestRecord](maxlen=REQUESTS_KEPT)
            self._iterations = deque[tuple[float, float, int, int, int]](maxlen=ITERATIONS_KEPT)

    # --- receiving --------------------------------------------------------------------------

    def iteration(self, record: IterationRecord) -> None:
        totals, distributions = self._totals, self._distributions
        phase = phase_of(record.rows.kinds)
        rows, tokens = record.batch_size, record.num_tokens
        with self._lock:
            self._iterations.append(
                (record.start_s, record.duration_s, rows, tokens, record.padding)
            )
            totals.iterations[rows] += 1
            totals.model_s += record.duration_s
            totals.generated += record.num_generated
            totals.tokens += tokens
            totals.positions += record.num_positions
            totals.accepted_drafts += record.accepted_drafts
            totals.rejected_drafts += record.rejected_drafts
            totals.deferred_tokens += record.deferred_tokens
            totals.deferred_generated += record.deferred_generated
            distributions.iterations[phase].observe(record.duration_s)
            distributions.accepted[0] += record.num_drawn
            for accepted in filter(None, record.rows.accepted):
                distributions.accepted[0] -= 1
                distributions.accepted[accepted] += 1
            for of, gap_s, times in record.gaps:
                distributions.inter_token[of].observe(gap_s, times)

    def request(self, record: RequestRecord) -> None:
        totals, distributions = self._totals, self._distributions
        with self._lock:
            totals.ended[record.service_class, record.end] += 1
            totals.preemptions += record.num_preemptions
            if record.cached_tokens is not None:
                totals.looked_up_tokens += record.prompt_tokens
                totals.hit_tokens += record.cached_tokens
            distributions.prompt_tokens[record.prompt_tokens] += 1
            distributions.max_tokens[record.max_tokens] += 1
            if not record.completed:
                return
            totals.latency_per_token_s += record.latency_s / record.generated
            self._requests.append(record)
            distributions.generated[record.generated] += 1
            assert record.admitted_s is not None
            assert record.first_token_s is not None
            assert record.last_token_s is not None
            inference_s = record.end_s - record.admitted_s
            distributions.latency.observe(record.latency_s)
            distributions.queue.observe(record.queue_s)
            distributions.inference.observe(inference_s)
            distributions.per_token.observe(inference_s / record.generated)
            distributions.prefill.observe(record.first_token_s - record.admitted_s)
            distributions.decode.observe(record.last_token_s - record.first_token_s)
            distributions.ttft[record.service_class].observe(record.ttft_s)

    def busy(self, start_s: float, end_s: float) -> None:
        with self._lock:
            self._busy_s += self._uncounted_s(start_s, end_s)
            self._busy_until_s = end_s

    def _uncounted_s(self, start_s: float, end_s: float) -> float:
        """The part of a busy time that lies in the window and not yet in `_busy_s`. Busy times may
        overlap: they begin with an arrival, which a large body can keep from the queue."""
        return max(0.0, end_s - max(start_s, self._start_s, self._busy_until_s))

    def count_received(self, validation_s: float) -> None:
        """An accepted request, and the time since it arrived."""
        with self._lock:
            self._totals.received += 1
            self._distributions.validation.observe(validation_s)

    def count_rejected(self) -> None:
        with self._lock:
            self._totals.received += 1
            self._totals.rejected += 1

    def count_left(self) -> None:
        """A request whose client left before it was handled."""
        with self._lock:
            self._totals.received += 1
            self._totals.left += 1

    def count_refused(self, why: str) -> None:
        with self._lock:
            self._totals.refused[why] += 1

    # --- reading ----------------------------------------------------------------------------

    def since_start(self) -> tuple[Totals, Distributions]:
        """A copy; adding them up is for after the lock, which the loop needs too."""
        with self._lock:
            return self._totals.since(Totals()), deepcopy(self._distributions)

    def summary(self, now_s: float, queue: Queue) -> Figures:
        """The figures of the window."""
        busy_since_s = queue.busy_since_s
        with self._lock:
            totals = self._totals.since(self._at_start)
            since_unix_s, busy_s = self._since_unix_s, self._busy_s
            if busy_since_s is not None:
                busy_s += self._uncounted_s(busy_since_s, now_s)
            requests, in_flight = list(self._requests), queue.counts
            totals.received += queue.pending
        # sorting is for after the lock, which the loop needs too
        return figures(totals, since_unix_s, busy_s, in_flight, requests)

    def iterations(self) -> Iterations:
        """The newest iterations of the window; times in seconds since its start."""
        with self._lock:
            newest, start_s = list(self._iterations), self._start_s
            total = self._totals.since(self._at_start).iterations.total()
        return {
            "columns": list(ITERATION_COLUMNS),
            "kept": ITERATIONS_KEPT,
            "dropped": total - len(newest),
            "iterations": [[at_s - start_s, *others] for at_s, *others in newest],
        }
