"""The router's process: connects the parts, listens, handles signals, drains."""

import asyncio
import contextlib
import logging
import signal
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler, Middleware

from router import config as configuration
from router import log
from router.config import RouterConfig
from router.dispatching import AsyncDispatcher
from router.http.admin import Admin
from router.http.browsers import guarded_by
from router.http.connections import (
    ACCEPTED_AT_ONCE,
    MAX_HEADER_BYTES,
    Connections,
    most_connections,
)
from router.http.forward import Forwarder
from router.http.jobs import PATHS, JobRelay
from router.http.probes import Prober
from router.http.proxy import Proxy
from router.http.relay import Relay
from router.http.telemetry import RequestTelemetry
from router.http.tokens import PATHS as TOKEN_PATHS
from router.http.tokens import TokenRelay
from router.metrics import Metrics
from router.rules.buffers import BufferLimit
from router.rules.fleet import Upstreams
from router.rules.messages import errors
from router.rules.policies import POLICIES
from router.rules.queues import ORDERS
from router.rules.request import DispatchLimits
from router.rules.responses import PATH as RESPONSES
from telemetry.journal import Journal
from telemetry.tracing import start_tracing
from web.browsers import Rules, own_names, response_headers
from web.requests import HEADER, Pace, is_paced, request_id

# Servers close idle connections (gunicorn after 2 s, uvicorn after 5). A request sent at that
# moment is lost, so the router closes idle connections earlier.
KEEP_ALIVE_S = 1.5
# How long the rest of a refused body is read, so that the client sees the refusal.
LINGER_S = 2.0
STOP_GRACE_S = 5.0
BACKLOG = 4096


async def serve(config: RouterConfig) -> None:
    """Runs until SIGTERM or SIGINT, then drains."""
    log.set_up(debug=config.debug)
    limits = DispatchLimits(
        config.timeout / 1000,
        config.wait_for / 1000,
        config.max_queue,
        config.max_attempts,
        config.requests_per_minute,
        config.tokens_per_minute,
    )
    turns = ORDERS[config.queue_order]()
    dispatcher = AsyncDispatcher(Upstreams(), POLICIES[config.policy](), limits, turns)
    metrics = Metrics(dispatcher)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        buffers = BufferLimit(config.max_held_bytes)
        forwarder = Forwarder(
            session, idle_s=config.stream_idle, drop_authorization=bool(config.api_keys)
        )
        first_byte_limit_s = config.timeout / 1000
        relay = Relay(
            forwarder, dispatcher, metrics, buffers, first_byte_limit_s=first_byte_limit_s
        )
        jobs = JobRelay(
            forwarder,
            dispatcher,
            upstream=config.batch_upstream,
            default_model=config.default_model,
            idle_s=config.stream_idle,
        )
        tokens = TokenRelay(forwarder, dispatcher, idle_s=config.stream_idle)
        tracing = start_tracing(config.otlp_endpoint or None, config.otlp_service_name)
        journal = None
        if config.record:
            journal = Journal(Path(config.record), "router", {})
        telemetry = RequestTelemetry(dispatcher, metrics, journal)
        proxy = Proxy(
            config, dispatcher, forwarder, buffers, relay, jobs, tokens, metrics, telemetry, tracing
        )
        prober = Prober(dispatcher, session, config.probe_interval, config.probe_timeout)
        prober.set_sources(configuration.read_upstreams(config))
        stop = asyncio.Event()
        app = application(config, proxy, Admin(config, dispatcher, prober, proxy, metrics), stop)
        loop = asyncio.get_running_loop()
        for wanted in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(wanted, stop.set)
        loop.add_signal_handler(signal.SIGHUP, _reread, config, prober)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        assert runner.server is not None
        connections = Connections(
            runner.server,
            most_connections(),
            config.client_idle,
            access_log=None,
            keepalive_timeout=config.client_idle,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            auto_decompress=False,
            lingering_time=LINGER_S,
        )
        listener = await loop.create_server(
            connections, config.host, config.port, backlog=ACCEPTED_AT_ONCE
        )
        for sock in listener.sockets:
            with sock.dup() as same:
                same.listen(BACKLOG)
        if journal is not None:
            journal.start()
        probing = asyncio.create_task(prober.run())
        probing.add_done_callback(lambda _: stop.set())  # a router that no longer probes is broken
        address = listener.sockets[0].getsockname()
        log.event(logging.INFO, "listening", host=address[0], port=address[1])
        try:
            await stop.wait()
            await _drain(proxy, config.drain_timeout)
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
            listener.close()
            await runner.cleanup()
            if tracing is not None:
                tracing.close()
            if journal is not None:
                journal.stop(STOP_GRACE_S)


def application(
    config: RouterConfig, proxy: Proxy, admin: Admin, stop: asyncio.Event
) -> web.Application:
    """The routes. `stop`: refusals are no longer late."""
    rules = Rules(
        keys=config.api_keys,
        # asks for them only where they count: a resolver without a network delays the start
        names={*(() if config.api_keys else own_names()), config.host, *config.allow_hosts},
        origins=[config.cors_origin],
        key_option="--api-keys",
        origins_option="--cors-origin",
    )
    app = web.Application(
        client_max_size=config.max_body_bytes, middlewares=[_paced(stop), guarded_by(rules)]
    )
    add = partial(app.router.add_route, expect_handler=_expect)
    routes = admin.routes()
    for route in routes:
        route.kwargs["expect_handler"] = _expect
    app.add_routes(routes)
    add("POST", RESPONSES + "/input_tokens", proxy.handle)  # its body names the server
    for method in ("GET", "POST", "DELETE"):
        for path in PATHS:
            add(method, path, proxy.handle_jobs)
            add(method, path + "/{rest:.+}", proxy.handle_jobs)
        add(method, RESPONSES + "/{rest:.+}", proxy.handle_jobs)
    add("POST", "/v1/engines/{engine:.+}/completions", proxy.handle)
    add("POST", "/v1/{path:.+}", proxy.handle)
    for path in ("/", "/inference", "/generate", "/generate_stream"):
        add("POST", path, proxy.handle)
    for path in TOKEN_PATHS:
        add("POST", path, proxy.handle_tokens)
    app.on_response_prepare.append(_name_request)
    if config.cors_origin:
        allowed = {config.cors_origin}

        async def allow_origin(request: web.Request, response: web.StreamResponse) -> None:
            granted, vary = response_headers(allowed, request.method, request.headers.get)
            response.headers.update(granted)
            if vary:
                response.headers.add("Vary", ", ".join(sorted(vary)))

        app.on_response_prepare.append(allow_origin)
        add("OPTIONS", "/{path:.*}", _preflight)
    add("*", "/{path:.*}", _nowhere)
    return app


def _paced(stop: asyncio.Event) -> Middleware:
    pace = Pace()

    @web.middleware
    async def wait(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if is_paced(response.status) and not response.prepared:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace.late_s(request.remote or "")):
                    await stop.wait()
        return response

    return wait


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """`Expect: 100-continue`; aiohttp's own answer to any other value breaks on odd bytes."""
    if request.version < HttpVersion11:
        return None
    if request.headers["Expect"].lower() != "100-continue":
        message = "The header Expect may be 100-continue."
        return errors.response(errors.invalid(message, 417, "expectation_failed"), request.path)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0
    return None


async def _name_request(request: web.Request, response: web.StreamResponse) -> None:
    if HEADER not in response.headers:
        response.headers[HEADER] = request_id(request.headers.get(HEADER), prefix="req-")


async def _preflight(request: web.Request) -> web.Response:
    return web.Response(status=204)


async def _nowhere(request: web.Request) -> web.Response:
    message = f"There is no {request.method} {request.path} here."
    return errors.response(errors.invalid(message, 404, "not_found"), request.path)


def _reread(config: RouterConfig, prober: Prober) -> None:
    try:
        prober.set_sources(configuration.read_upstreams(config))
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
