"""The router's process: connects the parts, listens, handles signals, drains."""

import asyncio
import contextlib
import gc
import logging
import random
import signal
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from router import config as configuration
from router import log
from router.config import RouterConfig
from router.dispatching import AsyncDispatcher
from router.http.admin import Admin
from router.http.client import Pool
from router.http.connections import Connections, most_connections
from router.http.exchange import BufferLimit
from router.http.probes import Prober
from router.http.proxy import Proxy
from router.http.routes import Routes
from router.metrics import Metrics
from router.rules.fleet import Upstreams
from router.rules.policies import POLICIES
from router.rules.queues import ORDERS
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
    fair = ORDERS[config.queue_order]()
    policy = POLICIES[config.policy](random.Random())
    dispatcher = AsyncDispatcher(Upstreams(), policy, limits, fair)
    metrics = Metrics(dispatcher, workers)
    first_byte_s = config.timeout / 1000
    pool = Pool(config.connect_timeout, config.stream_idle, min(first_byte_s, config.stream_idle))
    buffers = BufferLimit(workers.share(config.max_held_bytes))
    tracing = start_tracing(config.otlp_endpoint or None, config.otlp_service_name)
    journal = Journal(Path(config.record), "router", {}) if config.record else None
    proxy = Proxy(config, dispatcher, pool, metrics, buffers, journal, tracing)
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
        _tell_address(listener.sockets[0].getsockname())
    else:
        listening = asyncio.create_task(workers.listen(connections))
        listening.add_done_callback(lambda _: stop.set())
    if journal is not None:
        journal.start()
    probing = asyncio.create_task(prober.run())
    probing.add_done_callback(lambda _: stop.set())  # a router that no longer probes is broken
    gc.freeze()  # what lives as long as the process is not searched, which delays all requests
    try:
        await stop.wait()
        await _drain(proxy, config.drain_timeout)
    finally:
        probing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probing
        if seat is None:
            listener.close()
        else:
            loop.remove_reader(seat.clients)
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
        _tell_address(found.getsockname())
        work = partial(_work, config)
        asyncio.run(WorkerSupervisor(found, config.workers, work).run())


def _work(config: RouterConfig, seat: Seat) -> None:
    uvloop.run(serve(config, seat))


def _tell_address(address: tuple[Any, ...]) -> None:
    log.event(logging.INFO, "listening", host=address[0], port=address[1])


def _sources(config: RouterConfig, workers: Workers) -> dict[str, list[Spec]]:
    """The operator's upstreams by source, with this worker's part of their limits."""
    return {
        source: [replace(spec, limit=workers.share(spec.limit)) for spec in specs]
        for source, specs in configuration.read_upstreams(config).items()
    }


def _reread(config: RouterConfig, prober: Prober, workers: Workers) -> None:
    try:
        prober.set_sources(_sources(config, workers))
    except (ValueError, OSError) as error:
        log.event(logging.ERROR, "upstreams not read again", error=str(error))
    else:
        log.event(logging.INFO, "upstreams read again")


async def _drain(proxy: Proxy, timeout_s: float) -> None:
    """Refuses new requests, lets accepted ones finish, and cuts off the rest at the limit."""
    proxy.draining = True
    log.event(logging.INFO, "draining", running=proxy.running)
    for limit_s, last_resort in ((timeout_s, proxy.stop), (STOP_GRACE_S, None)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await proxy.idle()
        if last_resort is not None and proxy.running:
            log.event(logging.WARNING, "drain limit reached", running=proxy.running)
            last_resort()
    log.event(logging.INFO, "stopped", running=proxy.running)
