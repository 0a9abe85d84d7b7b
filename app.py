"""Wires the server together: configuration, handlers, queue and engine.

`python app.py MODE ...` checks the options and becomes gunicorn
(`api/http/gunicorn_conf.py`), whose one worker calls `create_app`. This module does not use torch;
the engine's thread does (`serving/thread.py`).
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flask import Flask

from api import native, watch
from api.defaults import SamplingDefaults, load_sampling_defaults
from api.http.departed import Departures
from api.http.errors import ApiError, refusal, register_errors
from api.http.hooks import Hooks
from api.http.worker.handlers import AHEAD, SPARE, Intake
from api.http.writer import Writer
from api.jobs import batches, files
from api.jobs.lines import Endpoints
from api.metrics import MetricsPage, register_metrics
from api.openai import routes as openai
from api.openai.errors import error_shape
from api.openai.generation import Generations
from api.openapi import register_openapi
from api.responses import routes as responses
from api.service import Service, served_names
from api.tgi import routes as tgi
from api.tgi.answers import shape as tgi_shape
from batching import BatchingManager
from deferred.jobs import Jobs
from deferred.loop import JobOptions
from generate.modes import MODES
from models.names import local_path
from models.names import table as models_table
from options import flag
from runtime.grammar.grammars import Grammars
from scheduling.contract import PolicyOptionError
from scheduling.prediction.predictor import Predictor
from scheduling.registry import IN_ORDER, options_of, with_deferred
from seams import LoadError, Policy
from serving.config import Config
from serving.thread import Engine, Load, load_configured_model
from telemetry.journal import check_writable
from telemetry.stats import Stats
from telemetry.tracing import start_tracing
from text.chat import load_chat_template
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

ROOT = Path(__file__).resolve().parent
STORED_IN_HAND = 2  # x the batch limit: requests of stored jobs from which the policy chooses
LEAST_STORED_IN_HAND = 16  # more than the worker's turns can end
DAY_S = 86_400
POLICY_FOLDER = "EB_POLICY_FOLDER"  # variable: the folder of a custom policy


def policy_of_mode(config: Config, predictor: Predictor) -> Policy:
    """Raises PolicyOptionError."""
    folder = os.environ.get(POLICY_FOLDER)
    if folder is not None and ":" in config.policy and folder not in sys.path:
        sys.path.append(folder)  # last, so that other files there shadow no module
    return MODES[config.mode].policy(config, predictor)


def sampling_defaults(config: Config) -> SamplingDefaults:
    """Raises LoadError."""
    if not config.generation_config:
        return SamplingDefaults()
    return load_sampling_defaults(config.model, config.revision)


def make_manager(config: Config, stats: Stats, predictor: Predictor) -> BatchingManager:
    """Raises PolicyOptionError."""
    return BatchingManager(
        policy_of_mode(config, predictor),
        [stats, predictor],
        max_batch_size=config.max_batch_size,
        max_waiting=config.max_waiting,
        max_resident=config.most_resident,
        max_waiting_prompt_tokens=config.max_waiting_prompt_tokens,
        request_timeout_s=config.request_timeout,
        with_deferred=partial(
            with_deferred, predictor=predictor, **options_of(with_deferred, config)
        ),
    )


def make_intake(config: Config, manager: BatchingManager, stats: Stats) -> Intake[Any]:
    """Requests are pending in it only if its order is the one in which they would run."""
    reordered = config.mode == "dynamic" and config.policy not in IN_ORDER
    if reordered or config.max_concurrent_requests is not None:  # which refuses at once
        return Intake()
    queue, at_once = manager.queue, AHEAD * config.most_resident + SPARE

    def refuse() -> ApiError | None:
        if (overload := queue.overload_pending()) is None:
            return None
        stats.count_rejected()
        return refusal(overload)

    def most() -> float:
        if manager.unavailable is None or manager.recovers:
            return at_once + queue.num_deferred
        return math.inf

    patience_s = min(config.stream_heartbeat, config.request_timeout)
    intake = Intake[Any](most, refuse, patience_s, stats.count_left)
    queue.pending = intake.pending
    return intake


def create_app(
    config: Config | None = None,
    load: Load = load_configured_model,
    tokenizer: Tokenizer | None = None,
) -> Flask:
    """The WSGI application; `extensions["engine"]` is not started yet. Without a config it is
    read from the environment."""
    config = config or Config.from_environment()
    tokenizer = tokenizer or load_tokenizer(config.model, config.revision)
    stats, predictor = Stats(time.perf_counter()), Predictor()
    manager = make_manager(config, stats, predictor)
    grammars = None if config.disable_grammar_support else Grammars(lambda: tokenizer)
    service = Service(
        config,
        manager,
        served_names(config),
        tokenizer,
        load_chat_template(config.model, tokenizer, config.revision),
        stats,
        Departures(),
        Writer(config.stream_heartbeat),
        time.perf_counter,
        OrderedDict() if config.watch_text else None,
        grammars,
        sampling_defaults(config),
    )
    generations = Generations(service)
    endpoints = Endpoints(service, generations)
    jobs = Jobs(
        config.database_url or Path(config.data_dir),
        endpoints.begin,
        JobOptions(
            names=service.names,
            window=max(LEAST_STORED_IN_HAND, STORED_IN_HAND * config.max_batch_size),
            most_line_bytes=config.max_body_bytes,
            retention_s=config.batch_retention_days * DAY_S,
            hurried=lambda: manager.serves_immediate,
        ),
    )
    answers = responses.ResponseCalls(service, generations, jobs)
    endpoints.make[responses.PATH] = answers.line
    engine = Engine(config, manager, jobs, tokenizer, load, predictor, grammars, answers.settle)
    tracing = start_tracing(config.otlp_endpoint, config.otlp_service_name)

    app = Flask(__name__, static_folder=None)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    register_errors(app, {"/v1/": error_shape, "/detokenize": error_shape, "/generate": tgi_shape})
    name = service.names[0]
    for blueprint in (
        native.make_blueprint(service, jobs),
        watch.make_blueprint(service),
        tgi.make_blueprint(service, generations),
        openai.make_blueprint(service, generations),
        files.make_blueprint(service, jobs),
        batches.make_blueprint(service, jobs, name),
        responses.make_blueprint(answers),
    ):
        app.register_blueprint(blueprint)
    app.extensions["engine"] = engine
    app.extensions["turns"] = service.turns
    app.extensions["intake"] = make_intake(config, manager, stats)
    app.extensions["tracing"] = tracing
    Hooks(config, time.perf_counter, tracing, name, stats, manager.described_load).register(app)
    register_metrics(app, MetricsPage(stats, manager, jobs, lambda: engine.unused_gpu, name))
    register_openapi(app, keys=bool(config.keys))
    return app


def main() -> None:
    """Checks what can be checked in a moment, then becomes gunicorn."""
    if "--list-models" in sys.argv[1:]:
        print("\n".join(models_table()))
        return
    config = Config.from_args(sys.argv[1:])
    folder = local_path(config.model)
    served = replace(  # gunicorn runs in the project's folder
        config,
        data_dir=str(Path(config.data_dir).resolve()),
        model=config.model if folder is None else str(folder.resolve()),
        record=None if config.record is None else str(Path(config.record).resolve()),
    )
    # a custom policy is found in the folder where the command was typed
    os.environ.setdefault(POLICY_FOLDER, os.getcwd())
    try:
        policy_of_mode(config, Predictor())
        tokenizer = load_tokenizer(config.model, config.revision)
        template = load_chat_template(config.model, tokenizer, config.revision)
        defaults = sampling_defaults(config)
        _check_port(config)
        if config.record is not None:
            check_writable(config.record)
    except (LoadError, PolicyOptionError, OSError) as error:
        sys.exit(f"server.sh: {error}")
    print(
        f"{config.mode}, model {config.model}, {config.url}: {config.threads} threads, for "
        f"{config.most_resident} running ({flag('max_resident')}) and {config.max_waiting} "
        f"waiting requests ({flag('max_waiting')}) and some spare",
        flush=True,
    )
    if defaults.stated:
        said = ", ".join(f"{name} {value}" for name, value in defaults.stated.items())
        print(f"sampling defaults of the model: {said} ({flag('generation_config')})", flush=True)
    warnings = config.without_effect
    if template.unreadable is not None:
        warnings.append(f"{template.unreadable}; chats get 400")
    if config.open_to_the_world and not config.keys:
        warnings.append(
            f"with {flag('host')} {config.host} anyone who reaches port {config.port} can use this "
            f"server; {flag('api_key')} requires a key"
        )
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    os.chdir(ROOT)
    command = [sys.executable, "-m", "gunicorn", "-c", "api/http/gunicorn_conf.py"]
    environment = {**os.environ, **served.as_environment()}
    os.execve(sys.executable, [*command, "app:create_app()"], environment)


def _check_port(config: Config) -> None:
    """gunicorn would retry for five seconds before it reports the error. Raises OSError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {config.host}:{config.port} ({error.strerror}); "
                f"see {flag('host')} and {flag('port')}"
            ) from error


if __name__ == "__main__":
    main()
