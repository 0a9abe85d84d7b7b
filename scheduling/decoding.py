"""Which requests are in decode."""

from __future__ import annotations

from seams import Advance, Request, View, all_that_is_left

MOST_AT_ONCE = 16  # tokens that an iteration yields; more are a prompt that is computed again


def divided(view: View) -> tuple[list[Advance], list[Request]]:
    """The decodes with what is left of each, and the requests with a part of a prompt left."""
    steps = all_that_is_left(view.resident)
    decoding = [step for step in steps if step[1] == 1 or is_decoding(step[0])]
    return decoding, [r for r, more in steps if more > 1 and not is_decoding(r)]


def is_decoding(request: Request) -> bool:
    """Whether these are what the newest iteration yielded: one token, or some more that a
    constraint forced."""
    more = request.known - request.computed
    return more == 1 or (1 < more <= MOST_AT_ONCE and request.computed >= request.prompt_tokens)
