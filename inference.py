"""A request in progress, and the reasons to refuse one. No torch and no threads: the handler that
waits and the loop that advances the request share it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from seams import End, Opening, RequestRecord, Sampling, ServiceClass, TokenLogprobs

Cut = Literal["timeout", "shutdown"]


class RefusedError(Exception):
    """The request is refused. The message says why and which setting decides."""


class TooLongError(RefusedError):
    """It could never fit."""


class OverloadedError(RefusedError):
    """It does not fit now but may later: `retry_after_s` is an estimate from the present rate."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DrainingError(RefusedError):
    """The server is about to stop."""


class Inference:
    """A request in progress, shared by the handler that waits for it and the loop that advances it.

    The loop's thread alone writes. A handler waits on `event`, which is set when the answer is
    complete, or on `news`, which is set whenever there is more to read, and reads `ids`, `end`,
    `error` and `record`.
    """

    id: int  # assigned by the queue: increases in order of arrival
    lane: int  # its slot of the batch while it is resident

    def __init__(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        arrival_s: float,
        *,
        end_ids: frozenset[int] = frozenset(),
        service_class: ServiceClass = "immediate",
        deadline_s: float | None = None,
        streaming: bool = False,
    ) -> None:
        self.ids = list(prompt)  # known tokens: the prompt, then what is generated
        self.prompt_tokens = len(prompt)
        self.max_tokens = max_tokens
        self.sampling = sampling
        self.arrival_s = arrival_s
        self.end_ids = end_ids  # generating one of these ends the request
        self.service_class: ServiceClass = service_class
        self.deadline_s = deadline_s  # after its arrival, as in seams.Request
        self.streaming = streaming
        self.salt = ""  # requests with the same salt share prefixes
        self.cached_tokens: int | None = None  # as in RequestRecord
        self.request_id: str | None = None  # of its HTTP request
        self.trace: str | None = None  # traceparent of its span, if requests are traced
        self.stored = False  # set by the manager: the job store keeps it
        self.computed = 0  # tokens, those of iterations in flight included
        self.expected = 0  # tokens that iterations in flight will yield
        self.flights = 0  # iterations in flight that it is part of
        self.resident = False
        self.preemptions = 0
        self.losses = 0  # of the model while it was in flight, since it had
        self.ids_at_loss = 0  # so many known tokens
        self.end: End | None = None  # set when no further token is wanted
        self.error: str | None = None
        self.cut_by: Cut | None = None  # if it failed through no fault of the model
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.logprobs: list[TokenLogprobs] = []  # of the generated tokens, if requested
        self.prompt_logprobs: list[TokenLogprobs] = []  # of the prompt from its second token on
        self.record: RequestRecord | None = None
        self.event = threading.Event()
        self.news = threading.Event()

    @property
    def ended(self) -> bool:
        return self.end is not None

    @property
    def done(self) -> bool:
        """No further token is wanted: it has ended, or its last token is in flight."""
        return self.end is not None or self.generated == self.max_tokens

    @property
    def known(self) -> int:
        return len(self.ids) + self.expected

    @property
    def generated(self) -> int:
        return len(self.ids) + self.expected - self.prompt_tokens

    def opening(self) -> Opening:
        return Opening(
            self.id,
            list(self.ids),
            self.prompt_tokens,
            self.sampling,
            len(self.prompt_logprobs),
            self.trace,
            self.request_id,
        )

    @property
    def hit_limit(self) -> int:
        """Tokens that a prefix hit may cover: the last known one must be computed, and every
        position whose logprobs are still missing."""
        scored = len(self.prompt_logprobs)
        if self.sampling.prompt_logprobs is not None and scored < self.prompt_tokens - 1:
            return scored
        return self.known - 1
