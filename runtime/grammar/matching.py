"""A sequence's place in its grammar."""

from __future__ import annotations

import time
from collections.abc import Sequence

from requested import Constraint
from runtime.grammar.grammars import GrammarError, Grammars, short

__all__ = ["GrammarError", "Matching"]

# most time for a request's masks: the first ones teach its lexer. Of 10,000 schemas of
# JSONSchemaBench, llguidance's authors report a mean of 0.05 ms
FREE_S, MEAN_S = 0.05, 0.0005


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
        self._is_own = False  # the matcher shares nothing with others
        self._spent_s = 0.0  # on masks
        self._masks = 0
        self._matcher = grammars.matcher(constraint)
        self._ends, self._bytes = grammars.loaded.ends, grammars.loaded.mask_bytes
        if generated:
            self._take(generated)

    def fill(self, address: int) -> None:
        """Writes the next token's mask, a bit for each of the vocabulary's ids."""
        start_s = time.thread_time()
        self._fill(address)
        self._spent_s += time.thread_time() - start_s
        self._masks += 1
        if self.error is None and self._spent_s > FREE_S + MEAN_S * self._masks:
            self.error = f"its masks take more than {1000 * MEAN_S:g} ms each"

    def _fill(self, address: int) -> None:
        self._matcher.unsafe_compute_mask_ptr(address, self._bytes)
        if self._matcher.is_error() and self._try_alone():
            self._matcher.unsafe_compute_mask_ptr(address, self._bytes)
            self._note()

    def take(self, token: int, *, alone: bool) -> list[int]:
        """Takes a drawn token. Returns it, and unless `alone` those that the grammar forces behind
        it, which are taken, too."""
        tokens = [token]
        self._take(tokens)
        if alone or self.error is not None or token in self._ends:
            return tokens
        if forced := self._matcher.compute_ff_tokens():
            self._take(forced)
            tokens += forced
        if len(self._ends) == 1 and self._matcher.is_stopped() and self.error is None:
            tokens += self._ends
            self._take(self._ends)
        return tokens

    def _take(self, tokens: Sequence[int]) -> None:
        self._taken += tokens
        if not self._advance(tokens) and not self._try_alone():
            self._note()

    def _advance(self, tokens: Sequence[int]) -> bool:
        return all(map(self._matcher.consume_token, tokens))

    def _try_alone(self) -> bool:
        """Others with the same constraint share its lexer, and may have filled it: the second
        attempt has its own."""
        if self._is_own or self.error is not None:
            return False
        self._is_own = True
        try:
            self._matcher = self._grammars.fresh(self._constraint)
        except GrammarError as error:
            self.error = str(error)
            return False
        if not self._advance(self._taken):
            self._note()
        return self.error is None

    def _note(self) -> None:
        if self._matcher.is_error():
            self.error = short(self._matcher.get_error())
