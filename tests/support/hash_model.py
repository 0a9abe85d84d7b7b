"""A model whose next token is a hash of the whole prefix that its blocks hold. No torch.

Every position of a block holds the hash of the tokens up to it, as keys and values depend on all
before them. A sequence is computed from what its own blocks hold, so any cross-talk between
requests, wrong position, or block that was given away too early becomes a wrong token within
milliseconds, in every mode and under every policy; `reference` of `hashed.py` says what a request
would get if it were alone. With a constraint it gets up to `MOST_FORCED` of these tokens
together with a drawn one. Of the drafts that a step asks for, some are made, and some of these are
right: `drafted` says how many. Under a constraint they end before a token that forces others.
What is wrong stays in its blocks, as keys and values of rejected drafts do.
Nothing is computed before its result is asked for, as on a device that is late. The contract of
`seams.py` is checked on every call: a breach raises `ContractError` and stays in `breaches`, since
a manager that survives a failing model would otherwise hide it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from seams import (
    DeviceLostError,
    DeviceMemoryError,
    Drafts,
    ModelLostError,
    Opening,
    Outcome,
    Sampling,
    Step,
    TokenLogprobs,
)
from tests.support.hashed import VOCAB_SIZE, absorb, choose, drafted, forced, logprobs_of


def virtual_duration_s(rows: float, positions: float) -> float:
    """Sums of binary fractions are exact, so tests may compare times for equality."""
    return 2**-10 + rows * 2**-13 + positions * 2**-17


class ContractError(AssertionError):
    """The model was called in a way that `seams.py` does not allow."""


class InjectedError(RuntimeError):
    """The failure that a test asked for."""


@dataclass(frozen=True, slots=True)
class Info:
    name: str = "hash"
    parameters: int = 0
    dtype: str = "int64"
    device: str = "cpu"
    note: str = "next token = hash of the prefix; tests only"
    kernels: dict[str, str] = field(default_factory=dict)
    batch_invariant: bool = True
    unused_gpu: str | None = None
    speculate: int = 64


@dataclass(slots=True)
class _Sequence:
    """What the model knows of a sequence."""

    opening: Opening
    ids: list[int]
    blocks: list[int] = field(default_factory=list)
    planned: int = 0  # tokens computed as soon as all that was started is


@dataclass(slots=True)
class _Iteration:
    """Started, and perhaps not executed yet. As `seams.Pending`."""

    model: HashModel
    steps: Sequence[Step]
    failure: Exception | None
    began_s: float
    outcome: Outcome | None = None
    dead: bool = False  # the model was lost with it

    def result(self) -> Outcome:
        return self.model.land(self)


@dataclass(kw_only=True, eq=False)
class HashModel:
    """All of its options may be changed between iterations. `num_blocks`: for 64 sequences, unless
    there is a `budget` of tokens."""

    context: int = 1024
    vocab_size: int = VOCAB_SIZE
    budget: int | None = None
    block_tokens: int = 1
    step_s: float = 0.0  # that an iteration takes
    duration_s: Callable[[int, int], float] | None = None  # that it reports; of rows and positions
    fail_on: Collection[int] = ()  # numbers of iterations (from 1) that raise InjectedError
    lost_from: float = math.inf  # from this iteration on all raise DeviceLostError
    lose_on: Collection[int] = ()  # iterations in which the model is lost, and back at once
    poison: int | None = None  # a token, whose sequences lose the model in every iteration
    fails_late: bool = True  # when the result is asked for, or else when it is started
    max_rows: int | None = None  # more of them raise DeviceMemoryError
    before_iteration: Callable[[int], None] | None = None  # it is executed; may block or raise

    info = Info()
    lost: str | None = field(default=None, init=False)
    iterations = 0  # begun, those that failed included
    most_in_flight = 0
    losses = 0  # of the model in an iteration
    _unreported = False  # a loss not yet reported
    _thread: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        tokens = 64 * self.context if self.budget is None else self.budget
        self.num_blocks = tokens // self.block_tokens
        self.breaches: list[str] = []
        self._sequences: dict[int, _Sequence] = {}
        self._kv: dict[int, int] = {}  # slot -> hash of the tokens up to its position
        self._flying: deque[_Iteration] = deque()

    def warm_up(self) -> None:
        """Nothing to warm."""

    def forget(self) -> None:
        """Drops all sequences; what their blocks hold is nonsense from then on."""
        self._sequences.clear()
        self._kv.clear()

    def lose(self) -> None:
        """Loses it with its iterations in flight; raised once to the engine."""
        self.forget()
        self._unreported = True
        for iteration in self._flying:
            iteration.dead, iteration.failure = True, ModelLostError("killed")

    def _tell_loss(self) -> None:
        if self._unreported:
            self._unreported = False
            raise ModelLostError("killed")

    # --- seams.Model ------------------------------------------------------------------------

    def open(self, new: Sequence[Opening]) -> None:
        self._check_thread()
        self._tell_loss()
        self._require(len(new) > 0, "nothing is opened")
        for opening in new:
            self._require(len(opening.ids) >= opening.prompt_tokens > 0, f"{opening} has no prompt")
            self._require(not self._flying_steps(opening.id), f"{opening.id} is opened in flight")
            self._sequences[opening.id] = _Sequence(opening, list(opening.ids))

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> _Iteration:
        self._check_thread()
        self._tell_loss()
        self._require(self.lost is None, "an iteration is started on a model that is lost")
        for id in released:
            self._require(not self._flying_steps(id), f"{id} is released in flight")
            self._sequences.pop(id, None)
        self._require(len(steps) > 0, "an iteration without rows")
        self._require(len({step.id for step in steps}) == len(steps), "a sequence comes twice")
        widths = {step.padding + step.num_tokens for step in steps}
        padded = any(step.padding for step in steps)
        self._require(not padded or len(widths) == 1, f"a rectangle of widths {sorted(widths)}")
        self._require(any(step.num_tokens for step in steps), "an iteration that computes nothing")
        for step in steps:
            self._check(step)
        self.iterations += 1
        failure: Exception | None = None
        if self.iterations >= self.lost_from:
            failure = DeviceLostError("an assertion failed in a kernel")
        elif self.iterations in self.lose_on or any(
            self.poison in self._sequences[step.id].ids for step in steps
        ):
            failure = ModelLostError(f"killed by iteration {self.iterations}")
        elif self.iterations in self.fail_on:
            failure = InjectedError(f"iteration {self.iterations} fails on request")
        elif self.max_rows is not None and len(steps) > self.max_rows:
            failure = DeviceMemoryError(f"{len(steps)} rows, {self.max_rows} fit")
        if failure is not None and not self.fails_late:
            if isinstance(failure, ModelLostError):
                self.lose()
                self._tell_loss()
            raise failure
        iteration = _Iteration(self, list(steps), failure, time.perf_counter())
        self._flying.append(iteration)
        self.most_in_flight = max(self.most_in_flight, len(self._flying))
        return iteration

    # --- what it checks ---------------------------------------------------------------------

    def _check(self, step: Step) -> None:
        self._require(step.id in self._sequences, f"{step.id} was not opened")
        sequence, flying = self._sequences[step.id], self._flying_steps(step.id)
        if not sequence.blocks:
            sequence.planned = step.start  # a prefix hit, or the beginning
            limit = len(sequence.ids) - 1
            if (wanted := sequence.opening.sampling.prompt_logprobs) is not None:
                scored = sequence.opening.scored
                limit = scored if scored < sequence.opening.prompt_tokens - 1 else limit
            self._require(step.start <= limit, f"a hit of {step.start}, at most {limit} ({wanted})")
        sequence.blocks += step.blocks
        self._require(
            step.start == sequence.planned or not step.num_tokens,
            f"{step.id} starts at {step.start} where {sequence.planned} tokens are held",
        )
        self._require(
            sequence.opening.sampling.constraint is None
            or not step.num_tokens
            or not any(of.draw for of in flying),
            f"{step.id} has a constraint and a token in flight",
        )
        self._require(not any(of.drafts for of in flying), f"{step.id} has drafts in flight")
        self._require(not step.drafts or step.draw, f"{step.id} has drafts where nothing is drawn")
        end = step.start + step.num_tokens + step.drafts
        self._require(end <= self.context, f"{end} tokens, the context is {self.context}")
        self._require(
            end <= len(sequence.blocks) * self.block_tokens,
            f"{end} tokens in {len(sequence.blocks)} blocks of {self.block_tokens}",
        )
        self._require(
            all(0 <= block < self.num_blocks for block in step.blocks), f"blocks {step.blocks}"
        )
        self._require(step.num_tokens > 0 or not step.draw, "a token is wanted of no tokens")
        sequence.planned += step.num_tokens

    def _flying_steps(self, id: int) -> list[Step]:
        return [step for iteration in self._flying for step in iteration.steps if step.id == id]

    def _check_thread(self) -> None:
        self._require(
            self._thread in (None, threading.get_ident()), "a second thread uses the model"
        )
        self._thread = threading.get_ident()

    def _require(self, kept: bool, breach: str) -> None:
        if not kept:
            self.breaches.append(breach)
            raise ContractError(breach)

    # --- what it computes -------------------------------------------------------------------

    def land(self, iteration: _Iteration) -> Outcome:
        """Executes what was started, in that order, up to this iteration."""
        self._require(iteration in self._flying, "a result is asked for twice")
        self._require(iteration is self._flying[0], "results are asked for out of order")
        self._flying.popleft()
        if self.before_iteration is not None:
            self.before_iteration(self.iterations - len(self._flying))
        if iteration.failure is not None:
            if isinstance(iteration.failure, ModelLostError):
                if not iteration.dead:
                    self.losses += 1
                    self.lose()
                self._unreported = False
                raise iteration.failure
            for later in self._flying:  # computed from what was not computed
                later.failure = InjectedError("the iteration before it failed")
            raise iteration.failure
        return self._execute(iteration)

    def _execute(self, iteration: _Iteration) -> Outcome:
        rows: list[list[int]] = []
        logprobs: dict[int, Sequence[TokenLogprobs]] = {}
        of_prompts: dict[int, tuple[int, Sequence[TokenLogprobs]]] = {}
        drafts: dict[int, Drafts] = {}
        for i, step in enumerate(iteration.steps):
            sequence = self._sequences[step.id]
            sampling, prompt_tokens = sequence.opening.sampling, sequence.opening.prompt_tokens
            end, state, scores = step.start + step.num_tokens, self._state(sequence, step.start), []
            self._require(end <= len(sequence.ids), f"{step.id} has no token at {end - 1}")
            for position in range(step.start, end):
                state = absorb(state, [sequence.ids[position]])
                self._kv[self._slot(sequence, position)] = state
                if sampling.prompt_logprobs is not None and position + 1 < prompt_tokens:
                    following = sequence.ids[position + 1]
                    scores.append(
                        logprobs_of(state, following, sampling.prompt_logprobs, self.vocab_size)
                    )
            if scores:
                of_prompts[i] = step.start + 1, scores
            if not step.draw:
                rows.append([])
                continue
            self._require(end == len(sequence.ids), "a token is drawn behind a part of a prompt")
            drawn, of_drawn, more = list[int](), list[TokenLogprobs](), 1
            guesses = drafted(state, step.drafts)
            if sampling.constraint is not None:
                guesses = self._before_forced(state, sampling, guesses)
            if guesses.computed:
                drafts[i] = guesses
                sequence.planned += guesses.accepted
                more += guesses.accepted
            while more:
                token = self._draw(state, sampling)
                if sampling.logprobs is not None:
                    of_drawn.append(logprobs_of(state, token, sampling.logprobs, self.vocab_size))
                state = absorb(state, [token])
                if len(drawn) < guesses.accepted:
                    self._kv[self._slot(sequence, end + len(drawn))] = state
                if len(drawn) == guesses.accepted and sampling.constraint is not None:
                    more += forced(state)
                drawn.append(token)
                more -= 1
            for j in range(guesses.accepted, guesses.computed):
                self._kv[self._slot(sequence, end + j)] = -1 - j  # nonsense
            sequence.ids += drawn
            rows.append(drawn)
            if of_drawn:
                logprobs[i] = of_drawn
        positions = sum(step.num_tokens + step.padding for step in iteration.steps)
        positions += sum(guesses.computed for guesses in drafts.values())
        if self.step_s:
            time.sleep(self.step_s)
        if self.duration_s is not None:
            duration_s = self.duration_s(len(rows), positions)
        else:
            duration_s = time.perf_counter() - iteration.began_s
        return Outcome(rows, positions, duration_s, logprobs, of_prompts, drafts=drafts)

    def _draw(self, state: int, sampling: Sampling) -> int:
        if sampling.logit_bias:  # it has no logits: the largest bias decides
            return max(sampling.logit_bias, key=lambda bias: bias[1])[0]
        return choose(state, None if sampling.temperature == 0 else sampling.seed, self.vocab_size)

    def _before_forced(self, state: int, sampling: Sampling, guesses: Drafts) -> Drafts:
        """The drafts before the first right one that has tokens forced behind it."""
        for number in range(guesses.accepted):
            state = absorb(state, [self._draw(state, sampling)])
            if forced(state):
                return Drafts(number, number)
        return guesses

    def _slot(self, sequence: _Sequence, position: int) -> int:
        block = sequence.blocks[position // self.block_tokens]
        return block * self.block_tokens + position % self.block_tokens

    def _state(self, sequence: _Sequence, start: int) -> int:
        """What the block before `start` holds; an unwritten one reads as nonsense."""
        return 0 if start == 0 else self._kv.get(self._slot(sequence, start - 1), -1)


@dataclass(eq=False)
class ScriptedModel(HashModel):
    """Every request is answered with the same text, a token for each byte, and then ends."""

    answer: str | Path = ""  # a text, or a file that has it; it may be changed between requests

    def _execute(self, iteration: _Iteration) -> Outcome:
        outcome = super()._execute(iteration)
        answer = self.answer if isinstance(self.answer, str) else self.answer.read_text()
        script = [*answer.encode(), self.vocab_size - 1]
        rows = [list(row) for row in outcome.tokens]
        for row, step in zip(rows, iteration.steps, strict=True):
            if row:
                sequence = self._sequences[step.id]
                first = len(sequence.ids) - len(row)
                number = first - sequence.opening.prompt_tokens
                written = script[number : number + len(row)]
                row[:] = written + [self.vocab_size - 1] * (len(row) - len(written))
                sequence.ids[first:] = row
        return replace(outcome, tokens=rows)
