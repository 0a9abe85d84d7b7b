"""API keys: `Authorization: Bearer KEY`. No I/O."""

from __future__ import annotations

import hmac
from collections.abc import Iterable


def bearer_key(authorization: str) -> str:
    """The key in the value of an Authorization header; "" if it has none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def is_valid(key: bytes, valid: Iterable[str]) -> bool:
    # every key is compared, in constant time, so that the time reveals nothing about them
    same = [hmac.compare_digest(key, one.encode()) for one in valid]
    return any(same)
