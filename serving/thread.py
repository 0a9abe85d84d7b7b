"""The engine: the thread that loads the model and runs the mode's loop, how it ends, and the thread
that watches whether the loop still advances: a model or a policy that hangs holds the loop's
thread, which alone ends requests.

Only this thread imports torch, loads the model and runs it: OpenMP keeps a team of threads for each
calling thread, and a second one slows decoding by 12 to 15 %.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from batching import LOOPS, BatchingManager, EngineFailedError
from deferred.jobs import Jobs
from engine.blocks import Ledger
from engine.speculation import Speculation
from generate.modes import make_ledger
from runtime.grammar.grammars import Grammars
from scheduling.prediction.predictor import Predictor
from seams import LoadedModel, LoadError
from serving.config import Config
from telemetry.recording import Recording
from text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from model_server.remote.model import RemoteModel
    from runtime.executor import Executor
import math

from scheduling.prediction.step_time import Work

log = logging.getLogger(__name__)

GROWTH_TOKENS = 64  # of optimistic admission: kept free for a newcomer, so that it can continue
FAILED = 3  # gunicorn's status for a worker that must not be restarted: the server ends with it
LAST_WORDS_S = 1.0  # to send responses, and to answer probes with the reason
JOBS_STOP_S = 5.0  # to return the lines of stored jobs; those of a dead process return later
SETTLE_S = 5.0  # to store what was generated, if the drain timeout leaves less
RECORD_S = 5.0  # to write the last lines of --record
COLLECT_AFTER = 10_000  # new objects; Python's default is 700
ABORT_S = 5.0  # for an iteration whose requests were given up
LOOK_EVERY_S = 0.5  # whether the loop still advances
PAUSE_S = 60.0  # without a look: the process was stopped
# an iteration may take so many times its predicted duration, but at least so long
LATE_FACTOR, LEAST_S = 10.0, 600.0


Load = Callable[[Config], LoadedModel]


def load_configured_model(config: Config) -> LoadedModel:
    """Raises LoadError. Called by the engine's thread: torch, or gRPC, is imported here."""
    if config.remote_model is not None:
        return find_remote_model(config, config.remote_model)
    from model import LoadOptions, load_model

    return load_model(LoadOptions.of(config))


def find_remote_model(config: Config, address: str) -> RemoteModel:
    """Waits for it. Raises LoadError."""
    from model_server.remote.model import RemoteModel
    from model_server.remote.session import RemoteOptions
    from model_server.wire.access import Access

    options = RemoteOptions(
        address=address,
        access=Access(config.model_token, config.model_tls),
        model=config.model,
        mode=config.mode,
        max_batch_size=config.max_batch_size,
        patience_s=config.model_patience,
        deadline_s=config.model_deadline,
    )
    return RemoteModel(options)


def collect_less() -> None:
    """Leaves what exists now, modules and the model, out of garbage collection, and makes it rarer.
    Each waiting request adds objects that live for long; with hundreds of them the collector takes
    much of the server's time."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


class Engine:
    """The thread that owns the model: loads it, warms it up, runs the mode's loop, and ends when
    the server drains. A model that cannot be loaded ends the whole server."""

    def __init__(
        self,
        config: Config,
        manager: BatchingManager,
        jobs: Jobs,
        tokenizer: Tokenizer,
        load: Load,
        predictor: Predictor,
        grammars: Grammars | None = None,
        settle: Callable[[float], None] = lambda timeout_s: None,
    ) -> None:
        """`settle`: returns when all that was generated is stored, or after a time."""
        self.config = config
        self.manager = manager
        self.jobs = jobs
        self.tokenizer = tokenizer
        self.load = load
        self.predictor = predictor
        self.grammars = grammars  # shared with a model in this process
        self.settle = settle
        self.least_s = LEAST_S  # that an iteration may take
        self.model: LoadedModel | None = None
        self.recording: Recording | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def unused_gpu(self) -> str | None:
        return None if self.model is None else self.model.info.unused_gpu

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Accepts no more requests, and returns when the accepted ones have ended and what is kept
        of them is stored: by themselves within the drain timeout, otherwise with an error. Running
        lines of stored jobs are returned to the store."""
        self.manager.drain()
        self.jobs.stop(JOBS_STOP_S)
        if self.manager.model is None:  # still loading, nothing was accepted
            return
        end_s = time.monotonic() + self.config.drain_timeout
        self._thread.join(self.config.drain_timeout)
        if self._thread.is_alive():
            log.warning(
                "requests still running after %s s end with an error", self.config.drain_timeout
            )
            self.abort(ABORT_S)
            return
        self.settle(max(SETTLE_S, end_s - time.monotonic()))
        self._stop_recording()

    def abort(self, timeout_s: float) -> None:
        """Ends running requests with an error to their clients."""
        self.manager.abort("the server is shutting down")
        if self.manager.model is not None:
            self._thread.join(timeout_s)
        self.settle(timeout_s)
        self._stop_recording()

    def _stop_recording(self) -> None:
        if self.recording is not None:
            self.recording.stop(RECORD_S)

    def _record(self, path: str, model: LoadedModel, ledger: Ledger) -> Recording:
        facts = {
            "mode": self.config.mode,
            "policy": self.config.policy if self.config.mode == "dynamic" else self.config.mode,
            "max_batch_size": self.config.max_batch_size,
            "model": model.info.name,
            "blocks": ledger.num_blocks,
            "block_tokens": ledger.block_tokens,
        }
        recording = Recording(Path(path), self.manager.history, facts)
        recording.start()
        return recording

    def _loaded(self) -> LoadedModel:
        """A model that serves; without one the process ends."""
        try:
            model = self.load(self.config)
            if self.tokenizer.vocab_size > model.vocab_size:
                raise LoadError(
                    f"the vocabulary of '{self.config.model}' has {self.tokenizer.vocab_size} "
                    f"tokens; allowed: at most {model.vocab_size}, the network's"
                )
            if most := self.config.most_drafts:
                self.manager.speculation = self._speculation(most, model)
            model.warm_up()
            if self.grammars is not None:
                self.grammars.load()  # takes half a second with a large vocabulary
            return model
        except LoadError as error:
            log.critical("%s", error)
            os._exit(FAILED)
        except BaseException:
            log.critical("the model cannot be loaded", exc_info=True)
            os._exit(FAILED)

    def _run(self) -> None:
        model = self._loaded()
        self.model = model
        if self.config.remote_model is not None:
            cast("RemoteModel", model).on_return = self.manager.wake
            # a remote model that takes too long is lost first, which costs no response
            self.least_s += self.config.model_deadline
        else:
            cast("Executor", model).grammars = self.grammars
        growth_tokens = GROWTH_TOKENS if self.config.grows else None
        device = str(model.info.device)
        self.manager.lookahead = self.config.iterations_ahead(device)
        computes_here = self.config.remote_model is None and device == "cpu"
        if self.manager.lookahead and computes_here:
            log.warning(
                "--lookahead 1 only delays tokens here: a model on a CPU computes an iteration "
                "when it is started"
            )
        ledger = make_ledger(
            self.config.mode, model, growth_tokens, prefix_caching=self.config.prefix_caching
        )
        if self.config.record is not None:  # its first line is older than any request
            self.recording = self._record(self.config.record, model, ledger)
        self.manager.serve(model, ledger)
        collect_less()
        url = self.config.url
        ready = f"ready: {self.config.mode} on {url}; see it work on {url}/watch"
        if self.unused_gpu is None:
            log.info("%s", ready)
        else:
            log.warning("%s; %s", ready, self.unused_gpu)
        # not here: it may wait for a database that is being opened
        threading.Thread(target=self.jobs.start, name="jobs-start", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            LOOPS[self.config.mode](self.manager, time.perf_counter)
        except EngineFailedError as error:
            self._fail(str(error))
        except BaseException:  # better no server than one that does not respond
            log.critical("the engine's loop has ended", exc_info=True)
            os._exit(FAILED)

    def _speculation(self, most: int, model: LoadedModel) -> Speculation:
        """Raises LoadError."""
        if (allowed := model.info.speculate) < most:
            raise LoadError(
                f"--speculate is {most}, and the model server was started with --speculate "
                f"{allowed}; allowed: at most as many as there"
            )
        if not model.info.batch_invariant:
            log.warning(
                "--speculate: the linear layers on %s are not batch invariant, so logits behind "
                "drafts may differ in their last bits from those without, and tokens where the two "
                "best are as good as equal",
                model.info.device,
            )
        return Speculation(most, self.predictor)

    def _watch(self) -> None:
        liveness = Liveness(self.manager, self.predictor.predict, self.least_s)
        while self._thread.is_alive():
            now_s = time.perf_counter()
            if (verdict := liveness.look(now_s)) is not None:
                self.manager.give_up(verdict, now_s)
                self._fail(verdict)
            time.sleep(LOOK_EVERY_S)

    def _fail(self, verdict: str) -> None:
        log.critical("the server failed and is shutting down: %s", verdict)
        self._stop_recording()
        time.sleep(LAST_WORDS_S)
        os._exit(FAILED)


class Liveness:
    """`predict`: the duration of an iteration with this work; None if nothing is learnt yet.
    `least_s`: that any iteration may take."""

    def __init__(
        self,
        manager: BatchingManager,
        predict: Callable[[Work], float | None],
        least_s: float = LEAST_S,
    ) -> None:
        self.manager = manager
        self.predict = predict
        self.least_s = least_s
        self._looked_s = math.inf
        self._counts_from_s = -math.inf

    def look(self, now_s: float) -> str | None:
        """Answers requests that are past their limit. Returns why the process must end; None while
        it need not."""
        manager = self.manager
        paused = now_s - self._looked_s > PAUSE_S
        self._looked_s = now_s
        manager.give_up_overdue(now_s)
        began_s = manager.step_since_s
        if manager.model is None or began_s is None:
            return None
        # a model may be lost for any time; and who looks was stopped, with the whole process
        if manager.model.lost is not None or paused:
            self._counts_from_s = now_s
        lasted_s = now_s - max(began_s, self._counts_from_s)
        if lasted_s <= self.least_s:
            return None
        # none in flight: the policy hangs, or the model before it started
        iteration = next(iter(manager.in_flight.copy()), None)
        predicted_s = None if iteration is None else self.predict(iteration.work())
        if lasted_s <= LATE_FACTOR * (predicted_s or 0.0):
            return None
        return (
            f"an iteration has not ended after {lasted_s:.0f} s; allowed: {LATE_FACTOR:g} "
            f"times its predicted duration, and at least {self.least_s:g} s"
        )
