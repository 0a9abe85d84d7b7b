"""Whole events of a server-sent event stream. Pure. Source: WHATWG HTML, 9.2.6."""

import re

# An event ends at a blank line, in any of the three line endings.
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
# A longer event is passed on in parts, so that memory is bounded.
MAX_EVENT_BYTES = 1 << 20


def whole_events(data: bytes) -> tuple[bytes, bytes]:
    """Splits bytes into complete events and the beginning of the next one.

    The client gets only complete events, so that an error event can follow at any time."""
    if data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        return data, b""
    if len(data) > MAX_EVENT_BYTES:
        return data, b""
    end = 0
    for match in _BLANK_LINE.finditer(data):
        end = match.end()
    return data[:end], data[end:]
