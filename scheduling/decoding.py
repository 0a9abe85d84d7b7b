"""Which requests are in decode."""

from __future__ import annotations

from seams import Request

MOST_AT_ONCE = 16  # tokens that an iteration yields; more are a prompt that is computed again


def left(request: Request) -> int:
    """Tokens to compute before the next one can be drawn."""
    return request.known - request.computed


def is_decoding(request: Request) -> bool:
    """Whether these are what the newest iteration yielded: one token, or some more that a
    constraint forced."""
    more = left(request)
    return more == 1 or (1 < more <= MOST_AT_ONCE and request.computed >= request.prompt_tokens)
