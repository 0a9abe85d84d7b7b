"""A model server as a `seams.Model` that may be lost and return.

A separate thread receives the ranks' heartbeats and reconnects after a loss, so the engine never
waits for a connection.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from model_server.remote.session import (
    NotYetError,
    RemoteOptions,
    Session,
    begin,
)
from seams import LoadError, ModelLostError, Opening, Outcome, Step

log = logging.getLogger(__name__)

BEAT_S = 0.5  # between heartbeats
RETRY_S = 0.1  # between attempts to connect


class RemoteModel:
    """A `seams.Model`. Another thread calls `on_return` whenever the model is back."""

    def __init__(self, options: RemoteOptions) -> None:
        """Waits for the model server. Raises LoadError."""
        self.options = options
        self.on_return: Callable[[], None] = lambda: None
        self.lost: str | None = None
        self._unreported: str | None = None  # a loss not yet reported to the engine
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = False
        self._present = self._first_session()
        self.info, shape = self._present.info, self._present.shape
        self.context, self.vocab_size = shape.context, shape.vocab_size
        self.block_tokens, self.num_blocks = shape.block_tokens, shape.blocks
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()

    # --- seams.Model ------------------------------------------------------------------------

    def open(self, new: Sequence[Opening]) -> None:
        self._session().open(new)

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> RemoteIteration:
        session = self._session()
        return RemoteIteration(self, session, session.start(steps, released))

    def warm_up(self) -> None:
        """Nothing to do: each session begins with a warm-up."""

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._thread.join()
        self._present.ranks.close()

    def _session(self) -> Session:
        with self._lock:
            unreported, self._unreported = self._unreported, None
            if (reason := unreported or self.lost) is not None:
                raise ModelLostError(reason)
            return self._present

    def loss_reported(self) -> None:
        """Call it when the engine has been informed of the loss."""
        with self._lock:
            self._unreported = None

    # --- the thread that listens and connects -----------------------------------------------

    def _on_loss(self, session: Session) -> None:
        with self._lock:
            self.lost = self._unreported = session.lost
        log.warning("the model is lost: %s", session.lost)
        self._changed.set()

    def _watch(self) -> None:
        refused = ""
        while not self._closed:
            self._changed.clear()
            if self.lost is None:
                self._present.beat(self.options.patience_s)
                if self.lost is None:
                    self._changed.wait(BEAT_S)
                continue
            self._present.dismiss(BEAT_S)
            try:
                session = begin(self.options, self._on_loss, self._present)
                self._require_same(session)
            except Exception as error:  # any: without this thread the model would never return
                if str(error) != refused:
                    refused = str(error)
                    log.info("the model is not back yet: %s", refused)
                self._changed.wait(RETRY_S)
                continue
            refused = ""
            self._present.ranks.close()
            with self._lock:
                self._present, self.lost = session, session.lost
            if self.lost is None:
                log.info("the model is back")
                self.on_return()

    def _require_same(self, session: Session) -> None:
        """Checks the properties on which the ledger and the clients rely. Raises
        LoadError."""
        was, came = self._present.shape, session.shape
        if came._replace(blocks=was.blocks) != was or came.blocks < was.blocks:
            session.ranks.close()
            raise LoadError(f"the model has changed: it is {came} and was {was}")

    def _first_session(self) -> Session:
        pause, waits_for = threading.Event(), ""
        while True:
            try:
                return begin(self.options, self._on_loss)
            except NotYetError as error:
                if str(error) != waits_for:
                    waits_for = str(error)
                    log.info("waiting for the model server: %s", waits_for)
                pause.wait(RETRY_S)


@dataclass(frozen=True, slots=True)
class RemoteIteration:
    """As `seams.Pending`."""

    model: RemoteModel
    session: Session
    calls: Sequence[Any]

    def result(self) -> Outcome:
        """Raises ModelLostError, DeviceMemoryError, RuntimeError."""
        try:
            return self.session.result(self.calls)
        except ModelLostError:
            self.model.loss_reported()
            raise
