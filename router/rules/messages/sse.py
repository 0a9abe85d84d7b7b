"""Whole events of a server-sent event stream. Pure. Source: WHATWG HTML, 9.2.5 and 9.2.6."""

import re

_LINE_END = rb"(?:\r\n|\n|\r)"
# An event ends at a blank line. The `\r` of a `\r\n` is no line end of its own.
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))" + _LINE_END)
_COMMENTS = re.compile(rb"(?:(?::[^\r\n]*)?" + _LINE_END + rb")*")
# A longer event is passed on in parts, so that memory is bounded.
MAX_EVENT_BYTES = 1 << 20


def whole_events(data: bytes) -> tuple[bytes, bytes]:
    """Splits bytes into complete events, with the comment lines that follow them (servers keep
    connections alive with these), and the beginning of the next event.

    The client gets only these, so that an error event can follow at any time."""
    if data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        return data, b""
    if len(data) > MAX_EVENT_BYTES:
        return data, b""
    end = 0
    for match in _BLANK_LINE.finditer(data):
        end = match.end()
    comments = _COMMENTS.match(data, end)
    assert comments is not None  # it matches nothing, too
    end = comments.end()
    return data[:end], data[end:]


def is_whole(data: bytes) -> bool:
    """Whether an error event may follow these bytes, which `whole_events` gave."""
    return len(data) <= MAX_EVENT_BYTES or data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
