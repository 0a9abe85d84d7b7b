"""A server to load: its address and its dialect. Independent of workloads."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import requests

from client.load.http.dialects import Dialect, Native, OpenAI, Tgi
from client.workloads.spec import SpecError

SCHEMES = ("http", "openai+http", "openai-chat+http", "tgi+http")


def authorization() -> dict[str, str]:
    """The header for servers with keys: the first key of `API_KEY`, if there is one."""
    key = os.environ.get("API_KEY", "").split(",")[0]
    return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True)
class Target:
    """``stream`` False requests whole responses; the first token's time is then the server's
    figure. ``keep_alive`` reuses connections."""

    name: str
    url: str
    dialect: Dialect
    stream: bool = True
    keep_alive: bool = False

    @property
    def native(self) -> bool:
        """Whether it has ``/stats`` and related paths."""
        return isinstance(self.dialect, Native)


def parse_target(text: str) -> Target:
    """``name=openai+http://host:port?model=m&ignore_eos=true``; the query goes into each body."""
    name, equals, rest = text.partition("=")
    if not equals or "://" in name:
        name, rest = "server", text
    try:
        parts = urlsplit(rest)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    kind, _, transport = parts.scheme.rpartition("+") if valid else ("", "", "")
    if not valid or transport not in ("http", "https") or f"{kind}+http".lstrip("+") not in SCHEMES:
        raise SpecError(
            f"target {text!r}: expected [name=]SCHEME://host[:port][?field=value], "
            f"SCHEME one of {', '.join(SCHEMES)} (or https)"
        )
    url = f"{transport}://{parts.netloc}{parts.path.rstrip('/')}"
    options = {key: _value(value) for key, value in parse_qsl(parts.query)}
    return Target(name, url, _dialect(kind, url, options))


def _dialect(kind: str, url: str, options: dict[str, Any]) -> Dialect:
    if kind == "tgi":
        return Tgi(options)
    if kind in ("openai", "openai-chat"):
        if "model" not in options:
            options["model"] = _first_model(url)
        return OpenAI(options, chat=kind == "openai-chat")
    return Native(options)


def _first_model(url: str) -> str:
    """The model for the body if the user named none: the server's first.

    A server that does not respond is not an error of the target; the run will report it.
    """
    try:
        answer = requests.get(f"{url}/v1/models", headers=authorization(), timeout=10)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (requests.ConnectionError, requests.Timeout):
        return "unknown"
    except (requests.RequestException, ValueError, LookupError, TypeError) as error:
        raise SpecError(
            f"{url}/v1/models did not name a model ({error}); add ?model=NAME to the target"
        ) from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
