"""The contracts between the packages. Everything that varies implements one. No torch, no threads.

Four seams. The **Model** executes an iteration. The **Policy** decides what the next iteration
contains. A **Recorder** is told of each iteration and of each request that has ended; every
reported figure is computed from these records. **Time** is passed in: nothing here or in
`batching.py` waits or reads a clock.

One rule for progress: a request has *computed* tokens (their keys and values are in the cache)
that must catch up with its *known* tokens (the prompt and the generated ones). Prefill, a
chunk of it, decode and resumption after preemption are all "advance this request by n tokens".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

# --- What a request asks for ----------------------------------------------------------------

ServiceClass = Literal["immediate", "deferred"]
ConstraintKind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the generated text must be: a JSON value of a schema, a match of a regular expression,
    or a text of a grammar in llguidance's dialect of Lark. `text`: the schema, as JSON, or the
    expression or grammar itself."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Noise is a function of (seed, position) alone, so a request's
    tokens depend neither on the rest of its batch nor on interruptions."""

    seed: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over all known tokens
    presence_penalty: float = 0.0  # over generated tokens, as is the next
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    min_tokens: int = 0  # generated tokens before which none of `end_ids` is drawn
    end_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # alternatives wanted beside each generated token's own
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    # one makes the next token depend on the newest, and may force several tokens in one iteration
    constraint: Constraint | None = None
    expected_ids: tuple[int, ...] = ()  # a guess of the answer, for drafts; it changes no token


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Under the model's own distribution, before temperature, penalties and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest (token id, logprob), best first


# --- Model ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything that a model needs to know of a sequence. It is sent once, before the first step,
    and again after a preemption: the engine's copy is authoritative, the model's a cache."""

    id: int
    ids: Sequence[int]  # the prompt, then what was generated
    prompt_tokens: int
    sampling: Sampling
    scored: int = 0  # prompt tokens whose logprobs are known from before a preemption
    trace: str | None = None  # traceparent of its request's span, if requests are traced
    request_id: str | None = None  # of its HTTP request, for records


class Step(NamedTuple):
    """A sequence's part in an iteration, in counts: its newest id may exist on the device only."""

    id: int
    start: int  # tokens already computed; the position of the first one to compute
    num_tokens: int  # to compute now; 0 for a held row of a rectangle
    draw: bool  # whether the next token is wanted
    blocks: Sequence[int]  # assigned to the sequence since its last step
    padding: int = 0  # positions computed before the tokens and discarded
    drafts: int = 0  # tokens that the model may guess and compute behind them, to draw several


class Columns(NamedTuple):
    """Steps, column by column: `Columns(*zip(*steps))`."""

    ids: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    draws: Sequence[bool]
    blocks: Sequence[Sequence[int]]
    paddings: Sequence[int]
    drafts: Sequence[int]


class Drafts(NamedTuple):
    """Guessed tokens that were computed behind a row's known ones. `accepted`: the first of them
    that were drawn at their places, whose keys and values stay."""

    computed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of an iteration, row by row in the order of its steps."""

    # new ones, empty for rows that drew none: the accepted drafts, the token that is drawn after
    # them, and those that a constraint forces after it, whose keys and values are not computed yet
    # either
    tokens: Sequence[Sequence[int]]
    positions: int  # computed, padding included
    duration_s: float  # of the model's work, for a virtual clock
    # by row, if requested: of the new tokens; and of prompt tokens, with the index of the first
    logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[int, Sequence[TokenLogprobs]]] = field(default_factory=dict)
    # by row: why it cannot be continued, through its own fault; its tokens mean nothing
    failed: Mapping[int, str] = field(default_factory=dict)
    drafts: Mapping[int, Drafts] = field(default_factory=dict)  # by row, where there were any

    def num_drafts(self, row: int) -> int:
        """Computed for this row."""
        return self.drafts[row].computed if row in self.drafts else 0


class DeviceMemoryError(Exception):
    """The device had no memory for this iteration; a smaller one may fit."""


class DeviceLostError(Exception):
    """The device fails from now on; only a new process can use it again."""


class ModelLostError(Exception):
    """The model is lost with all its state: its process died, hangs, or cannot be reached. Another
    one replaces it (see `Model.lost`), in which every sequence is opened again."""


class OpeningError(Exception):
    """Some sequences cannot be opened, through their own fault; the others were."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        """`reasons`: by sequence."""
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


class Pending(Protocol):
    """An iteration that was started."""

    def result(self) -> Outcome:
        """Waits for it. Raises the error that made it fail."""


class Model(Protocol):
    """Executes iterations. It receives sequences and their blocks, and assigns no memory. One
    thread calls it."""

    @property
    def context(self) -> int: ...  # longest sequence, in tokens
    @property
    def num_blocks(self) -> int: ...  # of KV memory
    @property
    def block_tokens(self) -> int: ...  # in a block

    @property
    def lost(self) -> str | None:
        """Why nothing can be started now; None if it can. May change at any time, and any thread
        reads it. Every loss is raised once, as ModelLostError by the next call or result, even if
        the model is back by then; the model's creator wakes the engine when it is back."""

    def open(self, new: Sequence[Opening]) -> None:
        """Adds sequences for the next iterations. Raises OpeningError."""

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> Pending:
        """Starts an iteration. `released`: sequences that have ended or lost their blocks since
        the last call. May raise what `Pending.result` may raise."""


class LoadedModel(Model, Protocol):
    """What its process needs of a model besides executing iterations."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def info(self) -> Any: ...  # runtime.executor.ModelInfo

    def warm_up(self) -> None: ...


class LoadError(Exception):
    """The model cannot be served; the message says why and what is allowed."""


# --- Policy ---------------------------------------------------------------------------------


class Request(Protocol):
    """A policy's view of a request. Read-only; token counts, never token ids."""

    @property
    def id(self) -> int: ...  # increases in order of arrival
    @property
    def arrival_s(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...  # that may be generated
    @property
    def predicted_tokens(self) -> int: ...  # that are likely to be generated in all
    @property
    def known(self) -> int: ...
    @property
    def computed(self) -> int: ...
    @property
    def cached_tokens(self) -> int | None: ...  # of the prompt, hits when it was first admitted
    @property
    def generated(self) -> int: ...
    @property
    def done(self) -> bool: ...  # no further token is wanted: finished, cancelled or failed
    @property
    def service_class(self) -> ServiceClass: ...
    @property
    def deadline_s(self) -> float | None: ...  # after its arrival; None: no deadline
    @property
    def ttft_target_s(self) -> float | None: ...  # after its arrival; None: none was given
    @property
    def tpot_target_s(self) -> float | None: ...
    @property
    def priority(self) -> int: ...  # a lower number is more urgent; 0: none was given
    @property
    def user(
        self,
    ) -> int: ...  # hash of the API key or, without keys, of the client's name; 0: none
    @property
    def end_user(self) -> int: ...  # of the name that the client gives beside its key; 0: none
    @property
    def program(self) -> int | None: ...  # which several calls share; None: the call is alone
    @property
    def prefill_before(self) -> int: ...  # `View.prefill_tokens` when it arrived
    @property
    def num_preemptions(self) -> int: ...
    @property
    def resident(self) -> bool: ...  # it holds KV memory; otherwise it waits


class Advance(NamedTuple):
    request: Request
    num_tokens: int  # to compute now: known - computed, or less


class Trial(Protocol):
    """Counts the blocks of a plan step by step, without changing anything."""

    free: int  # remaining blocks; if negative, the number that is missing

    def cost(self, step: Advance) -> int:
        """Blocks that the step takes beyond those that its request holds or shares."""

    def take(self, step: Advance) -> bool:
        """Counts the step if there are blocks for it."""
        cost = self.cost(step)
        if cost > self.free:
            return False
        self.charge(step, cost)
        return True

    def charge(self, step: Advance, cost: int) -> None:
        """Counts a step of this cost, even if there are no blocks for it."""


class Memory(Protocol):
    """KV memory as policies see it, in blocks. Policies never add blocks up themselves: sequences
    may share some."""

    num_blocks: int

    @property
    def used(self) -> int: ...  # by residents; num_blocks - used are available
    @property
    def cached(self) -> int: ...  # of the available ones, those that may still be shared

    def fit(self, requests: Iterable[Request], releasing: Iterable[Request] = ()) -> int:
        """How many of `requests`, in this order, can be admitted together once `releasing` have
        given up their blocks."""
        trial = self.trial(releasing)
        return sum(1 for _ in takewhile(trial.take, (Advance(r, 0) for r in requests)))

    def freed(self, requests: Iterable[Request]) -> int:
        """Blocks available if these residents release theirs; shared ones stay in use."""

    def hit_tokens(self, request: Request) -> int:
        """Known tokens of a waiting request that need not be computed, since a prefix cache holds
        their keys and values."""

    def trial(self, releasing: Iterable[Request] = ()) -> Trial: ...


@dataclass(frozen=True, slots=True)
class View:
    """Everything on which a policy may base its decision."""

    now_s: float
    waiting: Sequence[Request]  # preempted requests first, then in order of arrival
    resident: Sequence[Request]  # in order of admission; they hold KV memory
    max_batch_size: int  # rows of an iteration
    memory: Memory
    num_deferred: int  # waiting and resident requests of that class
    max_resident: int  # requests, paused ones included
    prefill_tokens: int = 0  # computed for prompts since the server started


@dataclass(frozen=True, slots=True)
class Plan:
    """The next iteration. A waiting request that advances is thereby admitted; a resident one
    that does not is paused and keeps its blocks; one that is preempted gives them up. A plan that
    advances no request waits for an arrival or a cancellation, but not past `wake_s`, which it
    must state."""

    advance: Sequence[Advance] = ()
    # residents that wait again; what a prefix cache still holds of them then is a prefix hit
    preempt: Sequence[Request] = ()
    hold: Sequence[Request] = ()  # residents that are done and keep their row of a rectangle
    wake_s: float | None = None


class Served(NamedTuple):
    """A row of a successful iteration."""

    request: Request
    computed: int  # tokens; 0 for a held row
    generated: int  # tokens that the request received


class Policy(Protocol):
    """Decides iteration by iteration. Deterministic in its views and in what it observed; the same
    object drives the server, the tests and any simulation, each with its own time. What inherits
    it needs a `plan` only."""

    # when a response leaves: with the request's last token, or when its batch ends
    answers: Literal["own", "batch"] = "own"

    def plan(self, view: View) -> Plan:
        """A plan may be dropped, so this changes no counter: see `Observer`."""

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        """The residents to remove now; all of them must be done. Called after every iteration, and
        after departures."""
        return [request for request in resident if request.done]


@runtime_checkable
class Observer(Protocol):
    """A policy that counts what was served has this method, too."""

    def observe(self, rows: Iterable[Served]) -> None:
        """Called once after every successful iteration, before its requests retire; those that
        have ended are included. Rows are made when they are read, which may be several times. The
        counts of a request may include the next iteration, if that is in flight."""


# --- Records --------------------------------------------------------------------------------

# prefill: everything before the first token, computed at once; chunk: a part of it; decode: what
# the newest iteration yielded, one token unless a constraint forced more; held: done, keeps its row
# until its batch ends; paused: resident, advanced by nothing
Kind = Literal["prefill", "chunk", "decode", "held", "paused"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PREFILL, CHUNK, DECODE, HELD, PAUSED = range(len(KINDS))


class Row(NamedTuple):
    """A resident request's part in an iteration."""

    request: int
    slot: int  # of the batch: the lowest free one at admission, kept until the request leaves
    num_tokens: int  # computed, accepted drafts included
    kind: Kind
    accepted: int = 0  # drafts, which are also among its tokens
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """`Row`s by column: objects would take eight times the memory."""

    requests: Sequence[int] = ()
    slots: Sequence[int] = ()
    token_counts: Sequence[int] = ()
    kinds: bytes = b""  # indices of KINDS
    accepted: Sequence[int] = ()  # drafts; empty, as is the next: no row had any
    rejected: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Row]:
        none = [0] * len(self.kinds)
        for request, slot, num_tokens, kind, accepted, rejected in zip(
            self.requests,
            self.slots,
            self.token_counts,
            self.kinds,
            self.accepted or none,
            self.rejected or none,
            strict=True,
        ):
            yield Row(request, slot, num_tokens, KINDS[kind], accepted, rejected)


@dataclass(slots=True)
class IterationRecord:
    """An iteration: what was planned, with the state at its start, and then what came of it.
    Recorders receive it once it has succeeded, and do not change it."""

    batch_size: int  # rows, those that are held included
    num_tokens: int = 0  # computed, without padding and rejected drafts
    attended: int = 0  # query-key pairs, without padding
    context: int = 0  # keys read: in each row, those of its tokens and of all before them
    with_deferred: bool = False  # deferred requests were waiting or resident
    deferred_tokens: int = 0  # computed for deferred requests
    rows: Rows = Rows()
    num_waiting: int = 0  # requests
    used_blocks: int = 0  # of KV memory, as are the next two
    cached_blocks: int = 0
    free_blocks: int = 0
    preempted: Sequence[int] = ()  # requests preempted since the previous iteration
    # known when it has ended
    start_s: float = 0.0
    duration_s: float = 0.0
    num_positions: int = 0  # computed, padding included
    padding: int = 0
    num_drawn: int = 0  # rows whose requests received tokens
    num_generated: int = 0  # tokens that they received
    deferred_generated: int = 0
    accepted_drafts: int = 0  # also among the tokens computed, and those generated
    rejected_drafts: int = 0
    # since the previous token: class, seconds, and number of requests that waited so long
    gaps: Sequence[tuple[ServiceClass, float, int]] = ()


def counted(starts: Sequence[int], counts: Sequence[int]) -> tuple[int, int, int]:
    """Tokens, query-key pairs and keys of rows that compute so many tokens from there on. A row
    without tokens reads no keys."""
    ends = [start + n for start, n in zip(starts, counts, strict=True) if n]
    num_tokens, context = sum(counts), sum(ends)
    if num_tokens == len(ends):
        return num_tokens, context, context
    attended = sum([n * b + n * (n + 1) // 2 for n, b in zip(counts, starts, strict=True)])
    return num_tokens, attended, context


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
    num_preemptions: int
    service_class: ServiceClass
    end: End
    # prompt tokens found in the prefix cache; None: not looked up
    cached_tokens: int | None = None
    accepted_drafts: int = 0
    rejected_drafts: int = 0

    @property
    def completed(self) -> bool:
        return self.end in ("length", "stop")

    # of a completed request

    @property
    def queue_s(self) -> float:
        assert self.admitted_s is not None
        return self.admitted_s - self.arrival_s

    @property
    def ttft_s(self) -> float:
        assert self.first_token_s is not None
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """(end - first token) / (tokens - 1): None for a single token."""
        assert self.first_token_s is not None
        if self.generated < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.generated - 1)

    @property
    def latency_s(self) -> float:
        return self.end_s - self.arrival_s


class Recorder(Protocol):
    """Receives records, from which every reported figure is computed."""

    def iteration(self, record: IterationRecord) -> None: ...

    def request(self, record: RequestRecord) -> None: ...

    def busy(self, start_s: float, end_s: float) -> None:
        """A busy period: the queue or the batch held requests all the time."""


PHASES = ("prefill", "decode")


def phase_of(kinds: bytes) -> str:
    """Of PHASES: `decode` if none of the rows is in prefill or computes a part of it."""
    return "prefill" if PREFILL in kinds or CHUNK in kinds else "decode"


# --- Time -----------------------------------------------------------------------------------

Clock = Callable[[], float]  # seconds of a monotonic clock, or of a virtual one
