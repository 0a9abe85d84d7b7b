"""Failed iterations: what happens to their requests, and when the process must end.

If the device runs out of memory, the same requests run again in smaller batches. If the model is
lost, all requests are preempted and continue when it is back. Any other failure ends only the
requests of its iteration. If the device is lost, or every iteration fails whatever its requests,
only a new process can help: the verdict asks the supervisor for one.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from engine.inference import Inference
from engine.iteration import Iteration
from engine.lifecycle import Lifecycle
from seams import DeviceLostError, DeviceMemoryError, ModelLostError, Outcome, phase_of

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 5
REGROW_S = 1.0  # after the device ran out of memory, the batch limit rises this often,
REGROW_SHARE = 8  # by an eighth
LOSSES_IN_A_BATCH = 3  # without a token in between: then a request runs alone


class Failures:
    """`verdict`: why the process must end; None while it need not. `batch_limit`: the requests for
    which the device has memory, as far as is known."""

    def __init__(self, life: Lifecycle, in_flight: deque[Iteration], max_batch_size: int) -> None:
        self.verdict: str | None = None
        self.batch_limit = max_batch_size
        self.iterations: Counter[str] = Counter()  # by kind: prefill (also a part of one), decode
        self._life = life
        self._in_flight = in_flight
        self._max_batch_size = max_batch_size
        self._regrow_s = 0.0  # when the batch limit may rise again
        self.recovering = False  # the next success changes something
        self._in_a_row = 0
        self._prompts: set[tuple[int, ...]] = set()  # of the requests that failed in this row
        self.suspects: list[Inference] = []  # one of them may be the cause of the losses

    def succeeded(self, now_s: float) -> None:
        self._in_a_row = 0
        self._prompts.clear()
        if self._regrow_s <= now_s:
            more = self.batch_limit + max(1, self.batch_limit // REGROW_SHARE)
            self.batch_limit = min(more, self._max_batch_size)
            self._regrow_s = now_s + REGROW_S
        self.recovering = self.batch_limit < self._max_batch_size

    def failed(self, iteration: Iteration, outcome: Outcome | Exception, now_s: float) -> None:
        """The oldest iteration in flight failed, or was discarded. Later ones in flight count as
        the same failure."""
        iteration.undo()
        self._life.return_preempted(iteration.record.preempted)
        if iteration.discarded or not isinstance(outcome, Exception):
            self._replan(iteration, now_s)
            return
        error = outcome
        for later in self._in_flight:
            later.discarded = True
        if isinstance(error, DeviceMemoryError):
            self._shrink(iteration, error, now_s)
            return
        self.iterations[phase_of(iteration.kinds())] += 1
        if isinstance(error, ModelLostError):
            self._lose(iteration, error, now_s)
            return
        # the traceback as text: a log record that is kept must not keep tensors alive
        log.error("an iteration failed\n%s", "".join(traceback.format_exception(error)))
        self._judge(iteration.batch, error)
        self._life.fail(iteration.batch, f"the model failed: {error}", now_s)

    def _replan(self, iteration: Iteration, now_s: float) -> None:
        """Returns the requests of an iteration that was lost, through no fault of theirs, to the
        queue. Those in a later iteration follow when that one ends."""
        for inference in iteration.batch:
            if inference.resident and not self._life.is_in_flight(inference):
                self._life.preempt(inference, now_s)
        self._life.drop_ended(now_s)

    def loop_failed(self, error: Exception, now_s: float) -> None:
        """An error of the loop or of a policy: all requests fail."""
        log.exception("the loop failed; all its requests are failed")
        self._judge(self._life.present(), error)
        self._give_up_in_flight()
        reason = f"internal error: {type(error).__name__}: {error}"
        self._life.fail(self._life.present(), reason, now_s)

    def alone(self) -> Inference | None:
        """The request that must run alone until it receives a token."""
        self.suspects = [
            i for i in self.suspects if i.end is None and i.known_at_loss == len(i.ids)
        ]
        return self.suspects[0] if self.suspects else None

    def _judge(self, batch: Iterable[Inference], error: Exception) -> None:
        self.recovering = True
        self._in_a_row += 1
        # clients retry failed requests: a single request must not end the server by being repeated
        self._prompts.update(tuple(request.ids[: request.prompt_tokens]) for request in batch)
        if isinstance(error, DeviceLostError):
            self.verdict = f"the device is lost: {error}"
        elif self._in_a_row >= FAILURES_IN_A_ROW and len(self._prompts) > 1:
            self.verdict = f"{self._in_a_row} iterations in a row failed, the last with: {error}"

    def _shrink(self, iteration: Iteration, error: Exception, now_s: float) -> None:
        """Runs the same requests again in smaller batches, before any of them fails."""
        # paused requests hold memory, too, which is free again when they end
        present = len(self._life.resident)
        if present == 1 or len(iteration.batch) == self.batch_limit == 1:
            self._life.fail(iteration.batch, f"out of memory: {error}", now_s)
            return
        self.batch_limit = max(1, min(self.batch_limit, present) // 2)
        self._regrow_s = now_s + REGROW_S
        self.recovering = True
        log.warning(
            "the device ran out of memory with %d requests; the batch limit is now %d",
            present,
            self.batch_limit,
        )
        self._replan(iteration, now_s)

    def _lose(self, iteration: Iteration, error: ModelLostError, now_s: float) -> None:
        """Preempts all requests. A request that was in flight at LOSSES_IN_A_BATCH losses without
        receiving a token in between may be their cause: it runs alone, and fails at the next."""
        life = self._life
        log.warning("the model is lost: %s (requests in it: %d)", error, len(life.resident))
        self._give_up_in_flight()
        at_fault = [] if isinstance(iteration.pending, Exception) else self._blame(iteration.batch)
        life.lose_model(now_s)
        life.fail(
            at_fault,
            f"the model was lost {LOSSES_IN_A_BATCH + 1} times while it computed this request, "
            f"the last time alone: {error}",
            now_s,
        )

    def _blame(self, batch: Sequence[Inference]) -> list[Inference]:
        at_fault = []
        for inference in batch:
            if inference.known_at_loss != len(inference.ids):
                inference.known_at_loss, inference.num_losses = len(inference.ids), 0
            inference.num_losses += 1
            if inference.num_losses == LOSSES_IN_A_BATCH:
                self.suspects.append(inference)
            elif inference.num_losses > LOSSES_IN_A_BATCH:
                at_fault.append(inference)
        return at_fault

    def _give_up_in_flight(self) -> None:
        """Waits for the iterations in flight, so that their blocks can be reused."""
        while self._in_flight:
            iteration = self._in_flight.popleft()
            self._life.ended += 1
            iteration.outcome()
            iteration.undo()
            self._life.return_preempted(iteration.record.preempted)
