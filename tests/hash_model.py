"""A model whose next token is a hash of the whole prefix it was given. No torch, no weights.

Any cross-talk between requests, wrong position or wrong KV handle becomes a wrong token within
milliseconds, in every mode and under every policy; `reference` says what a request would get if
it were alone. It takes both layouts (`forward` for rectangles, `forward_ragged` for packs) and
checks the contract of `seams.py` on every call: a breach raises `ContractError` and stays in
`breaches`, since a manager that survives a failing model would otherwise hide it.

    model = HashModel()                                    # real time, as a server needs it
    model = HashModel(step_s=0.02)                         # keeps requests in flight for a while
    model = HashModel(duration_s=virtual_duration_s)       # virtual time, exact in binary
    model = HashModel(fail_on={3}, max_rows=8)             # the 3rd iteration fails, 9 rows too
    model = HashModel(lost_from=3)                         # the device is lost in the 3rd
    reference([1, 2, 3], 20, seed=7)                       # tokens of that request, alone
    reference([1, 2, 3], 20, seed=None)                    # the same with temperature 0
    reference_logprob([1, 2, 3], 4)                        # of token 4 after that prefix
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from seams import KV, DeviceLostError, Draw, Need, Outcome, OutOfMemoryError, TokenLogprobs

VOCAB_SIZE = 257


def reference(
    prompt: Sequence[int], n: int, seed: int | None, vocab_size: int = VOCAB_SIZE
) -> list[int]:
    """The first `n` tokens after `prompt` for a request that is alone; `seed` None is greedy."""
    state = _absorb(0, prompt)
    tokens = []
    for _ in range(n):
        tokens.append(_choose(state, seed, vocab_size))
        state = _absorb(state, tokens[-1:])
    return tokens


def reference_logprob(prefix: Sequence[int], token: int, vocab_size: int = VOCAB_SIZE) -> float:
    """Of `token` after `prefix`: less, the further it is from the greedy one."""
    return _logprob(_absorb(0, prefix), token, vocab_size)


def virtual_duration_s(rows: float, positions: float) -> float:
    """Sums of binary fractions are exact, so tests may compare times for equality."""
    return 2**-10 + rows * 2**-13 + positions * 2**-17


def _absorb(state: int, tokens: Sequence[int]) -> int:
    for token in tokens:
        state = hash((state, token))  # hashes of integers are the same in every process
    return state


def _choose(state: int, seed: int | None, vocab_size: int) -> int:
    return hash((state,) if seed is None else (state, seed)) % vocab_size


def _logprob(state: int, token: int, vocab_size: int) -> float:
    """No distribution, but finite, exact in binary, best for the greedy token, and another one
    after every prefix."""
    return -(1 + (token - _choose(state, None, vocab_size)) % vocab_size) / 4


def _logprobs(state: int, token: int, alternatives: int, vocab_size: int) -> TokenLogprobs:
    best = _choose(state, None, vocab_size)
    top = [(best + rank) % vocab_size for rank in range(alternatives)]
    return TokenLogprobs(
        token,
        _logprob(state, token, vocab_size),
        tuple((other, _logprob(state, other, vocab_size)) for other in top),
    )


class ContractError(AssertionError):
    """The model was called in a way that `seams.py` does not allow."""


class InjectedError(RuntimeError):
    """The failure that a test asked for."""


@dataclass(frozen=True, slots=True)
class Info:
    name: str
    parameters: int
    dtype: str
    device: str
    note: str


class HashMemory:
    """A budget in tokens. A rectangle costs rows x (longest known + longest further), a pack the
    sum of its sequences."""

    def __init__(self, budget: int, *, rectangles: bool) -> None:
        self.budget = budget
        self.used = 0
        self.rectangles = rectangles

    def cost(self, needs: Sequence[Need]) -> int:
        if not self.rectangles:
            return sum(need.known + need.further for need in needs)
        return len(needs) * (max(n.known for n in needs) + max(n.further for n in needs))


class _Room:
    """Tokens of the budget; they return with the last handle that refers to them."""

    def __init__(self, memory: HashMemory, tokens: int) -> None:
        self.memory, self.tokens = memory, tokens
        memory.used += tokens

    def __del__(self) -> None:
        self.memory.used -= self.tokens


@dataclass(slots=True)
class _Call:
    """What the handles of one `allocate` call have in common."""

    rows: int
    columns: int
    filled: int = 0


@dataclass(slots=True, eq=False)
class HashKV:
    """A sequence's keys and values: the hash of the tokens it holds, and their number."""

    call: _Call
    row: int
    room: _Room
    capacity: int
    held: int = 0
    state: int = 0
    spoilt: bool = False  # it was in an iteration that failed, perhaps half done


class HashModel:
    """`rectangles`: memory is accounted as a dense model's (static, nobatch) or as a ragged one's.
    `duration_s` (rows, positions): what an iteration reports; None reports the time it took.
    `fail_on`: the numbers of the iterations (from 1) that raise InjectedError.
    `lost_from`: from this iteration on all raise DeviceLostError.
    `max_rows`: more rows raise OutOfMemoryError.
    `before_iteration` (number): called first; it may block or raise.
    All of these may be changed between iterations."""

    def __init__(
        self,
        *,
        context: int = 1024,
        vocab_size: int = VOCAB_SIZE,
        budget: int | None = None,
        rectangles: bool = False,
        step_s: float = 0.0,
        duration_s: Callable[[int, int], float] | None = None,
        fail_on: Collection[int] = (),
        lost_from: float = math.inf,
        max_rows: int | None = None,
        before_iteration: Callable[[int], None] | None = None,
    ) -> None:
        self.context = context
        self.vocab_size = vocab_size
        self.memory = HashMemory(64 * context if budget is None else budget, rectangles=rectangles)
        self.info = Info("hash", 0, "int64", "cpu", "next token = hash of the prefix; tests only")
        self.step_s = step_s
        self.duration_s = duration_s
        self.fail_on = fail_on
        self.lost_from = lost_from
        self.max_rows = max_rows
        self.before_iteration = before_iteration
        self.iterations = 0  # begun, those that failed included
        self.breaches: list[str] = []
        self._thread: int | None = None

    def warm_up(self) -> None:
        """Nothing to warm."""

    def allocate(self, needs: Sequence[Need]) -> list[KV]:
        self._require(len(needs) > 0, "nothing is allocated")
        for need in needs:
            self._require(need.known > 0 and need.further >= 0, f"{need} makes no sense")
            self._require(
                need.known + need.further <= self.context,
                f"{need} exceeds the context of {self.context}",
            )
        cost = self.memory.cost(needs)
        if cost > self.memory.budget - self.memory.used:
            raise OutOfMemoryError(
                f"{cost} tokens of KV memory do not fit: {self.memory.used} of "
                f"{self.memory.budget} are used"
            )
        call = _Call(len(needs), max(n.known for n in needs) + max(n.further for n in needs))
        shared = _Room(self.memory, cost) if self.memory.rectangles else None
        return [
            HashKV(
                call,
                row,
                shared or _Room(self.memory, need.known + need.further),
                need.known + need.further,
            )
            for row, need in enumerate(needs)
        ]

    def forward(
        self,
        tokens: Sequence[Sequence[int]],
        lengths: Sequence[int],
        kvs: Sequence[KV],
        draws: Sequence[Draw | None],
    ) -> Outcome:
        handles = self._handles(kvs)
        widths = {len(row) for row in tokens}
        self._require(len(widths) == 1, f"a rectangle has one width, not {sorted(widths)}")
        (width,) = widths
        call = handles[0].call
        self._require(
            all(kv.call is call for kv in handles), "handles come from several allocate calls"
        )
        self._require(
            [kv.row for kv in handles] == list(range(call.rows)),
            f"rows {[kv.row for kv in handles]} of a rectangle of {call.rows}",
        )
        self._require(
            call.filled + width <= call.columns,
            f"{call.filled} + {width} columns in a rectangle of {call.columns}",
        )
        self._require(max(lengths) == width, f"lengths {list(lengths)} in a width of {width}")
        rows = [row[len(row) - length :] for row, length in zip(tokens, lengths, strict=True)]
        outcome = self._iterate(rows, handles, draws, positions=len(rows) * width)
        call.filled += width
        return outcome

    def forward_ragged(
        self,
        tokens: Sequence[int],
        lengths: Sequence[int],
        starts: Sequence[int],
        kvs: Sequence[KV],
        draws: Sequence[Draw | None],
    ) -> Outcome:
        handles = self._handles(kvs)
        self._require(sum(lengths) == len(tokens), f"{list(lengths)} of {len(tokens)} tokens")
        self._require(
            [kv.held for kv in handles] == list(starts),
            f"starts {list(starts)} where {[kv.held for kv in handles]} tokens are held",
        )
        rows, offset = [], 0
        for length in lengths:
            rows.append(tokens[offset : offset + length])
            offset += length
        return self._iterate(rows, handles, draws, positions=len(tokens))

    def grow(self, kv: KV, tokens: int) -> None:
        (handle,) = self._handles([kv])
        self._require(not self.memory.rectangles, "a rectangle does not grow")
        self._require(
            handle.capacity < tokens <= self.context,
            f"a handle of {handle.capacity} is to grow to {tokens}, the context is {self.context}",
        )
        further = tokens - handle.capacity
        if further > self.memory.budget - self.memory.used:
            raise OutOfMemoryError(f"{further} further tokens of KV memory do not fit")
        self.memory.used += further
        handle.room.tokens += further
        handle.capacity = tokens

    def _handles(self, kvs: Sequence[KV]) -> list[HashKV]:
        handles = [kv for kv in kvs if isinstance(kv, HashKV)]
        self._require(len(handles) == len(kvs) > 0, "handles of another model, or none")
        self._require(len({id(kv) for kv in handles}) == len(handles), "a handle comes twice")
        self._require(not any(kv.spoilt for kv in handles), "a failed iteration's handle is used")
        return handles

    def _iterate(
        self,
        rows: Sequence[Sequence[int]],
        handles: Sequence[HashKV],
        draws: Sequence[Draw | None],
        positions: int,
    ) -> Outcome:
        began_s = time.perf_counter()
        for row, kv, draw in zip(rows, handles, draws, strict=True):
            self._require(
                kv.held + len(row) <= kv.capacity,
                f"{kv.held} + {len(row)} tokens in a handle of {kv.capacity}",
            )
            self._require(draw is None or len(row) > 0, "a token is wanted of no tokens")
            self._require(all(0 <= token < self.vocab_size for token in row), f"tokens {list(row)}")
        self._require(positions > 0, "an iteration without tokens")
        self._require(
            self._thread in (None, threading.get_ident()), "a second thread uses the model"
        )
        self._thread = threading.get_ident()
        self.iterations += 1
        for kv in handles:
            kv.spoilt = True
        if self.before_iteration is not None:
            self.before_iteration(self.iterations)
        if self.iterations in self.fail_on:
            raise InjectedError(f"iteration {self.iterations} fails on request")
        if self.iterations >= self.lost_from:
            raise DeviceLostError("an assertion failed in a kernel")
        if self.max_rows is not None and len(rows) > self.max_rows:
            raise OutOfMemoryError(f"{len(rows)} rows, {self.max_rows} fit")
        chosen: list[int | None] = []
        found: dict[int, TokenLogprobs] = {}
        of_prompts: dict[int, Sequence[TokenLogprobs]] = {}
        for i, (row, kv, draw) in enumerate(zip(rows, handles, draws, strict=True)):
            if draw is not None and draw.sampling.prompt_logprobs is not None:
                of_prompts[i] = self._prompt_logprobs(row, kv, draw)
            kv.state = _absorb(kv.state, row)
            kv.held += len(row)
            kv.spoilt = False
            if draw is None or not draw.next_token:
                chosen.append(None)
                continue
            seed = None if draw.sampling.temperature == 0 else draw.sampling.seed
            token = _choose(kv.state, seed, self.vocab_size)
            if draw.sampling.logit_bias:  # it has no logits: the largest bias decides
                token = max(draw.sampling.logit_bias, key=lambda bias: bias[1])[0]
            chosen.append(token)
            if draw.sampling.logprobs is not None:
                found[i] = _logprobs(kv.state, token, draw.sampling.logprobs, self.vocab_size)
        if self.step_s:
            time.sleep(self.step_s)
        if self.duration_s is not None:
            duration_s = self.duration_s(len(rows), positions)
        else:
            duration_s = time.perf_counter() - began_s
        return Outcome(chosen, positions, duration_s, found, of_prompts)

    def _prompt_logprobs(self, row: Sequence[int], kv: HashKV, draw: Draw) -> list[TokenLogprobs]:
        """Of the prompt tokens that the row's positions predict."""
        assert draw.sampling.prompt_logprobs is not None
        ahead = draw.known[kv.held + 1 : min(kv.held + len(row) + 1, draw.prompt_tokens)]
        state, found = kv.state, []
        for token, following in zip(row, ahead, strict=False):
            state = _absorb(state, [token])
            found.append(
                _logprobs(state, following, draw.sampling.prompt_logprobs, self.vocab_size)
            )
        return found

    def _require(self, kept: bool, breach: str) -> None:
        if not kept:
            self.breaches.append(breach)
            raise ContractError(breach)
