"""The lines of a batch's files: how bytes become lines, and which lines are a job."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deferred import lines
from deferred.entities import LineError, NewItem
from deferred.lines import ENDPOINTS, MOST_CUSTOM_ID, Envelopes, split

MOST = 40
ENVELOPE: dict[str, object] = {"custom_id": "a", "method": "POST", "url": ENDPOINTS[0], "body": {}}


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_lines_are_the_same_however_the_bytes_come(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    expected = [
        (number, line[: MOST + 1])
        for number, line in enumerate(data.split(b"\n"), start=1)
        if line[: MOST + 1].strip()
    ]
    assert list(split(pieces, MOST)) == expected
    endless = (b"x" * 1000 for _ in range(1000))  # in bounded memory
    assert list(split(endless, MOST)) == [(1, b"x" * (MOST + 1))]


def judged(mark: bytes = b"", **changes: object) -> NewItem | LineError:
    envelopes = Envelopes(ENDPOINTS[0], ["m", "alias"], 10_000)
    return envelopes.judge(7, mark + json.dumps({**ENVELOPE, **changes}).encode())


def test_a_valid_line_keeps_its_body_unchanged() -> None:
    body = {"model": "m", "prompt": "é", "n": 10**30, "f": 0.1, "unknown": [None, True]}
    for mark in (b"", b"\xef\xbb\xbf"):  # before the first character, and no part of it
        item = judged(mark, custom_id="é\ufffd", body=body)
        assert isinstance(item, NewItem)
        assert (item.line, item.custom_id) == (7, "é\ufffd")
        assert json.loads(item.body) == body


@pytest.mark.parametrize("id", ["", "x" * (MOST_CUSTOM_ID + 1), "a\0b", "\ud800", 1, ["a"]])
def test_a_custom_id_is_a_text_that_every_store_can_hold(id: object) -> None:
    fault = judged(custom_id=id)
    assert isinstance(fault, LineError)
    assert (fault.code, fault.param, fault.line) == ("invalid_custom_id", "custom_id", 7)


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        *[({name: None}, "missing_required_parameter", name) for name in ENVELOPE],
        *[({name: ...}, "missing_required_parameter", name) for name in ENVELOPE],
        ({"method": "GET"}, "invalid_method", "method"),
        ({"url": ENDPOINTS[1]}, "url_mismatch", "url"),
        ({"body": []}, "invalid_body", "body"),
        ({"body": {"stream": True}}, "stream_not_supported", "body.stream"),
    ],
)
def test_a_fault_is_named_with_its_field(changes: dict[str, object], code: str, param: str) -> None:
    given = {name: value for name, value in {**ENVELOPE, **changes}.items() if value is not ...}
    fault = Envelopes(ENDPOINTS[0], ["m"], 10_000).judge(7, json.dumps(given).encode())
    assert isinstance(fault, LineError)
    assert (fault.code, fault.param, fault.line) == (code, param, 7)


def test_all_lines_of_a_file_name_one_model() -> None:
    envelopes = Envelopes(ENDPOINTS[0], ["m", "alias"], 10_000)
    for model, code in (("m", None), ("alias", "model_mismatch"), ("m", None)):
        verdict = envelopes.judge(1, json.dumps({**ENVELOPE, "body": {"model": model}}).encode())
        assert getattr(verdict, "code", None) == code


def test_a_line_may_name_the_model_by_any_of_its_names() -> None:
    for body in ({"model": "alias"}, {"prompt": "x"}):  # none means the one that is served
        assert isinstance(judged(body=body), NewItem)
    fault = judged(body={"model": "other", "prompt": "x"})
    assert isinstance(fault, LineError)
    assert fault.code == "model_not_found"
    assert fault.message.endswith('allowed: "m", "alias"')


@example(b"[" * 10**5)
@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body", "model"]), inner),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_line_is_judged_and_never_an_exception(line: bytes) -> None:
    verdict = Envelopes(ENDPOINTS[0], ["m"], 10**6).judge(1, line)
    assert isinstance(verdict, NewItem | LineError)
    if isinstance(verdict, LineError):
        assert verdict.message
        assert len(verdict.message) < 500


def test_a_line_that_was_not_executed_says_why() -> None:
    told = json.loads(lines.unrun("batch_1", 3, "a", "expired"))
    assert (told["custom_id"], told["response"]) == ("a", None)
    assert told["error"]["code"] == "batch_expired"
