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
from engine.iteration import Flight
from engine.lifecycle import Lifecycle
from engine.records import CHUNK, PREFILL
from seams import DeviceLostError, DeviceMemoryError, ModelLostError

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 5
REGROW_S = 1.0  # after the device ran out of memory, the batch limit rises this often,
REGROW_SHARE = 8  # by an eighth
LOSSES_IN_COMPANY = 3  # without a token in between: then a request runs alone


class Failures:
    """`verdict`: why the process must end; None while it need not. `batch_limit`: the requests for
    which the device has memory, as far as is known."""

    def __init__(self, life: Lifecycle, flights: deque[Flight], max_batch_size: int) -> None:
        self.verdict: str | None = None
        self.batch_limit = max_batch_size
        self.iterations: Counter[str] = Counter()  # by kind: prefill (also a part of one), decode
        self._life = life
        self._flights = flights
        self._max_batch_size = max_batch_size
        self._regrow_s = 0.0  # when the batch limit may rise again
        self._in_a_row = 0
        self._prompts: set[tuple[int, ...]] = set()  # of the requests that failed in this row
        self._suspects: list[Inference] = []  # one of them may be the cause of the losses

    def succeeded(self, now_s: float) -> None:
        self._in_a_row = 0
        self._prompts.clear()
        if self._regrow_s <= now_s:
            more = self.batch_limit + max(1, self.batch_limit // REGROW_SHARE)
            self.batch_limit = min(more, self._max_batch_size)
            self._regrow_s = now_s + REGROW_S

    def failed(self, flight: Flight, error: Exception, now_s: float) -> None:
        """The oldest iteration in flight failed. Later ones in flight count as the same failure."""
        for later in self._flights:
            later.discarded = True
        if isinstance(error, DeviceMemoryError):
            self._shrink(flight, error, now_s)
            return
        kinds = flight.work.rows.kinds
        self.iterations["prefill" if PREFILL in kinds or CHUNK in kinds else "decode"] += 1
        if isinstance(error, ModelLostError):
            self._lose(flight, error, now_s)
            return
        # the traceback as text: a log record that is kept must not keep tensors alive
        log.error("an iteration failed\n%s", "".join(traceback.format_exception(error)))
        self._judge(flight.batch, error)
        self._life.fail(flight.batch, f"the model failed: {error}", now_s)

    def replan(self, flight: Flight, now_s: float) -> None:
        """Returns the requests of an iteration that was lost, through no fault of theirs, to the
        queue. Those in a later iteration follow when it lands."""
        for inference in flight.batch:
            if inference.resident and not inference.flights:
                self._life.preempt(inference, now_s)
        self._life.drop_ended(now_s)

    def of_the_loop(self, error: Exception, now_s: float) -> None:
        """An error of the loop or of a policy: all requests fail."""
        log.exception("the loop failed; all requests are failed, and it continues")
        self._judge(self._life.present(), error)
        self._give_up_flights()
        self._life.fail(self._life.present(), f"internal error: {error}", now_s)

    def alone(self) -> Inference | None:
        """The request that must run alone until it receives a token."""
        self._suspects = [i for i in self._suspects if not i.ended and i.ids_at_loss == len(i.ids)]
        return self._suspects[0] if self._suspects else None

    def _judge(self, batch: Iterable[Inference], error: Exception) -> None:
        self._in_a_row += 1
        # clients retry failed requests: a single request must not end the server by being repeated
        self._prompts.update(tuple(request.ids[: request.prompt_tokens]) for request in batch)
        if isinstance(error, DeviceLostError):
            self.verdict = f"the device is lost: {error}"
        elif self._in_a_row >= FAILURES_IN_A_ROW and len(self._prompts) > 1:
            self.verdict = f"{self._in_a_row} iterations in a row failed, the last with: {error}"

    def _shrink(self, flight: Flight, error: Exception, now_s: float) -> None:
        """Runs the same requests again in smaller batches, before any of them fails."""
        # paused requests hold memory, too, which is free again when they end
        present = len(self._life.resident)
        if present == 1:
            self._life.fail(flight.batch, f"out of memory: {error}", now_s)
            return
        self.batch_limit = max(1, min(self.batch_limit, present) // 2)
        self._regrow_s = now_s + REGROW_S
        log.warning(
            "the device ran out of memory with %d requests; the batch limit is now %d",
            present,
            self.batch_limit,
        )
        self.replan(flight, now_s)

    def _lose(self, flight: Flight, error: ModelLostError, now_s: float) -> None:
        """Preempts all requests. A request that was in flight at LOSSES_IN_COMPANY losses without
        receiving a token in between may be their cause: it runs alone, and fails at the next."""
        life = self._life
        log.warning("the model is lost: %s (requests in it: %d)", error, len(life.resident))
        self._give_up_flights()
        at_fault = [] if isinstance(flight.pending, Exception) else self._blame(flight.batch)
        life.lose_model(now_s)
        life.fail(
            at_fault,
            f"the model was lost {LOSSES_IN_COMPANY + 1} times while it computed this request, "
            f"the last time alone: {error}",
            now_s,
        )

    def _blame(self, batch: Sequence[Inference]) -> list[Inference]:
        at_fault = []
        for inference in batch:
            if inference.ids_at_loss != len(inference.ids):
                inference.ids_at_loss, inference.losses = len(inference.ids), 0
            inference.losses += 1
            if inference.losses == LOSSES_IN_COMPANY:
                self._suspects.append(inference)
            elif inference.losses > LOSSES_IN_COMPANY:
                at_fault.append(inference)
        return at_fault

    def _give_up_flights(self) -> None:
        """Waits for the iterations in flight, so that their blocks can be reused."""
        while self._flights:
            flight = self._flights.popleft()
            flight.land()
            flight.leave()
