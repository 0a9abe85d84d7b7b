"""The contracts between the rooms: what varies, varies at one of these. No torch, no threads.

Three seams. The **Model** executes one iteration. The **Policy** decides what the next iteration
holds. **Time** is handed in: nothing here or in `batching.py` waits or reads a clock.

One rule for progress: a request has *computed* tokens (their keys and values are in the cache)
that must catch up with its *known* tokens (prompt and what was generated so far). Prefill, a
chunk of it, decode and resumption after preemption are all "advance this request by n tokens".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

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
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over all known tokens
    presence_penalty: float = 0.0  # over generated tokens, as is the next
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what its logit gains)
    logprobs: int | None = None  # alternatives wanted beside each generated token's own
    prompt_logprobs: int | None = None  # the same for the prompt's tokens


@dataclass(frozen=True, slots=True)
class Draw:
    """What an iteration is to draw for a row."""

    sampling: Sampling
    known: Sequence[
        int
    ]  # the prompt, then what was generated; the next token's index is its length
    prompt_tokens: int
    next_token: bool = True  # False in a part of a prompt that is wanted for its logprobs only


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Under the model's own distribution, before temperature, penalties and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest (token id, logprob), best first


class KV(Protocol):
    """Where a sequence's keys and values live. Opaque to all but the model that made it; the
    memory returns to the model's budget when the last reference to the handle goes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part in an iteration."""

    kv: KV
    start: int  # tokens already computed; the position of tokens[0]
    tokens: Sequence[int]  # to be computed now; empty for a row that only keeps its place
    draw: Draw | None  # None: nothing is wanted (done, or prefill goes on)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration gave: for each row its next token, or None where none was wanted."""

    tokens: list[int | None]
    positions: int  # computed, padding included
    duration_s: float
    # by row, where asked for: of the next token, and of those prompt tokens that the row's
    # new positions predict
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Need:
    """The room a sequence asks for at admission: tokens known, and further ones: all that it may
    generate, or as many as it begins with where sequences grow."""

    known: int
    further: int


class OutOfMemoryError(Exception):
    """The model had no room for this iteration; a smaller one may fit."""


class DeviceLostError(Exception):
    """The device fails whatever it is asked from now on; only a new process can use it again."""


class Memory(Protocol):
    """The KV budget, in tokens. `used` + `free` = `budget` at all times."""

    @property
    def budget(self) -> int: ...

    @property
    def used(self) -> int: ...

    def cost(self, needs: Sequence[Need]) -> int:
        """Tokens of the budget that sequences admitted together would take; further ones never
        make it less."""
        ...


class Model(Protocol):
    """What all models share; `DenseModel` and `RaggedModel` add how an iteration is executed."""

    @property
    def context(self) -> int: ...  # longest sequence, in tokens

    @property
    def memory(self) -> Memory: ...

    def allocate(self, needs: Sequence[Need]) -> list[KV]:
        """Handles for sequences admitted together. Raises OutOfMemoryError beyond the budget."""
        ...


class DenseModel(Model, Protocol):
    def forward(
        self,
        tokens: Sequence[Sequence[int]],
        lengths: Sequence[int],
        kvs: Sequence[KV],
        draws: Sequence[Draw | None],
    ) -> Outcome:
        """One iteration over a rectangle `[rows, width]`. Of row i the last `lengths[i]` columns
        are tokens, those before are padding. All handles come from one `allocate` call."""
        ...


class RaggedModel(Model, Protocol):
    def grow(self, kv: KV, tokens: int) -> None:
        """Gives the handle room for `tokens` in all; each further one costs one of the budget.
        What it holds is kept. Raises OutOfMemoryError beyond the budget, or where the device has
        no room for it."""
        ...

    def forward_ragged(
        self,
        tokens: Sequence[int],
        lengths: Sequence[int],
        starts: Sequence[int],
        kvs: Sequence[KV],
        draws: Sequence[Draw | None],
    ) -> Outcome:
        """One iteration over a pack: the rows' tokens one after the other, `lengths[i]` of row i
        from position `starts[i]` on; no padding."""
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
    def need(self) -> Need: ...

    @property
    def service_class(self) -> ServiceClass: ...

    @property
    def deadline_s(self) -> float | None: ...  # after its arrival; None: whenever it suits

    @property
    def room(self) -> int: ...  # tokens that its KV memory holds; 0 for one that waits


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
class Advance:
    request: Request
    tokens: int  # to compute now: known - computed, or less; 0 keeps a place in a rectangle


@dataclass(frozen=True, slots=True)
class Plan:
    """The next iteration. A waiting request that advances is thereby admitted; a resident one
    that does not is paused and keeps its memory. An empty plan waits for an arrival or a
    cancellation, but not past `wake_s`, which it must give."""

    advance: Sequence[Advance] = ()
    preempt: Sequence[Request] = ()  # residents that give up their memory and wait again
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


class Recorder(Protocol):
    """Takes in what happened. Everything that is reported is computed from these records."""

    def iteration(self, record: IterationRecord) -> None: ...

    def request(self, record: RequestRecord) -> None: ...

    def busy(self, start_s: float, end_s: float) -> None:
        """A stretch of time in which work was present."""
        ...
