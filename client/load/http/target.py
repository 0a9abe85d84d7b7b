"""A server to load: its address and its dialect. Independent of workloads."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import requests

from client.load.http.dialects import Dialect, Native, OpenAI, Tgi
from client.workloads.spec import SpecError

SCHEMES = ("http", "openai+http", "openai-chat+http", "tgi+http")


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

    @property
    def headers(self) -> dict[str, str]:
        """With the key that is for this target: the first of `API_KEY_NAME`, for this project's
        servers otherwise of `API_KEY`."""
        keys = os.environ.get(_key_of(self.name), os.environ.get("API_KEY", "") * self.native)
        key = keys.split(",")[0]
        return {"Authorization": f"Bearer {key}"} if key else {}

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        """A request beside those of the load. Raises RequestException."""
        return requests.request(method, self.url + path, headers=self.headers, **options)


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
    dialects: dict[str, Dialect] = {
        "": Native(options), "tgi": Tgi(options), "openai": OpenAI(options),
        "openai-chat": OpenAI(options, chat=True),
    }  # fmt: skip
    target = Target(name, url, dialects[kind])
    if kind.startswith("openai") and "model" not in options:
        options["model"] = _first_model(target)
    return target


def _key_of(name: str) -> str:
    """The variable with the keys of the target with this name."""
    return "API_KEY_" + re.sub(r"\W", "_", name).upper()


def _first_model(target: Target) -> str:
    """The model for the body if the user named none: the server's first.

    A server that does not respond is not an error of the target; the run will report it.
    """
    try:
        answer = target.ask("GET", "/v1/models", timeout=10)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (requests.ConnectionError, requests.Timeout):
        return "unknown"
    except (requests.RequestException, ValueError, LookupError, TypeError) as error:
        raise SpecError(
            f"{target.url}/v1/models did not name a model ({error}); add ?model=NAME to the "
            f"target, or its key as {_key_of(target.name)} to the environment"
        ) from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
