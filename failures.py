"""When a process cannot go on: its device is lost, or every iteration fails, whichever requests are
in it. A supervisor that starts a new process helps then, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence

from inference import Inference
from seams import DeviceLostError

FAILURES_IN_A_ROW = 5


class Failures:
    """`verdict`: why the process must end; None while it may go on."""

    def __init__(self) -> None:
        self.verdict: str | None = None
        self._in_a_row = 0
        self._prompts: set[tuple[int, ...]] = set()  # of the requests that failed in this row

    def failed(self, batch: Sequence[Inference], error: Exception) -> None:
        """An iteration with these requests failed, or could not be planned."""
        self._in_a_row += 1
        # clients try again what failed: one request must not end the server, however often it comes
        self._prompts.update(tuple(request.ids[: request.prompt_tokens]) for request in batch)
        if isinstance(error, DeviceLostError):
            self.verdict = f"the device is lost: {error}"
        elif self._in_a_row >= FAILURES_IN_A_ROW and len(self._prompts) > 1:
            self.verdict = f"{self._in_a_row} iterations in a row failed, the last with: {error}"

    def succeeded(self) -> None:
        self._in_a_row = 0
        self._prompts.clear()
