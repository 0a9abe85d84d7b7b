"""How many tokens a request will generate: the median of what its user's requests with prompts of
about this length generated lately, and without those, of all users. No clock."""

from __future__ import annotations

from collections import OrderedDict, deque

USERS_KEPT = 10_000  # the ones that were idle for longest are forgotten
LENGTHS_KEPT = 32  # of a user and a prompt length
LEAST = 4  # lengths from which a median says something

Lengths = dict[int, deque[int]]  # by the logarithm of the prompt's length


class LengthPredictor:
    """Learns from requests that have ended."""

    def __init__(self) -> None:
        self._all: Lengths = {}
        self._users: OrderedDict[int, Lengths] = OrderedDict()

    def learn(self, user: int, prompt_tokens: int, generated: int) -> None:
        own = self._users.setdefault(user, {})
        self._users.move_to_end(user)
        if len(self._users) > USERS_KEPT:
            self._users.popitem(last=False)
        for lengths in (own, self._all):
            kept = lengths.setdefault(prompt_tokens.bit_length(), deque(maxlen=LENGTHS_KEPT))
            kept.append(generated)

    def predict(self, user: int, prompt_tokens: int) -> int | None:
        """None: nothing is learnt yet."""
        for lengths in (self._users.get(user, {}), self._all):
            kept = lengths.get(prompt_tokens.bit_length(), ())
            if len(kept) >= LEAST:
                return sorted(kept)[len(kept) // 2]
        return None
