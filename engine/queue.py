"""The queue in front of the engine, with its limits and refusals. Any thread may add to it; the
loop's thread takes from it. It reads no clock.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Sized

from engine.inference import DrainingError, Inference, OverloadedError, TooLongError
from seams import End

ENDS_KEPT = 64  # from which the present rate of completions is estimated
DEFERRED_SHARE = 0.5  # of the queue, at most: deferred requests may wait for long
RETRY_AFTER_S = 1.0, 60.0  # limits of Retry-After


class RequestQueue:
    """The waiting requests, and the events that the loop has not read yet.

    `put`, `leave`, `drain`, `abort` and the properties are for any thread, all else for the loop's.
    A stored request is safe elsewhere, so it is not counted and takes no place.
    """

    def __init__(self, max_waiting: int, max_waiting_prompt_tokens: float = math.inf) -> None:
        self.max_waiting = max_waiting
        self.max_waiting_deferred = max(1, int(max_waiting * DEFERRED_SHARE))
        self.max_waiting_prompt_tokens = max_waiting_prompt_tokens
        # preempted ones first, then in order of arrival; policies see it and cannot change it
        self.waiting: tuple[Inference, ...] = ()
        self.busy_since_s: float | None = None  # start of the present busy period; None while idle
        self.draining = False
        self.pending: Sized = ()  # requests that are not handled yet, in the intake
        self._changed = threading.Condition()
        self._arrivals: list[Inference] = []
        self._departures: list[tuple[Inference, End]] = []
        self._aborting: str | None = None
        self.unread = False  # something changed since the loop last read
        self._capacity: tuple[int, int] | None = None  # tokens of context and of KV memory
        self._numbers = itertools.count()
        self._counted = 0  # waiting requests, arrivals included, without stored ones
        self.num_deferred = 0  # of the counted
        self._prompt_tokens = 0  # of the counted
        self.ends_s: deque[float] = deque(maxlen=ENDS_KEPT)  # when requests ended, the newest

    # --- from any thread --------------------------------------------------------------------

    @property
    def size(self) -> int:
        return len(self._arrivals) + len(self.waiting) + len(self.pending)

    def overload_pending(self) -> OverloadedError | None:
        """Why a further request may not even be pending; None if it may."""
        if self._counted + len(self.pending) < self.max_waiting:
            return None
        return OverloadedError(self._too_many, self.retry_after_s)

    def everyone(self) -> list[Inference]:
        with self._changed:
            return [*self.waiting, *self._arrivals]

    def open(self, context: int, kv_tokens: int) -> None:
        """There is a model: requests that fit into its context and KV memory are accepted from now
        on."""
        self._capacity = context, kv_tokens

    def put(self, inference: Inference) -> None:
        """Raises a RefusedError, and ValueError for one that could never advance or never end."""
        self._require_possible(inference)
        with self._changed:
            if self.draining:
                raise DrainingError("the server is shutting down")
            if not inference.stored and (why := self._overload(inference)):
                raise OverloadedError(why, self.retry_after_s)
            inference.id = next(self._numbers)
            self._arrivals.append(inference)
            self._count(inference, 1)
            self.wake()

    def leave(self, inference: Inference, end: End) -> None:
        with self._changed:
            self._departures.append((inference, end))
            self.wake()

    def drain(self) -> None:
        with self._changed:
            self.draining = True
            self.wake()

    def abort(self, reason: str) -> None:
        with self._changed:
            self.draining = True
            self._aborting = reason
            self.wake()

    def wake(self) -> None:
        """Wakes the loop, since something changed here or elsewhere."""
        with self._changed:
            self.unread = True
            self._changed.notify()

    def _require_possible(self, inference: Inference) -> None:
        if not inference.prompt_tokens or inference.max_tokens < 1:
            raise ValueError(
                "a request needs at least one prompt token, at least one token to generate"
            )
        if self._capacity is None:
            raise DrainingError("the model is still being loaded")
        context, kv_tokens = self._capacity
        total = inference.prompt_tokens + inference.max_tokens
        if total > context:
            raise TooLongError(
                f"prompt ({inference.prompt_tokens} tokens) and num_tokens "
                f"({inference.max_tokens}) exceed the model's context of {context}"
            )
        if total > kv_tokens:
            raise TooLongError(
                f"the request needs {total} tokens of KV memory, the server has {kv_tokens}"
            )

    def _overload(self, inference: Inference) -> str | None:
        """Why the request cannot wait here now; None if it can."""
        if self._counted >= self.max_waiting:
            return self._too_many
        most_deferred = self.max_waiting_deferred
        if inference.service_class == "deferred" and self.num_deferred >= most_deferred:
            return f"{most_deferred} deferred requests are waiting already, half of --max-waiting"
        # an empty queue accepts a longer prompt, which would otherwise never be accepted
        prompts, own = self._prompt_tokens, inference.prompt_tokens
        if self._counted and prompts + own > self.max_waiting_prompt_tokens:
            return (
                f"prompts of {prompts} tokens are waiting already, this one has {own}, "
                f"{self.max_waiting_prompt_tokens} are allowed (--max-waiting-prompt-tokens)"
            )
        return None

    @property
    def _too_many(self) -> str:
        return f"{self.max_waiting} requests are waiting already (--max-waiting)"

    @property
    def retry_after_s(self) -> float:
        """How long the present queue takes at the rate of the newest completions."""
        least_s, most_s = RETRY_AFTER_S
        since_s = self.busy_since_s
        ends_s = [end_s for end_s in list(self.ends_s) if since_s is not None and end_s > since_s]
        if len(ends_s) < 2:
            return least_s
        interval_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)
        waiting = self._counted + len(self.pending)
        return min(max(waiting * interval_s, least_s), most_s)

    def _count(self, inference: Inference, one: int) -> None:
        """`one`: 1 for a request that begins to wait, -1 for one that stops."""
        if not inference.stored:
            self._counted += one
            self.num_deferred += one * (inference.service_class == "deferred")
            self._prompt_tokens += one * inference.prompt_tokens

    # --- the loop's thread ------------------------------------------------------------------

    def read(self) -> tuple[list[Inference], list[tuple[Inference, End]], str | None]:
        """Adds arrivals to the waiting requests. Returns what happened since the last call:
        arrivals, departures, and the reason to abort."""
        with self._changed:
            changes = self._arrivals, self._departures, self._aborting
            self.waiting += tuple(self._arrivals)
            self._arrivals, self._departures, self._aborting = [], [], None
            self.unread = False
        return changes

    def is_over(self) -> bool:
        """No request waits, and none will."""
        with self._changed:
            return self.draining and not (self.waiting or self._arrivals)

    def sleep(self, timeout_s: float) -> None:
        """Waits until something changes that `read` has not returned, or for `timeout_s`."""
        with self._changed:
            if timeout_s > 0.0 and not self.unread:
                self._changed.wait(min(timeout_s, threading.TIMEOUT_MAX))  # centuries

    def remove_gone(self) -> list[Inference]:
        """Removes the requests that were admitted or have ended, and returns them."""
        leaving = [i for i in self.waiting if i.resident or i.end is not None]
        with self._changed:
            self.waiting = tuple([i for i in self.waiting if not i.resident and i.end is None])
            for inference in leaving:
                self._count(inference, -1)
        return leaving

    def put_back(self, inference: Inference) -> None:
        """Returns a preempted request: before requests that never ran, and in order of age."""
        earlier = sum(i.num_preemptions > 0 and i.id < inference.id for i in self.waiting)
        with self._changed:
            self.waiting = (*self.waiting[:earlier], inference, *self.waiting[earlier:])
            self._count(inference, 1)
