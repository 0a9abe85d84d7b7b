"""Every option of the router once: name, type, default, environment variable, help.

Also the parsing of upstream lists, as pure functions over text. An option beats its environment
variable, which beats the default. Errors are `ValueError`s that name value, limit and knob.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from router.rules.policies import POLICIES
from router.rules.upstream import Spec

ANY = "any"  # as --batch-upstream: every upstream shares the job store


def _option(default: Any, parse: Callable[[str], Any], env: str, text: str) -> Any:
    return dataclass_field(default=default, metadata={"parse": parse, "env": env, "help": text})


def _number(kind: type[int] | type[float], least: float) -> Callable[[str], Any]:
    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number ({kind.__name__})") from None
        if not least <= value < float("inf"):
            raise ValueError(f"{text} is out of range, the least is {least}")
        return value

    return parse


def _flag(text: str) -> bool:
    if text.lower() in {"true", "1", "yes"}:
        return True
    if text.lower() in {"false", "0", "no", ""}:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise ValueError(f"{text!r} is no policy, there are {', '.join(POLICIES)}")
    return text


def _batch_upstream(text: str) -> str:
    return text if text in {"", ANY} else parse_upstream(text, limit=1).url


_COUNT, _FROM_ZERO, _SECONDS = _number(int, 1), _number(int, 0), _number(float, 0.001)


@dataclass(frozen=True, slots=True)
class Config:
    """The router's settings."""

    host: str = _option(
        "127.0.0.1", str, "TIB_HOST", "address to listen on; 0.0.0.0: every interface"
    )
    port: int = _option(8000, _FROM_ZERO, "TIB_PORT", "port to listen on (0: any free one)")
    upstreams: str = _option(
        "",
        str,
        "UPSTREAMS",
        "servers, comma separated: http://a:8500,http://b:8500; dns+http://name:8500 stands for "
        "every address of the name",
    )
    upstreams_file: str = _option(
        "",
        str,
        "UPSTREAMS_FILE",
        "file with one 'URL [limit=N] [key=SECRET] [models=A,B]' a line, '#' comments; SIGHUP "
        "reads it again",
    )
    max_connect_per_upstream: int = _option(
        1, _COUNT, "MAX_CONNECT_PER_UPSTREAM", "requests on one upstream at a time, all models"
    )
    policy: str = _option(
        "least-work", _policy, "POLICY", f"who takes a request: {', '.join(POLICIES)}"
    )
    wait_for: float = _option(
        5000.0, _number(float, 0), "WAIT_FOR", "ms to wait for an upstream to become ready, or 503"
    )
    timeout: float = _option(
        600_000.0,
        _number(float, 1),
        "TIMEOUT",
        "ms to wait for a free upstream, or 503, and then for its first byte, or 504",
    )
    stream_idle: float = _option(
        300.0, _SECONDS, "STREAM_IDLE", "s without a byte within an answer, on either side"
    )
    max_queue: int = _option(
        1000, _FROM_ZERO, "MAX_QUEUE", "requests waiting per model; beyond them 429"
    )
    max_attempts: int = _option(
        3, _COUNT, "MAX_ATTEMPTS", "upstreams tried for one request before its first byte"
    )
    connect_timeout: float = _option(
        5.0, _SECONDS, "CONNECT_TIMEOUT", "s to connect to an upstream"
    )
    probe_interval: float = _option(
        10.0, _SECONDS, "PROBE_INTERVAL", "s between probes of every upstream's /v1/models"
    )
    probe_timeout: float = _option(5.0, _SECONDS, "PROBE_TIMEOUT", "s a probe may take")
    drain_timeout: float = _option(
        600.0, _number(float, 0), "DRAIN_TIMEOUT", "s running requests may take after SIGTERM"
    )
    client_idle: float = _option(
        75.0, _SECONDS, "CLIENT_IDLE", "s a client may take over its headers, its body, a pause"
    )
    max_body_bytes: int = _option(
        32 * 2**20, _COUNT, "MAX_BODY_BYTES", "largest request body; beyond it 413"
    )
    batch_upstream: str = _option(
        "",
        _batch_upstream,
        "BATCH_UPSTREAM",
        "upstream that has the files and batches: its URL, or any where the upstreams share a "
        "database (DATABASE_URL); without it they are refused",
    )
    default_model: str = _option(
        "",
        str,
        "DEFAULT_MODEL",
        "model of requests that name none; without it the only model there is",
    )
    api_keys: tuple[str, ...] = _option(
        (), _words, "API_KEYS", "keys clients must show, comma separated; none: open"
    )
    upstream_api_key: str = _option(
        "", str, "UPSTREAM_API_KEY", "key shown to upstreams in place of the client's"
    )
    admin_key: str = _option(
        "", str, "ADMIN_KEY", "key for /upstreams; without one it is read-only and open"
    )
    cors_origin: str = _option(
        "*", str, "CORS_ORIGIN", "Access-Control-Allow-Origin of answers; empty: none"
    )
    debug: bool = _option(False, _flag, "DEBUG", "log every request (true or false)")


def parse_args(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> Config:
    """The configuration from options, environment and defaults; exits with a message on errors."""
    parser = argparse.ArgumentParser(
        prog="server.sh router",
        description="One OpenAI-compatible address before many inference servers.",
        epilog="Each option has an environment variable, given in brackets; the option wins.",
    )
    for option in fields(Config):
        shown = ",".join(option.default) if isinstance(option.default, tuple) else option.default
        default = "empty" if shown == "" else str(shown).lower() if shown is False else shown
        parser.add_argument(
            f"--{option.name.replace('_', '-')}",
            nargs="?" if shown is False else None,
            const="true" if shown is False else None,
            metavar=option.metadata["env"],
            help=f"{option.metadata['help']} [{option.metadata['env']}, default {default}]",
        )
    given = vars(parser.parse_args(argv))
    values: dict[str, Any] = {}
    for option in fields(Config):
        text = given[option.name]
        if text is None:
            text = env.get(option.metadata["env"])
        if text is None:
            continue
        try:
            values[option.name] = option.metadata["parse"](text)
        except ValueError as error:
            flag = f"--{option.name.replace('_', '-')}"
            parser.error(f"{flag} ({option.metadata['env']}): {error}")
    config = Config(**values)
    try:
        read_upstreams(config)
    except (ValueError, OSError) as error:
        parser.error(str(error))
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
        raise ValueError(f"{text!r} is not a valid URL: the host is missing or broken")
    host = f"[{host}]" if ":" in host else host
    return Spec(f"{parts.scheme}://{host}" + (f":{port}" if port else ""), limit, key, dns)


def parse_upstreams(text: str | None, limit: int, key: str | None = None) -> list[Spec]:
    """A comma-separated list of upstreams. Raises ValueError if empty or any part is wrong."""
    if not text or not text.strip():
        raise ValueError("UPSTREAMS is missing: give addresses, comma separated")
    return [parse_upstream(part, limit, key) for part in text.split(",")]


def parse_upstreams_file(text: str, limit: int, key: str | None = None) -> list[Spec]:
    """The lines of an upstreams file; raises ValueError naming the line that is wrong."""
    return list(_parse_lines(text, limit, key))


def _parse_lines(text: str, limit: int, key: str | None) -> Iterator[Spec]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        settings = dict(word.partition("=")[::2] for word in words[1:])
        try:
            if unknown := set(settings) - {"limit", "key", "models"}:
                allowed = "there are limit=, key= and models="
                raise ValueError(f"{', '.join(unknown)} is unknown, {allowed}")
            own = _COUNT(settings["limit"]) if "limit" in settings else limit
            spec = parse_upstream(words[0], own, settings.get("key", key))
            yield replace(spec, models=_words(settings.get("models", "")))
        except ValueError as error:
            raise ValueError(f"upstreams file, line {number}: {error}") from None


def read_upstreams(config: Config) -> dict[str, list[Spec]]:
    """The operator's upstreams by source: `environment` (or option) and `file`, read afresh."""
    limit, key = config.max_connect_per_upstream, config.upstream_api_key or None
    sources: dict[str, list[Spec]] = {}
    if config.upstreams or not config.upstreams_file:
        sources["environment"] = parse_upstreams(config.upstreams, limit, key)
    if config.upstreams_file:
        text = Path(config.upstreams_file).read_text(encoding="utf-8")
        sources["file"] = parse_upstreams_file(text, limit, key)
    return sources
