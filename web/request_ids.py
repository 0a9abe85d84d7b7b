"""`X-Request-Id`: the id under which logs, traces and responses show a request."""

from __future__ import annotations

import re
import uuid

HEADER = "X-Request-Id"
_VALID = re.compile(r"[\x21-\x7e]{1,128}")  # safe in a log line and in a header


def request_id(given: str | None, prefix: str = "") -> str:
    """The client's id if it is valid, otherwise a new one with `prefix`."""
    return given if given and _VALID.fullmatch(given) else f"{prefix}{uuid.uuid4().hex}"
