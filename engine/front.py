"""The side of the engine that any thread may use: handlers submit and cancel requests, and others
ask how the engine is."""

from __future__ import annotations

from engine.blocks import Ledger
from engine.failures import Failures
from engine.inference import Inference
from engine.lifecycle import Lifecycle
from engine.queue import RequestQueue
from records import End
from seams import Model, Policy


class Front:
    """The methods of a `BatchingManager` that any thread may call. None of them waits for the
    loop."""

    model: Model | None  # None until it is loaded
    queue: RequestQueue
    _life: Lifecycle
    _failures: Failures

    # --- state ------------------------------------------------------------------------------

    @property
    def unavailable(self) -> str | None:
        """Why no requests are accepted; None while they are."""
        if self._failures.verdict is not None:
            return f"the server has failed: {self._failures.verdict}"
        if self.model is None:
            return "the model is still being loaded"
        if (lost := self.model.lost) is not None:
            return f"the model is lost: {lost}"
        return "the server is shutting down" if self.queue.draining else None

    @property
    def ready(self) -> bool:
        return self.unavailable is None

    @property
    def recovers(self) -> bool:
        """Whether the model is lost and may return."""
        lost = self.model is not None and self.model.lost is not None
        return lost and not self.queue.draining and self._failures.verdict is None

    @property
    def policy(self) -> Policy:
        """The present one: the first deferred request may replace it."""
        return self._life.policy

    @property
    def memory(self) -> Ledger:
        """The ledger; it has no blocks until there is a model."""
        return self._life.ledger

    @property
    def counts(self) -> dict[str, int]:
        return {"waiting": self.queue.size, "running": len(self._life.resident)}

    @property
    def pending(self) -> int:
        """Waiting requests that are not in the queue yet."""
        return len(self.queue.pending)

    @property
    def serves_immediate(self) -> bool:
        """Whether a connection waits for a queued or running request; nearly up to date."""
        return self.queue.size + len(self._life.resident) > self._life.num_deferred

    @property
    def busy_since_s(self) -> float | None:
        """When the present busy period began; None while there is no request."""
        return self.queue.busy_since_s

    # --- requests ---------------------------------------------------------------------------

    def enqueue(self, inference: Inference) -> None:
        """Puts a request into the queue. Raises what `RequestQueue.put` raises."""
        self.queue.put(inference)

    def enqueue_stored(self, inference: Inference) -> None:
        """Like `enqueue`, for a request that the job store keeps until it is complete: the store
        limits number and time, and the request takes no place in the queue."""
        inference.stored = True
        self.enqueue(inference)

    def cancel(self, inference: Inference, end: End = "cancelled") -> None:
        """Ends a request early: its client disconnected, or a stop string was found. Its place is
        free within one iteration."""
        self.queue.leave(inference, end)

    def give_up_overdue(self, now_s: float) -> None:
        """Answers requests that are past their limit, although the loop may hang."""
        self._life.give_up_overdue(now_s)

    # --- the end ----------------------------------------------------------------------------

    def give_up(self, verdict: str, now_s: float) -> None:
        """The loop hangs, so the process must end: answers all clients."""
        self._failures.verdict = verdict
        self.queue.drain()
        self._life.give_up(f"the server has failed: {verdict}", now_s)

    def wake(self) -> None:
        """The lost model is back."""
        self.queue.wake()

    def drain(self) -> None:
        """Accepts no more requests; the loop returns when the accepted ones have ended."""
        self.queue.drain()

    def abort(self, reason: str) -> None:
        """Fails all unfinished requests, with a message to their clients."""
        self.queue.abort(reason)
