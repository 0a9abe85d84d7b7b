"""JSON as clients send it, and as a line of a log.

An escape may name half of a surrogate pair (`"\\ud800"`). That is valid JSON, but no text: Python
cannot encode it, and a database or a header does not take it. Each half becomes U+FFFD, in names as
in values, as it would in a decoder that replaces errors.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any, NoReturn

HALF = re.compile(r"\\u[dD][89a-fA-F]")


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
