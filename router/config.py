"""The router's options, and pure functions that parse lists of upstreams."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from options import OptionGroup, Options, comma_separated
from router.rules.policies import POLICIES
from router.rules.upstream import Spec
from web.browsers import host_names

ANY = "any"  # as --batch-upstream: every upstream shares the job store

NETWORK = OptionGroup("network")
SERVERS = OptionGroup("servers")
DISPATCH = OptionGroup("requests")
BATCH_API = OptionGroup("files and batches")
KEYS = OptionGroup("keys")
PROCESS = OptionGroup("process")


def _batch_upstream(text: str) -> str:
    return text if text in {"", ANY} else parse_upstream(text, limit=1).url


def _aliases(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    pairs = comma_separated(text)
    if wrong := [pair for pair in pairs if not all(aliased(pair))]:
        raise ValueError(f"{wrong[0]!r} is no NAME=MODEL")
    return pairs


def aliased(pair: str) -> tuple[str, str]:
    """The name and the model of an alias."""
    name, _, model = pair.partition("=")
    return name.strip(), model.strip()


@dataclass(frozen=True, slots=True)
class RouterConfig(Options):
    """The router's settings. Raises OptionError."""

    usage: ClassVar = "./server.sh router [options]"
    description: ClassVar = "One OpenAI-compatible address in front of many inference servers."

    host: str = NETWORK.option("127.0.0.1", variables=["TIB_HOST"])
    """address to listen on; 0.0.0.0: every interface"""
    port: int = NETWORK.option(8000, least=0, most=65535, variables=["TIB_PORT"])
    """port to listen on; 0: any free one"""
    cors_origin: str = NETWORK.option("")
    """origin whose web pages may call, sent as Access-Control-Allow-Origin; *: any web page, which
    without --api-keys may only read; none: no other origin may"""
    allow_hosts: tuple[str, ...] = NETWORK.option((), parse=host_names)
    """names under which clients reach the router, comma separated; .example.com includes all names
    below it; an IP address, localhost and the machine's own name are always allowed, and with
    --api-keys every name is"""
    max_body_bytes: int = NETWORK.option(32 * 2**20, least=1)
    """largest request body; larger ones get 413"""
    max_held_bytes: int = NETWORK.option(256 * 2**20, least=1)
    """most bytes of request bodies and responses held at once; further requests get 503"""
    client_idle: float = NETWORK.option(75.0, least=0.001)
    """seconds a client has to send its headers, to send its body, to be idle between requests, and,
    plus one for each 64 KiB, to read what it has fallen behind"""
    stream_idle: float = NETWORK.option(300.0, least=0.001)
    """longest pause in the middle of a response, in seconds, from the upstream or to the client, or
    of an upload"""

    upstreams: str = SERVERS.option("")
    """servers, comma separated: http://a:8500,http://b:8500; dns+http://name:8500 means every
    address of that name"""
    upstreams_file: str = SERVERS.option("")
    """file with one 'URL [limit=N] [key=SECRET] [models=A,B]' per line and '#' comments; SIGHUP
    reads it again"""
    max_connect_per_upstream: int = SERVERS.option(1, least=1)
    """most requests on one upstream at a time, all models together"""
    connect_timeout: float = SERVERS.option(5.0, least=0.001)
    """seconds to connect to an upstream"""
    probe_interval: float = SERVERS.option(10.0, least=0.001)
    """seconds between probes of each upstream: /v1/models, or /health if its models are given; one
    that is not ready is probed every second"""
    probe_timeout: float = SERVERS.option(5.0, least=0.001)
    """seconds a probe may take"""

    policy: str = DISPATCH.option("least-work", choices=[*POLICIES])
    """how the server for a request is chosen"""
    default_model: str = DISPATCH.option("")
    """model for requests that name none; none: the only model, if there is one"""
    alias: tuple[str, ...] = DISPATCH.option((), parse=_aliases)
    """NAME=MODEL, comma separated: requests for NAME get MODEL while no server that can be used has
    NAME itself; of several for one NAME, the first that can be used"""
    queue_order: str = DISPATCH.option("fifo", choices=["fifo", "fair"])
    """who gets the next place: fifo (who came first); fair (the lowest priority of X-Priority, then
    the user who was served least, as in the server's vtc). A user is a key of --api-keys, else what
    X-User-Id or the body's user names, else an address"""
    max_priority: int = DISPATCH.option(0, least=-(2**31), most=2**31 - 1)
    """lowest number that counts as a priority; a lower number is more urgent"""
    requests_per_minute: int = DISPATCH.option(0, least=0)
    """most requests of a client in a minute, further ones get 429; a client is a key of --api-keys,
    else an address; 0: any number"""
    tokens_per_minute: int = DISPATCH.option(0, least=0)
    """most tokens of a client in a minute, those expected of a request included; 0: any number"""
    max_queue: int = DISPATCH.option(1000, least=0)
    """most requests that wait for a model; further ones get 429"""
    max_attempts: int = DISPATCH.option(3, least=1)
    """most upstreams tried for one request, before its first byte"""
    wait_for: float = DISPATCH.option(5000.0, least=0)
    """milliseconds to wait for an upstream to become ready (else 503)"""
    timeout: float = DISPATCH.option(600_000.0, least=1)
    """milliseconds to wait for a free upstream (else 503) and then for its first byte (else 504)"""
    batch_upstream: str = BATCH_API.option("", parse=_batch_upstream)
    """upstream that keeps files and batches: its URL, or any if the upstreams share a database
    (DATABASE_URL); none: calls about files and batches are refused"""

    api_keys: tuple[str, ...] = KEYS.option((), secret=True)
    """keys, comma separated; clients must send one of them; none: no key is needed"""
    upstream_api_key: str = KEYS.option("", secret=True)
    """key sent to the configured upstreams instead of the client's"""
    admin_key: str = KEYS.option("", secret=True)
    """key for /upstreams; none: /upstreams is read-only and accepts the keys of --api-keys"""

    workers: int = PROCESS.option(1, least=1, most=256)
    """processes that share the port; each has its part of every limit"""
    drain_timeout: float = PROCESS.option(600.0, least=0)
    """seconds for running requests to finish after SIGTERM"""
    otlp_endpoint: str = PROCESS.option("")
    """OpenTelemetry collector that receives traces over gRPC, such as http://localhost:4317; none:
    no traces"""
    otlp_service_name: str = PROCESS.option("effective-batching-router")
    """the router's name in traces"""
    record: str = PROCESS.option("")
    """file to which every request is written, with its attempts, as JSON lines; overwritten; none:
    no file"""
    debug: bool = PROCESS.option(False)
    """log every request"""


def parse_args(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> RouterConfig:
    """The configuration from options, environment and defaults. Exits with a message on errors."""
    config = RouterConfig.from_args(argv, env)
    for name in ("record", "requests_per_minute", "tokens_per_minute"):
        if config.workers > 1 and getattr(config, name):
            option = "--" + name.replace("_", "-")
            RouterConfig.refuse(f"--workers (WORKERS) is {config.workers}; with {option} only 1")
    if config.max_held_bytes < config.max_body_bytes * config.workers:
        RouterConfig.refuse(
            f"--max-held-bytes (MAX_HELD_BYTES) is {config.max_held_bytes}; allowed: at least "
            f"--max-body-bytes ({config.max_body_bytes}) for each of --workers "
            f"({config.workers}), so that a body of any allowed size fits"
        )
    try:
        read_upstreams(config)
    except (ValueError, OSError) as error:
        RouterConfig.refuse(str(error))
    return config


def parse_upstream(text: str, limit: int, key: str | None = None) -> Spec:
    """One upstream address. Spaces around it and a trailing slash are tolerated.

    Raises ValueError unless it is `[dns+]http(s)://host[:port]`."""
    text = text.strip()
    dns = text.startswith("dns+")
    url = text.removeprefix("dns+")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not a valid URL: {error}") from None
    if parts.scheme not in {"http", "https"}:
        scheme = f"{parts.scheme}://" if parts.scheme else "an address without a scheme"
        raise ValueError(f"{text!r} is not a valid URL: {scheme} is not supported, only http(s)://")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{text!r} is not a valid URL: only scheme, host and port are allowed")
    host = parts.hostname or ""
    if not host or any(c in host for c in " ,[]"):
        raise ValueError(f"{text!r} is not a valid URL: the host is missing or invalid")
    host = f"[{host}]" if ":" in host else host
    return Spec(f"{parts.scheme}://{host}" + (f":{port}" if port else ""), limit, key, dns)


def parse_upstreams(text: str, limit: int, key: str | None = None) -> list[Spec]:
    """A comma-separated list of upstreams. Raises ValueError if it is empty or a part is wrong."""
    if not text.strip():
        raise ValueError(
            "--upstreams (UPSTREAMS) is missing: give addresses, comma separated, or "
            "--upstreams-file"
        )
    return [parse_upstream(part, limit, key) for part in text.split(",")]


def parse_upstreams_file(text: str, limit: int, key: str | None = None) -> list[Spec]:
    """The lines of an upstreams file. Raises ValueError, which names the wrong line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        settings = dict(word.partition("=")[::2] for word in words[1:])
        try:
            if unknown := set(settings) - {"limit", "key", "models"}:
                allowed = "limit=, key= and models="
                raise ValueError(f"{', '.join(unknown)} is unknown; allowed: {allowed}")
            own = settings.get("limit", str(limit))
            if not own.isdecimal() or int(own) < 1:
                raise ValueError(f"limit={own} is wrong; allowed: 1 or more")
            spec = parse_upstream(words[0], int(own), settings.get("key", key))
            found.append(replace(spec, models=comma_separated(settings.get("models", ""))))
        except ValueError as error:
            raise ValueError(f"upstreams file, line {number}: {error}") from None
    return found


def read_upstreams(config: RouterConfig) -> dict[str, list[Spec]]:
    """The operator's upstreams by source: `environment` (or option), and `file`, read each time."""
    limit, key = config.max_connect_per_upstream, config.upstream_api_key or None
    sources: dict[str, list[Spec]] = {}
    if config.upstreams or not config.upstreams_file:
        sources["environment"] = parse_upstreams(config.upstreams, limit, key)
    if config.upstreams_file:
        text = Path(config.upstreams_file).read_text(encoding="utf-8")
        sources["file"] = parse_upstreams_file(text, limit, key)
    for spec in (spec for specs in sources.values() for spec in specs):
        if spec.limit < config.workers:
            raise ValueError(
                f"{spec.url} has a limit of {spec.limit} (MAX_CONNECT_PER_UPSTREAM); allowed: at "
                f"least --workers ({config.workers}), which share it"
            )
    return sources
