"""JSON as clients send it: bytes -> Python values that can be written and encoded again.

An escape may name half of a surrogate pair (`"\\ud800"`). That is valid JSON, but no text: Python
cannot encode it, and a database or a header does not take it. Each half becomes U+FFFD, in names as
in values, as it would in a decoder that replaces errors.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

HALF = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(body: bytes) -> Any:
    """Raises ValueError, with a sentence about the bad syntax or encoding, and RecursionError."""
    text = body.decode(json.detect_encoding(body))  # json's own decoder lets raw halves pass
    value = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant)
    if HALF.search(text) is None:
        return value
    paired = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(paired.decode("utf-16", "replace"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
