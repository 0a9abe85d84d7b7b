"""The contracts between the packages: what varies, varies at one of these. No torch, no threads.

Three seams. The **Model** executes one iteration. The **Policy** decides what the next iteration
holds. **Time** is handed in: nothing here or in `batching.py` waits or reads a clock.

One rule for progress: a request has *computed* tokens (their keys and values are in the cache)
that must catch up with its *known* tokens (prompt and what was generated so far). Prefill, a
chunk of it, decode and resumption after preemption are all "advance this request by n tokens".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

ServiceClass = Literal["immediate", "deferred"]

RANDOM_PREFIX = "random:"  # of a model's name: that shape, random weights, the embedded vocabulary


# --- Model ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Noise is a function of (seed, position) alone, so a request's
    tokens depend neither on what it is batched with nor on when it was interrupted."""

    seed: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over all known tokens
    presence_penalty: float = 0.0  # over generated tokens, as is the next
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what its logit gains)
    min_tokens: int = 0  # generated ones before which none of `end_ids` is drawn
    end_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # alternatives wanted beside each generated token's own
    prompt_logprobs: int | None = None  # the same for the prompt's tokens


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Under the model's own distribution, before temperature, penalties and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class Opening:
    """All that a model must know of a sequence. It crosses once, before the first step, and again
    after a preemption: the engine's copy is the truth, the model's a cache."""

    id: int
    ids: Sequence[int]  # the prompt, then what was generated
    prompt_tokens: int
    sampling: Sampling
    scored: int = 0  # prompt tokens whose logprobs are known from before a preemption
    trace: str | None = None  # traceparent of its request's span, where requests are traced


class Step(NamedTuple):
    """A sequence's part in an iteration, in counts: its newest id may exist on the device only."""

    id: int
    start: int  # tokens already computed; the position of the first one to compute
    tokens: int  # to compute now; 0 in the row of a rectangle that only keeps its place
    draw: bool  # whether the next token is wanted
    blocks: Sequence[int]  # given to the sequence since its last step
    padding: int = 0  # positions computed before the tokens and thrown away


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration gave, row by row in the order of its steps."""

    tokens: Sequence[Sequence[int]]  # new ones; none where none was wanted
    positions: int  # computed, padding included
    duration_s: float  # of the model's work, for a clock that does not tick by itself
    # by row, where asked for: of the new tokens; and of prompt tokens, with the index of the first
    logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[int, Sequence[TokenLogprobs]]] = field(default_factory=dict)


class DeviceMemoryError(Exception):
    """The device had no memory for this iteration; a smaller one may fit."""


class DeviceLostError(Exception):
    """The device fails whatever it is asked from now on; only a new process can use it again."""


class ModelLostError(Exception):
    """The model is gone with all that it was told: its process died, hangs, or cannot be reached.
    Another one takes its place (see `Model.lost`), to which every sequence is opened again."""


class Pending(Protocol):
    """An iteration that was started."""

    def result(self) -> Outcome:
        """Waits for it. Raises whatever made it fail."""
        ...


class Model(Protocol):
    """Executes iterations. It is told of sequences and of the blocks that are theirs; it gives no
    memory out. One thread calls it."""

    @property
    def context(self) -> int: ...  # longest sequence, in tokens

    @property
    def blocks(self) -> int: ...  # of KV memory

    @property
    def block_tokens(self) -> int: ...  # that a block holds

    @property
    def lost(self) -> str | None:
        """Why nothing can be started now; None while it can. May change at any time, and is read by
        any thread. Every loss is raised once, as ModelLostError by the next call or result, even
        where the model is back by then; whoever made the model wakes the engine when it is back."""
        ...

    def open(self, new: Sequence[Opening]) -> None:
        """Sequences that take part from the next iteration on."""
        ...

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> Pending:
        """Starts an iteration. `released`: sequences that have ended or lost their blocks since
        the last call. May raise what `Pending.result` may raise."""
        ...


# --- Policy ---------------------------------------------------------------------------------


class Request(Protocol):
    """What a policy sees of a request. Read-only; token counts, never token ids."""

    @property
    def id(self) -> int: ...  # increases in order of arrival

    @property
    def arrival_s(self) -> float: ...

    @property
    def max_tokens(self) -> int: ...  # that may be generated

    @property
    def known(self) -> int: ...

    @property
    def computed(self) -> int: ...

    @property
    def generated(self) -> int: ...

    @property
    def done(self) -> bool: ...  # no further token is wanted: finished, cancelled or failed

    @property
    def service_class(self) -> ServiceClass: ...

    @property
    def deadline_s(self) -> float | None: ...  # after its arrival; None: whenever it suits

    @property
    def resident(self) -> bool: ...  # it holds KV memory; else it waits


class Advance(NamedTuple):
    request: Request
    tokens: int  # to compute now: known - computed, or less


class Trial(Protocol):
    """The blocks of a plan, counted step by step while nothing is changed yet."""

    free: int  # blocks that remain; below zero, so many are missing

    def cost(self, step: Advance) -> int:
        """Blocks that the step takes beyond those that its request holds or shares."""
        ...

    def take(self, step: Advance) -> bool:
        """Counts the step, if there are blocks for it."""
        cost = self.cost(step)
        if cost > self.free:
            return False
        self.insist(step, cost)
        return True

    def insist(self, step: Advance, cost: int) -> None:
        """Counts a step of this cost, whether or not there are blocks for it."""
        ...


class Memory(Protocol):
    """KV memory as policies see it, in blocks. Policies never add blocks up themselves: sequences
    may share some."""

    budget: int

    @property
    def used(self) -> int: ...  # by residents; budget - used can be had

    @property
    def cached(self) -> int: ...  # of those that can be had, how many may still be shared

    def fit(self, requests: Iterable[Request], releasing: Iterable[Request] = ()) -> int:
        """How many of `requests`, in this order, can be admitted together once `releasing` have
        given up their blocks."""
        trial, count = self.trial(releasing), 0
        for request in requests:
            if not trial.take(Advance(request, 0)):
                break
            count += 1
        return count

    def freed(self, requests: Iterable[Request]) -> int:
        """Blocks that can be had if these residents give up theirs; shared ones stay in use."""
        ...

    def hit_tokens(self, request: Request) -> int:
        """Of one that waits: known tokens that need not be computed, since a prefix cache holds
        their keys and values."""
        ...

    def trial(self, releasing: Iterable[Request] = ()) -> Trial: ...


@dataclass(frozen=True, slots=True)
class View:
    """All that a policy may base its decision on."""

    now_s: float
    waiting: Sequence[Request]  # preempted requests first, then in order of arrival
    resident: Sequence[Request]  # in order of admission; they hold KV memory
    max_batch_size: int
    memory: Memory
    deferred: int  # how many of these requests are of that class


@dataclass(frozen=True, slots=True)
class Plan:
    """The next iteration. A waiting request that advances is thereby admitted; a resident one
    that does not is paused and keeps its memory. A plan that advances nobody waits for an arrival
    or a cancellation, but not past `wake_s`, which it must give."""

    advance: Sequence[Advance] = ()
    preempt: Sequence[Request] = ()  # residents that give up their memory and wait again
    hold: Sequence[Request] = ()  # residents that are done and keep their row of a rectangle
    wake_s: float | None = None


class Policy(Protocol):
    """Decides iteration by iteration. Deterministic in what it was shown; the same object drives
    the server, the tests and any simulation, each with a time of its own."""

    @property
    def answers(self) -> Literal["own", "batch"]:
        """When an answer leaves: with the request's own last token, or with its place."""
        ...

    def plan(self, view: View) -> Plan: ...

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        """Those of the residents that give up their place now; all of them done. Asked after every
        iteration, and when somebody left."""
        ...


# --- Records --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IterationRecord:
    start_s: float
    duration_s: float
    rows: int
    tokens: int  # computed and wanted
    positions: int  # computed, padding included
    generated: int  # tokens handed to requests
    attended: int = 0  # query-key pairs, of wanted tokens
    context: int = 0  # keys read: of each row, those before its tokens and theirs
    deferred_tokens: int = 0  # computed for deferred requests
    deferred_generated: int = 0
    # since the token before: class, seconds, and how many requests waited so long
    gaps: Sequence[tuple[ServiceClass, float, int]] = ()


End = Literal["length", "stop", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    arrival_s: float
    admitted_s: float | None  # None: never admitted
    first_token_s: float | None
    last_token_s: float | None
    end_s: float
    prompt_tokens: int
    max_tokens: int
    generated: int
    preemptions: int
    service_class: ServiceClass
    end: End
    # of the prompt's tokens, how many a prefix cache held; None: they were not looked up
    cached_tokens: int | None = None


class Recorder(Protocol):
    """Takes in what happened. Everything that is reported is computed from these records."""

    def iteration(self, record: IterationRecord) -> None: ...

    def request(self, record: RequestRecord) -> None: ...

    def busy(self, start_s: float, end_s: float) -> None:
        """A stretch of time in which work was present."""
        ...
