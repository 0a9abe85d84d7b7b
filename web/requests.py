"""What server and router do alike with any request: they read its key, its id and its JSON, log it,
and pace refusals. No I/O.

An escape in JSON may name half of a surrogate pair (`"\\ud800"`). That is valid JSON, but no text:
Python cannot encode it, and a database or a header does not take it. Each half becomes U+FFFD, in
names as in values, as it would in a decoder that replaces errors.

A client that causes many refusals soon waits for each, so that clients that repeat requests in
error leave the server to others.
"""

from __future__ import annotations

import hmac
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

HEADER = "X-Request-Id"  # under which logs, traces and responses show a request
HALF = re.compile(r"\\u[dD][89a-fA-F]")
_VALID = re.compile(r"[\x21-\x7e]{1,128}")  # safe in a log line and in a header

SHOWN_CHARACTERS = 60  # of a client's value in an error

PER_S = 20.0  # of one address
AT_ONCE = 20  # refusals that are not late
MOST_LATE_S = 5.0
MOST_ADDRESSES = 4096
# statuses of refusals; the clients of 408 and 429 have waited, or are not at fault
PACED = frozenset(range(400, 500)) - {408, 429}


def show(value: object) -> str:
    """A JSON value in a sentence."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def request_id(given: str | None, prefix: str = "") -> str:
    """The client's id if it is valid, otherwise a new one with `prefix`."""
    # of random, which asks the system for nothing: the id names a request, and opens nothing
    return given if given and _VALID.fullmatch(given) else f"{prefix}{random.getrandbits(128):032x}"


def bearer_key(authorization: str) -> str:
    """The key in the value of an Authorization header; "" if it has none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def is_valid(key: bytes, valid: Iterable[str]) -> bool:
    # every key is compared, in constant time, so that the time reveals nothing about them
    same = [hmac.compare_digest(key, one.encode()) for one in valid]
    return any(same)


def read_json(body: bytes) -> Any:
    """Values that can be encoded again. Raises RecursionError, and ValueError with a sentence."""
    text = body.decode(json.detect_encoding(body))  # json's own decoder lets raw halves pass
    value = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant)
    if HALF.search(text) is None:
        return value
    paired = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(paired.decode("utf-16", "replace"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class JsonFormatter(logging.Formatter):
    """`extra={"fields": {...}}` adds fields to a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Pace:
    """For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid_s: dict[str, float] = {}  # when an address's refusals count no more

    def late_s(self, address: str) -> float:
        """The seconds by which a further refusal of this address is to be late."""
        now_s, ahead_s = self._clock(), AT_ONCE / PER_S
        paid_s = max(now_s, self._paid_s.pop(address, 0.0)) + 1 / PER_S
        self._paid_s[address] = paid_s = min(paid_s, now_s + ahead_s + MOST_LATE_S)
        if len(self._paid_s) > MOST_ADDRESSES:
            del self._paid_s[next(iter(self._paid_s))]
        return max(0.0, paid_s - now_s - ahead_s)
