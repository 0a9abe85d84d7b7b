"""A request in progress, and the reasons to refuse one. No torch and no threads: the handler that
waits and the loop that advances the request share it."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields
from typing import Literal

from seams import Drafts, End, Opening, RequestRecord, Sampling, ServiceClass, TokenLogprobs

NO_DRAFTS = Drafts(0, 0)
# fields of a record that a request has, too
RECORDED = {one.name for one in fields(RequestRecord)} - {"end_s", "generated", "end"}
# of a failure that is no fault of the model; constraint: of the request's own
Cause = Literal["timeout", "shutdown", "constraint"]


_GROUPS = itertools.count(1)


def new_group() -> int:
    """A number for requests with the same prompt, the choices of one call."""
    return next(_GROUPS)


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


@dataclass(slots=True, eq=False, repr=False)
class Inference:
    """A request in progress, shared by the handler that waits for it and the loop that advances it.

    The loop's thread alone writes, but see `Lifecycle.give_up`. A handler waits on `event`, which
    is set when the answer is complete, or on `updated`, which is set whenever there is more to
    read, and reads `ids`, `received`, `end`, `error` and `record`. `computed`, `known`, `generated`
    and `done` count what is in flight, so they are for the loop's thread alone. They are plain
    numbers, which change where something happens: every plan reads them of all residents.
    """

    prompt: InitVar[Sequence[int]]
    max_tokens: int
    sampling: Sampling
    arrival_s: float
    _: KW_ONLY
    due_s: float = math.inf  # when its time is over; set by the manager
    end_ids: frozenset[int] = frozenset()  # generating one of these ends the request
    service_class: ServiceClass = "immediate"
    deadline_s: float | None = None  # after its arrival, as in seams.Request
    priority: int = 0  # as in seams.Request, as are the next five
    user: int = 0
    end_user: int = 0
    program: int | None = None
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None
    predicted: int | None = None  # tokens to generate, by its client or learnt; None: unknown
    streaming: bool = False
    salt: str = ""  # requests with the same salt share prefixes
    group: int = 0  # choices of one prompt have the same number; 0: it is the only one
    request_id: str | None = None  # of its HTTP request
    trace: str | None = None  # traceparent of its span, if requests are traced
    stored: bool = False  # set by the manager: the job store keeps it
    need: object = None  # held until the end: what keeps its constraint compiled

    id: int = field(init=False)  # assigned by the queue: increases in order of arrival
    slot: int = field(init=False)  # of the batch, while it is resident
    ids: list[int] = field(init=False)  # known tokens: the prompt, then what is generated
    prompt_tokens: int = field(init=False)
    # tokens: `ids`, and what iterations in flight will yield, where each yields one
    known: int = field(init=False)
    cached_tokens: int | None = None  # as in RequestRecord
    computed: int = 0  # tokens, those of iterations in flight included
    done: bool = False  # no further token is wanted: it has ended, or its last token is in flight
    # its next step depends on tokens that are in flight: which they are, or how many
    must_wait: bool = False
    newest_iteration: int = 0  # the number of the newest one that it is part of
    num_newest: int = 1  # tokens that the newest iteration yielded
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    draft_hits: float = 0.0  # accepted drafts, the newest count most
    draft_trials: float = 0.0  # the same of those that were compared
    resident: bool = False
    num_preemptions: int = 0
    prefill_before: int = 0  # as in seams.Request
    num_losses: int = 0  # of the model while it was in flight, since it had
    known_at_loss: int = 0  # the number of known tokens
    end: End | None = None  # set by `finish`
    error: str | None = None
    cause: Cause | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    # both if requested: of the generated tokens, and of the prompt from its second token on
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    record: RequestRecord | None = None  # set when the client may be answered
    recorded: bool = False  # and when statistics include it
    event: threading.Event = field(default_factory=threading.Event)
    updated: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)
        self.prompt_tokens = self.known = len(prompt)

    def finish(self, end: End) -> None:
        """No further token is wanted."""
        self.end, self.done = end, True

    @property
    def predicted_tokens(self) -> int:
        """At most `max_tokens`. A request that outlives its prediction is likely to generate as
        much again as it has, so that a client gains little by one that is too low."""
        if self.predicted is None:
            return self.max_tokens
        likely = self.predicted if self.generated < self.predicted else 2 * self.generated
        return min(likely, self.max_tokens)

    @property
    def generated(self) -> int:
        return self.known - self.prompt_tokens

    @property
    def received(self) -> int:
        """Generated tokens, without those in flight."""
        return len(self.ids) - self.prompt_tokens

    def until_end(self, tokens: Sequence[int]) -> Sequence[int]:
        """The first of these generated tokens, up to one that ends the request."""
        left = self.prompt_tokens + self.max_tokens - len(self.ids)
        ends = (i + 1 for i, token in enumerate(tokens) if token in self.end_ids)
        return tokens[: min(left, next(ends, left))]

    def receive(self, tokens: Sequence[int], now_s: float, drafts: Drafts = NO_DRAFTS) -> None:
        """Adds generated tokens, none behind its end, of which one was expected. The accepted
        drafts among them are computed; what was computed behind these counts as never computed."""
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.ids += tokens
        self.num_newest = len(tokens)
        self.known += self.num_newest - 1
        if drafts is not NO_DRAFTS:
            self.num_newest -= drafts.accepted
            self.computed += drafts.accepted
            self.accepted_drafts += drafts.accepted
            self.rejected_drafts += drafts.computed - drafts.accepted
        if tokens[-1] in self.end_ids:
            self.finish("stop")
        elif len(self.ids) == self.prompt_tokens + self.max_tokens:
            self.finish("length")

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

    def record_of(self, end: End, end_s: float) -> RequestRecord:
        same = {name: getattr(self, name) for name in RECORDED}
        return RequestRecord(end_s=end_s, generated=self.received, end=end, **same)
