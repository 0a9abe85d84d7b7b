"""A sequence's place in its grammar, and the masks of a batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.grammar.checking import GrammarError, short
from runtime.grammar.grammars import Grammars, forced_bytes
from seams import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher

# most CPU time for a request's masks: the first ones teach its lexer. Of 10,000 schemas of
# JSONSchemaBench, llguidance's authors report a mean of 0.05 ms
FREE_S, MEAN_S = 0.05, 0.0005
# compiling that may happen between two iterations
MOST_AGAIN_S = 0.02


class Matching:
    """What may follow a sequence's generated tokens. `error`: why nothing may, through the fault of
    the constraint; it stays."""

    def __init__(
        self, grammars: Grammars, constraint: Constraint, generated: Sequence[int]
    ) -> None:
        """Raises GrammarError."""
        self.error: str | None = None
        self._grammars = grammars
        self._constraint = constraint
        self._taken: list[int] = []
        self._is_second = False
        self._spent_s = 0.0  # on masks
        self._masks = 0
        self._compiled = grammars.compiled(constraint)
        self._matcher = self._compiled.matcher.deep_copy()
        self._ends, self.mask_bytes = grammars.loaded.ends, grammars.loaded.mask_bytes
        if generated:
            self.accept(generated)

    def fill(self, address: int) -> None:
        """Writes the next token's mask, a bit for each of the vocabulary's ids."""
        start_s = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(address, self.mask_bytes)
        if self._matcher.is_error():
            if self._begin_again():
                self._matcher.unsafe_compute_mask_ptr(address, self.mask_bytes)
            self._note()
        self.spend(time.thread_time() - start_s)

    def spend(self, seconds: float) -> None:
        """The time that a mask took."""
        self._spent_s += seconds
        self._masks += 1
        if not self._grammars.timed or self.error is not None:
            return
        if self._spent_s > FREE_S + MEAN_S * self._masks:
            self.error = f"its masks take more than {1000 * MEAN_S:g} ms each"

    def forced(self) -> list[int]:
        """The tokens that the grammar forces next, where they were left to be drawn."""
        with contextlib.suppress(GrammarError):
            return _forced_by(self._matcher.deep_copy())
        return []

    def ahead(self, drafts: Sequence[int], *, alone: bool) -> list[MatchingAhead]:
        """The places behind the first of these drafts. The last of them is the last that the
        grammar accepts, and comes before one that ends the text or, unless `alone`, forces what
        follows: that one is computed together with the forced tokens, as it is without drafts."""
        places = list[MatchingAhead]()
        matcher = self._matcher
        for token in drafts:
            matcher = matcher.deep_copy()
            if token in self._ends or not matcher.try_consume_tokens([token]):
                break
            if matcher.is_stopped() or (not alone and _forces(matcher)):
                break
            places.append(MatchingAhead(self, matcher))
        return places

    def take(self, token: int, *, alone: bool) -> list[int]:
        """Takes a drawn token. Returns it, and unless `alone` those that the grammar forces behind
        it, which are taken, too."""
        tokens = [token]
        self.accept(tokens)
        if alone or self.error is not None or token in self._ends:
            return tokens
        try:
            if forced := _forced_by(self._matcher):
                self.accept(forced)
                tokens += forced
        except GrammarError as error:
            self.error = str(error)
        if len(self._ends) == 1 and self._matcher.is_stopped() and self.error is None:
            tokens += self._ends
            self.accept(self._ends)
        return tokens

    def accept(self, tokens: Sequence[int]) -> None:
        """Takes tokens that were drawn. Nothing is forced behind them."""
        self._taken += tokens
        if not self._advance(tokens) and not self._begin_again():
            self._note()

    def _advance(self, tokens: Sequence[int]) -> bool:
        return all(map(self._matcher.consume_token, tokens))

    def _begin_again(self) -> bool:
        """Others with the same constraint share its lexer, and may have filled it: a second
        attempt has another one."""
        if self._is_second or self.error is not None:
            return False
        if self._grammars.timed and self._compiled.cpu_s > MOST_AGAIN_S:
            return False
        self._is_second = True
        try:
            self._compiled = self._grammars.compiled(self._constraint, self._compiled)
        except GrammarError as error:
            self.error = str(error)
            return False
        self._matcher = self._compiled.matcher.deep_copy()
        if not self._advance(self._taken):
            self._note()
        return self.error is None

    def _note(self) -> None:
        if self._matcher.is_error():
            self.error = short(self._matcher.get_error())


def _forced_by(matcher: LLMatcher) -> list[int]:
    """Raises GrammarError."""
    return matcher.compute_ff_tokens() if forced_bytes(matcher) else []


def _forces(matcher: LLMatcher) -> bool:
    try:
        return bool(_forced_by(matcher))
    except GrammarError:
        return True


class MatchingAhead:
    """What may follow some drafts behind a sequence's tokens. Its matcher is a copy, so neither a
    draft that is rejected nor an error leaves a trace in the sequence's own."""

    __slots__ = ("_matcher", "_of", "failed")

    def __init__(self, of: Matching, matcher: LLMatcher) -> None:
        self._of, self._matcher = of, matcher
        self.failed = False  # its mask could not be computed

    def fill(self, address: int) -> None:
        """Writes the mask. The time counts as the sequence's."""
        start_s = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(address, self._of.mask_bytes)
        self.failed = self._matcher.is_error()
        self._of.spend(time.thread_time() - start_s)


class ConstrainedRow(Protocol):
    @property
    def matching(self) -> Matching | MatchingAhead | None: ...


@dataclass(frozen=True, slots=True)
class Masks:
    places: NDArray[np.int64]  # [R] of each row's mask; -1: it has none
    bits: NDArray[np.int32]  # [M, ceil(V / 32)], bit i % 32 of word i // 32 is token i


def masks_of(rows: Sequence[ConstrainedRow], vocab_size: int) -> Masks | None:
    """None if no row has a constraint. What is beyond the vocabulary, where the network is wider,
    stays forbidden."""
    own = [(i, row.matching) for i, row in enumerate(rows) if row.matching is not None]
    if not own:
        return None
    bits = np.zeros((len(own), -(-vocab_size // 32)), np.int32)
    places = np.full(len(rows), -1)
    address, row_bytes = bits.ctypes.data, bits.strides[0]
    for k, (i, matching) in enumerate(own):
        places[i] = k
        matching.fill(address + k * row_bytes)
    return Masks(places, bits)
