"""Which upstream keeps a stored response: its id says so. Pure.

The router sends each upstream a mark, which depends on the upstream's URL alone, and the upstream
puts it into the ids of its responses. So a router that was restarted, or another one, finds them.
"""

from __future__ import annotations

import hashlib
import re

PATH = "/v1/responses"
MARK_HEADER = "X-Upstream-Mark"
_MARKED = re.compile(r"resp_([0-9a-f]{8})_[0-9a-f]+")


def mark_of(url: str) -> str:
    return hashlib.blake2b(url.encode(), digest_size=4).hexdigest()


def mark_in(response_id: str) -> str | None:
    """None if the response was made without a router."""
    found = _MARKED.fullmatch(response_id)
    return found[1] if found else None


def id_in(path: str) -> str:
    """The response of a path below `PATH`."""
    return path.removeprefix(PATH + "/").partition("/")[0]
