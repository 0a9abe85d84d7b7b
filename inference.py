"""A request on its way, and the reasons for which one is not taken in. No torch, no threads of its
own: what the door that waits and the loop that advances it share."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from seams import End, Need, RequestRecord, Sampling, ServiceClass, TokenLogprobs

Cut = Literal["timeout", "shutdown"]


class RefusedError(Exception):
    """A request that is not taken in. The message says why and which setting decides it."""


class TooLongError(RefusedError):
    """It could never fit."""


class OverloadedError(RefusedError):
    """It does not fit now; later it may: `retry_after_s` is an estimate from the present rate."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DrainingError(RefusedError):
    """The server is about to stop."""


class Inference:
    """A request on its way: the door that waits for it and the loop that advances it share it.

    The loop's thread alone writes. A door waits on `event`, which is set when the answer is
    complete, or on `news`, which is set whenever there is more to read, and reads `ids`, `end`,
    `error` and `record`.
    """

    id: int  # given by the queue that takes it in: increases in order of arrival

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
        self.deadline_s = deadline_s  # after its arrival, as seams.Request has it
        self.streaming = streaming
        self.stored = False  # set by the manager where somebody else keeps it
        self.computed = 0
        self.room = 0
        self.preemptions = 0
        self.growth_tokens: int | None = None  # set by the manager that takes it in
        self.end: End | None = None  # set when no further token is wanted
        self.error: str | None = None
        self.cut_by: Cut | None = None  # where it failed by no fault of the model
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.logprobs: list[TokenLogprobs] = []  # of the generated tokens, where asked for
        self.prompt_logprobs: list[TokenLogprobs] = []  # of the prompt from its second token on
        self.record: RequestRecord | None = None
        self.event = threading.Event()
        self.news = threading.Event()

    @property
    def done(self) -> bool:
        return self.end is not None

    @property
    def known(self) -> int:
        return len(self.ids)

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def need(self) -> Need:
        further = self.max_tokens - self.generated
        if self.growth_tokens is not None:
            further = min(further, self.growth_tokens)
        return Need(len(self.ids), further)
