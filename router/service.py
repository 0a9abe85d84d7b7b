"""The router's process: connects the parts, listens, handles signals, drains."""

import asyncio
import contextlib
import gc
import logging
import random
import signal
import socket
from dataclasses import replace
from pathlib import Path

import uvloop

from router import log
from router.config import RouterConfig, read_upstreams
from router.dispatching import AsyncDispatcher
from router.http.admin import Admin
from router.http.client import Pool
from router.http.connections import Connections, most_connections
from router.http.exchange import BufferLimit, Forwarder
from router.http.probes import Prober
from router.http.proxy import Proxy
from router.http.routes import Routes
from router.metrics import Metrics
from router.rules.fleet import Upstreams
from router.rules.policies import POLICIES
from router.rules.request import DispatchLimits
from router.rules.upstream import Spec
from router.workers import BACKLOG, Seat, Workers, WorkerSupervisor
from telemetry.journal import Journal
from telemetry.tracing import start_tracing

STOP_GRACE_S = 5.0


async def serve(config: RouterConfig, seat: Seat | None = None) -> None:
    """Runs until SIGTERM or SIGINT, then drains. `seat`: as one of several workers."""
    workers = Workers(seat)
    log.set_up(debug=config.debug)
    limits = DispatchLimits(
        config.timeout / 1000,
        config.wait_for / 1000,
        workers.share(config.max_queue),
        config.max_attempts,
        config.requests_per_minute,
        config.tokens_per_minute,
    )
    policy = POLICIES[config.policy](random.Random())
    dispatcher = AsyncDispatcher(Upstreams(), policy, limits)
    metrics = Metrics(dispatcher, workers)
    pool = Pool(config.connect_timeout, config.stream_idle, limits.timeout_s)
    buffers = BufferLimit(workers.share(config.max_held_bytes))
    forwarder = Forwarder(pool, dispatcher, metrics, buffers, bool(config.api_keys))
    tracing = start_tracing(config.otlp_endpoint or None, config.otlp_service_name)
    journal = Journal(Path(config.record), "router", {}) if config.record else None
    proxy = Proxy(config, forwarder, journal, tracing)
    prober = Prober(dispatcher, pool, config.probe_interval, config.probe_timeout)
    prober.set_sources(_sources(config, workers))
    workers.does["reread"] = lambda _: _reread(config, prober, workers)
    stop = asyncio.Event()
    admin = Admin(config, dispatcher, prober, proxy, metrics, workers)
    routes = Routes(config, proxy, admin, stop)
    loop = asyncio.get_running_loop()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(wanted, stop.set)
    loop.add_signal_handler(signal.SIGHUP, _reread, config, prober, workers)
    connections = Connections(
        routes.answer, routes.own_headers, most_connections(), config.client_idle
    )
    if seat is None:
        listener = await loop.create_server(connections, config.host, config.port, backlog=BACKLOG)
        host, port = listener.sockets[0].getsockname()[:2]
        log.event(logging.INFO, "listening", host=host, port=port)
    else:
        listening = asyncio.create_task(workers.listen(seat, connections))
        listening.add_done_callback(lambda _: stop.set())
    if journal is not None:
        journal.start()
    probing = asyncio.create_task(prober.run())
    probing.add_done_callback(lambda _: stop.set())  # a router that no longer probes is broken
    gc.freeze()  # what lives as long as the process is not searched, which delays all requests
    try:
        await stop.wait()
        await proxy.drain(config.drain_timeout, STOP_GRACE_S)
    finally:
        probing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probing
        if seat is None:
            listener.close()
        else:
            listening.cancel()
        await connections.close(STOP_GRACE_S)
        pool.close()
        if tracing is not None:
            tracing.close()
        if journal is not None:
            journal.stop(STOP_GRACE_S)


def run(config: RouterConfig) -> None:
    """The router, in this process or as the workers that it starts. Raises OSError."""
    if config.workers == 1:
        uvloop.run(serve(config))
        return
    log.set_up(debug=config.debug)
    family, _, _, _, address = socket.getaddrinfo(
        config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.create_server((address[0], config.port), family=family, backlog=BACKLOG) as found:
        host, port = found.getsockname()[:2]
        log.event(logging.INFO, "listening", host=host, port=port)
        workers = WorkerSupervisor(found, config.workers, lambda s: uvloop.run(serve(config, s)))
        asyncio.run(workers.run())


def _sources(config: RouterConfig, workers: Workers) -> dict[str, list[Spec]]:
    """The operator's upstreams by source, with this worker's part of their limits."""
    return {
        source: [replace(spec, limit=workers.share(spec.limit)) for spec in specs]
        for source, specs in read_upstreams(config).items()
    }


def _reread(config: RouterConfig, prober: Prober, workers: Workers) -> None:
    try:
        prober.set_sources(_sources(config, workers))
    except (ValueError, OSError) as error:
        log.event(logging.ERROR, "upstreams not read again", error=str(error))
    else:
        log.event(logging.INFO, "upstreams read again")
