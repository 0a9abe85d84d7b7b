"""What may be passed on of a stream that is still arriving."""

import pytest

from router.rules.messages.sse import whole_events


@pytest.mark.parametrize(
    ("data", "ready"),
    [
        (b": ping\n", b": ping\n"),
        (b"data: 1\n\n: ping\r\n", b"data: 1\n\n: ping\r\n"),
        (b"data: 1\n\r\ndata: 2\n", b"data: 1\n\r\n"),
        (b"data: 1\r\n\ndata: 2\r\n", b"data: 1\r\n\n"),
        (b"data: 1\r\n", b""),
        (b": pin", b""),
        (b"data: 1\n: ping\n", b""),
    ],
)
def test_whole_events_and_the_comments_after_them_pass_at_once(data: bytes, ready: bytes) -> None:
    assert whole_events(data) == (ready, data[len(ready) :])
