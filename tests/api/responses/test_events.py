"""The kept events of responses: bounded, and one stream of each response at a time."""

from __future__ import annotations

from api.responses.shapes import ArgumentsDelta
from api.responses.stored.events import EventLogs, Following, encoded


def event(number: int) -> ArgumentsDelta:
    return {
        "type": "response.function_call_arguments.delta",
        "sequence_number": number,
        "item_id": "i",
        "output_index": 0,
        "delta": "x",
    }


def present(following: Following) -> list[bytes]:
    """What may be sent now."""
    found = []
    for told in following.read():
        if told is None:
            break
        found.append(told)
    return found


def opened(logs: EventLogs, response_id: str) -> Following:
    logs.open(response_id)
    following = logs.follow(response_id, 0)
    assert following is not None
    return following


def test_a_second_stream_ends_the_first() -> None:
    logs = EventLogs()
    first = opened(logs, "a")
    second = logs.follow("a", 0)
    logs.add("a", event(0))
    assert first.updated.is_set()
    assert list(first.read()) == []
    assert second is not None
    assert present(second) == [encoded(event(0))]


def test_the_oldest_events_are_dropped_and_their_stream_says_so() -> None:
    size = len(encoded(event(0)))
    logs = EventLogs(most_bytes=3 * size)
    following = opened(logs, "old")
    logs.add("old", event(0))
    logs.open("new")
    for number in range(3):
        logs.add("new", event(number))
    (told,) = following.read()
    assert told is not None
    assert b'"error"' in told
    assert logs.follow("old", 0) is None
    logs.add("old", event(1))
    kept = logs.follow("new", 0)
    assert kept is not None
    assert len(present(kept)) == 3
    logs.add("new", event(3))
    assert logs.follow("new", 0) is None, "it alone is too long"
