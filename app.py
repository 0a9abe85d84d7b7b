"""Wires the server together: configuration, handlers, queue, and the engine's thread.

`python app.py MODE ...` checks the options and becomes gunicorn (`gunicorn_conf.py`), whose one
worker calls `create_app`. Nothing here or in a handler's thread touches torch: the engine's
thread alone imports, loads and runs the model, since a second thread that uses torch slows
decoding by an eighth.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from flask import Flask

from api import native, watch
from api.document.openapi import register_openapi
from api.http.cors import register_cors
from api.http.departed import Departures
from api.http.errors import register_errors
from api.http.keys import require_keys
from api.http.logs import register_log
from api.http.traces import register_traces
from api.http.writer import Writer
from api.jobs import batches, files
from api.jobs.lines import Endpoints
from api.jobs.metrics import JobCollector
from api.metrics import Metrics, register_metrics
from api.openai import routes as openai
from api.openai.answers import error_shape
from api.openai.chat import load_chat_template
from api.openai.generation import Generations
from api.service import Description, Service
from api.texts import Texts
from api.tgi import routes as tgi
from api.tgi.answers import shape as tgi_shape
from batching import GROWTH_TOKENS, LOOPS, BatchingManager, EngineFailedError, make_ledger
from config import Config
from deferred.jobs import Jobs
from options import flag
from recording import Recording
from scheduling.classes.predictor import Predictor
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.static import Static
from scheduling.registry import PolicyOptionError, make_policy, with_deferred
from seams import Model, Policy
from stats import Recorders, Stats, describe_machine
from text import Tokenizer, VocabularyError, folder_of, load_tokenizer
from tracing import start_tracing

if TYPE_CHECKING:
    from model_server.remote.model import RemoteModel

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent
STORED_IN_HAND = 2  # times the batch: requests of stored jobs among which the policy chooses
LEAST_STORED_IN_HAND = 16  # more than the worker's turns can end
FAILED = 3  # gunicorn's status for a worker that must not be started again: the server ends with it
LAST_WORDS_S = 1.0  # for answers to leave, and for whoever asks why the server is not ready
DAY_S = 86_400
JOBS_STOP_S = 5.0  # to give back the lines of stored jobs; those of a dead process come back later
POLICY_FOLDER = "EB_POLICY_FOLDER"  # variable: where a policy of one's own lies
RECORD_S = 5.0  # to write the last lines of --record
ABORT_S = 5.0  # what an iteration may still take after its requests were given up


class LoadError(Exception):
    """The model cannot be served; the message says why and what is allowed."""


class LoadedModel(Model, Protocol):
    """A model as the server needs it, beyond executing iterations."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def info(self) -> Any: ...  # as gpt.executor.ModelInfo

    def warm_up(self) -> None: ...


Load = Callable[[Config], LoadedModel]


def load_configured_model(config: Config) -> LoadedModel:
    """Raises LoadError. Called by the engine's thread: here torch, or gRPC, is imported."""
    if config.remote_model is not None:
        return find_remote_model(config, config.remote_model)
    import torch

    from gpt.budget import KVMemoryError
    from gpt.checkpoint import CheckpointError
    from model import LoadOptions, UnsupportedDtypeError, load_model

    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise LoadError(f"--device {config.device}: torch finds no GPU; allowed here: auto, cpu")
    try:
        return load_model(
            LoadOptions(
                mode=config.mode,
                model=config.model,
                device=config.device,
                dtype=config.dtype,
                seed=config.seed,
                max_batch_size=config.max_batch_size,
                kv_memory=config.kv_memory,
                graphs=config.cuda_graphs,
            )
        )
    except (CheckpointError, KVMemoryError, UnsupportedDtypeError) as error:
        raise LoadError(str(error)) from error


def find_remote_model(config: Config, address: str) -> RemoteModel:
    """Waits for it. Raises LoadError."""
    from model_server.remote.life import RemoteModelError, RemoteOptions
    from model_server.remote.model import RemoteModel
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
    try:
        return RemoteModel(options)
    except RemoteModelError as error:
        raise LoadError(f"--remote-model {address}: {error}") from error


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
    ) -> None:
        self.config = config
        self.manager = manager
        self.jobs = jobs
        self.tokenizer = tokenizer
        self.load = load
        self.model: LoadedModel | None = None
        self.recording: Recording | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Takes in nothing more, and returns when all that was accepted has ended: by itself
        within the drain timeout, else with an error. What stored jobs have running is given back
        to them."""
        self.manager.drain()
        self.jobs.stop(JOBS_STOP_S)
        if self.manager.model is None:  # still loading, nothing was accepted
            return
        self._thread.join(self.config.drain_timeout)
        if self._thread.is_alive():
            log.warning("requests run after %s s; they are ended", self.config.drain_timeout)
            self.abort(ABORT_S)
        self._stop_recording()

    def abort(self, timeout_s: float) -> None:
        """Ends whatever runs with an error to its client."""
        self.manager.abort("the server is shutting down")
        if self.manager.model is not None:
            self._thread.join(timeout_s)
        self._stop_recording()

    def _stop_recording(self) -> None:
        if self.recording is not None:
            self.recording.stop(RECORD_S)

    def _record(self, path: str, model: LoadedModel) -> Recording:
        head = {
            "mode": self.config.mode,
            "policy": self.config.policy if self.config.mode == "dynamic" else self.config.mode,
            "max_batch_size": self.config.max_batch_size,
            "model": model.info.name,
            "blocks": self.manager.memory.budget,
            "block_tokens": self.manager.memory.block_tokens,
            "clock_s": time.perf_counter(),
            "unix_s": time.time(),
        }
        recording = Recording(Path(path), self.manager.history, head)
        recording.start()
        return recording

    def _run(self) -> None:
        try:
            model = self.load(self.config)
            if self.tokenizer.vocab_size > model.vocab_size:
                raise LoadError(
                    f"the vocabulary of '{self.config.model}' has {self.tokenizer.vocab_size} "
                    f"tokens, its network only {model.vocab_size}"
                )
            model.warm_up()
        except LoadError as error:
            log.critical("%s", error)
            os._exit(FAILED)
        except BaseException:
            log.critical("the model cannot be loaded", exc_info=True)
            os._exit(FAILED)
        self.model = model
        if self.config.remote_model is not None:
            cast("RemoteModel", model).on_return = self.manager.wake
        growth_tokens = GROWTH_TOKENS if self.config.grows else None
        computes_here = self.config.remote_model is None and str(model.info.device) == "cpu"
        if self.config.lookahead and computes_here:
            log.warning(
                "--lookahead on a CPU only delays tokens: the model computes when it starts"
            )
        self.manager.serve(
            model,
            make_ledger(
                self.config.mode,
                model,
                growth_tokens,
                prefix_caching=self.config.prefix_caching,
            ),
        )
        if self.config.record is not None:
            self.recording = self._record(self.config.record, model)
        url = self.config.url
        log.info("ready: %s on %s; see it work on %s/watch", self.config.mode, url, url)
        # not here: it may wait for a database that is being opened
        threading.Thread(target=self.jobs.start, name="jobs-start", daemon=True).start()
        try:
            LOOPS[self.config.mode](self.manager, time.perf_counter)
        except EngineFailedError as error:
            log.critical("the server has failed and ends: %s", error)
            self._stop_recording()
            time.sleep(LAST_WORDS_S)
            os._exit(FAILED)
        except BaseException:  # better no server than a mute one
            log.critical("the engine's loop has ended", exc_info=True)
            os._exit(FAILED)


def policy_of_mode(config: Config) -> Policy:
    """Raises scheduling.registry.PolicyOptionError."""
    match config.mode:
        case "nobatch":
            return NoBatch()
        case "static":
            by_batch = config.static_release == "batch"
            return Static(config.max_wait_ms / 1000, "batch" if by_batch else "own")
        case "dynamic":
            folder = os.environ.get(POLICY_FOLDER)
            if folder is not None and ":" in config.policy and folder not in sys.path:
                sys.path.append(folder)  # last: what else lies there must not shadow any module
            return make_policy(config.policy, config)


def create_app(
    config: Config | None = None,
    load: Load = load_configured_model,
    tokenizer: Tokenizer | None = None,
) -> Flask:
    """The WSGI application; `extensions["engine"]` is yet to be started. Without a config it is
    read from the environment."""
    config = config or Config.from_environment()
    tokenizer = tokenizer or load_tokenizer(config.model)
    template = load_chat_template(config.model, tokenizer)
    stats = Stats(time.perf_counter())
    predictor = Predictor()
    policy = with_deferred(policy_of_mode(config), config, predictor)
    metrics = Metrics()
    manager = BatchingManager(
        policy,
        Recorders(stats, metrics, predictor),
        max_batch_size=config.max_batch_size,
        max_waiting=config.max_waiting,
        max_waiting_prompt_tokens=config.max_waiting_prompt_tokens,
        request_timeout_s=config.request_timeout,
        lookahead=config.lookahead,
    )

    def describe() -> Description:
        info = asdict(engine.model.info) if engine.model is not None else None
        return {
            "mode": config.mode,
            "policy": config.policy if config.mode == "dynamic" else config.mode,
            "model": info,
            "machine": describe_machine(None if info is None else info["device"]),
            "options": config.as_dict(),
            "jobs": jobs.describe(),
        }

    app = Flask(__name__, static_folder=None)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    register_errors(app, {"/v1/": error_shape, "/generate": tgi_shape})
    departures = Departures()
    service = Service(
        config,
        manager,
        tokenizer,
        stats,
        metrics,
        departures,
        Writer(config.stream_heartbeat),
        time.perf_counter,
        describe,
        Texts() if config.watch_text else None,
    )
    app.register_blueprint(native.make_blueprint(service))
    app.register_blueprint(watch.make_blueprint(service))
    generations = Generations(service, template)
    calls = openai.Calls(service, generations)
    app.register_blueprint(tgi.make_blueprint(service, generations, calls))
    jobs = Jobs(
        config.database_url or Path(config.data_dir),
        Endpoints(service, generations),
        names=generations.names,
        window=max(LEAST_STORED_IN_HAND, STORED_IN_HAND * config.max_batch_size),
        most_line_bytes=config.max_body_bytes,
        retention_s=config.batch_retention_days * DAY_S,
        hurried=lambda: manager.serves_immediate,
    )
    engine = Engine(config, manager, jobs, tokenizer, load)
    app.extensions["engine"] = engine
    app.extensions["departures"] = departures
    app.register_blueprint(openai.make_blueprint(service, generations, calls))
    app.register_blueprint(files.make_blueprint(service, jobs))
    app.register_blueprint(batches.make_blueprint(service, jobs, generations.model))
    register_log(app, time.perf_counter)
    tracing = start_tracing(config.otlp_endpoint, config.otlp_service_name)
    if tracing is not None:
        register_traces(app, tracing, generations.model)
    app.extensions["tracing"] = tracing
    register_cors(app, config.cors_allow_origin)
    register_metrics(app, metrics, manager, JobCollector(jobs))
    require_keys(app, config.keys)
    register_openapi(app, keys=bool(config.keys))
    return app


def main() -> None:
    """Checks what can be checked in a moment, then becomes gunicorn."""
    config = Config.from_args(sys.argv[1:])
    folder = folder_of(config.model)
    served = replace(  # gunicorn runs in our folder
        config,
        data_dir=str(Path(config.data_dir).resolve()),
        model=config.model if folder is None else str(folder.resolve()),
        record=None if config.record is None else str(Path(config.record).resolve()),
    )
    # a policy of one's own lies where the command was typed
    os.environ.setdefault(POLICY_FOLDER, os.getcwd())
    try:
        policy_of_mode(config)
        load_chat_template(config.model, load_tokenizer(config.model))
        _check_port(config)
        _check_record(config)
    except (VocabularyError, PolicyOptionError, LoadError) as error:
        sys.exit(f"server.sh: {error}")
    print(
        f"{config.mode}, model {config.model}, {config.url}: {config.threads} threads, for "
        f"{config.max_batch_size} running ({flag('max_batch_size')}) and {config.max_waiting} "
        f"waiting requests ({flag('max_waiting')}) and some spare",
        flush=True,
    )
    for told in config.without_effect:
        print(f"warning: {told}", file=sys.stderr, flush=True)
    if config.open_to_the_world and not config.keys:
        print(
            f"warning: {flag('host')} {config.host} lets everyone in who reaches port "
            f"{config.port}; {flag('api_key')} asks them for a key",
            file=sys.stderr,
            flush=True,
        )
    os.chdir(ROOT)
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn_conf.py"]
    environment = {**os.environ, **served.as_environment()}
    os.execve(sys.executable, [*command, "app:create_app()"], environment)


def _check_port(config: Config) -> None:
    """gunicorn would try for five seconds before it says so."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            raise LoadError(
                f"cannot listen on {config.host}:{config.port} ({error.strerror}); "
                f"see {flag('host')} and {flag('port')}"
            ) from error


def _check_record(config: Config) -> None:
    if config.record is not None:
        try:
            open(config.record, "w").close()
        except OSError as error:
            raise LoadError(
                f"cannot write {config.record} ({error.strerror}); {flag('record')} names a file "
                "in a folder that exists"
            ) from error


if __name__ == "__main__":
    main()
