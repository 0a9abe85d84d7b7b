"""Headers that server and router read alike: `Authorization: Bearer KEY`, and `X-Request-Id`, under
which logs, traces and responses show a request. No I/O."""

from __future__ import annotations

import hmac
import re
import uuid
from collections.abc import Iterable

HEADER = "X-Request-Id"
_VALID = re.compile(r"[\x21-\x7e]{1,128}")  # safe in a log line and in a header


def request_id(given: str | None, prefix: str = "") -> str:
    """The client's id if it is valid, otherwise a new one with `prefix`."""
    return given if given and _VALID.fullmatch(given) else f"{prefix}{uuid.uuid4().hex}"


def bearer_key(authorization: str) -> str:
    """The key in the value of an Authorization header; "" if it has none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def is_valid(key: bytes, valid: Iterable[str]) -> bool:
    # every key is compared, in constant time, so that the time reveals nothing about them
    same = [hmac.compare_digest(key, one.encode()) for one in valid]
    return any(same)
