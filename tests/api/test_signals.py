"""What clients tell policies: the same on every API, and no one can invent urgency."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers

from api.http.errors import ApiError
from api.signals import Signals, signal
from engine.inference import Inference
from requested import Sampling
from tests.support.dialects import PATHS, RESPONSES, body, refused

GOOD: dict[str, Any] = {
    "user": "u",
    "program": "p",
    "priority": 3,
    "ttft_target_s": 0.5,
    "tpot_target_s": 0.05,
    "predicted_tokens": 7,
}
HEADERS = [("X-Priority", "high"), ("X-Priority", "-1"), ("X-Priority", "1_0"),
           ("X-Priority", "9" * 99), ("X-User-Id", "u" * 300)]  # fmt: skip


@pytest.mark.parametrize("path", [path for path in PATHS if path != RESPONSES])
def test_every_api_takes_all_signals_and_refuses_wrong_headers(
    client: FlaskClient, path: str
) -> None:
    headers = {"X-User-Id": "u", "X-Program-Id": "p", "X-Priority": "2"}
    assert client.post(path, json=body(path, **GOOD), headers=headers).status_code == 200
    assert "priority" in refused(client.post(path, json=body(path, priority=-1)), path)
    for header, text in HEADERS:
        refused(client.post(path, json=body(path), headers={header: text}), path)


def signalled(
    owner: str = "", headers: dict[str, str] | None = None, most_urgent: int = 0, **fields: object
) -> Inference:
    inference = Inference([1], 9, Sampling(), 0.0)
    asked = Signals.model_validate(fields)
    signal([inference], asked, Headers(headers or {}), owner, most_urgent)
    return inference


def test_a_field_overrides_its_header() -> None:
    headers = {"X-User-Id": "a", "X-Program-Id": "a", "X-Priority": "5"}
    told, field = signalled(headers=headers), signalled(user="b", program="b", priority=1)
    both = signalled(headers=headers, user="b", program="b", priority=1)
    assert (both.user, both.program, both.priority) == (field.user, field.program, 1)
    assert told.priority == 5
    assert told.user != both.user


def test_with_keys_the_user_is_the_key_and_names_divide_within_it() -> None:
    a, b, other = signalled("key", user="a"), signalled("key", user="b"), signalled("other")
    assert a.user == b.user != other.user
    assert len({a.end_user, b.end_user, other.end_user}) == 3
    assert signalled("key").end_user == signalled().user == 0
    within: list[dict[str, Any]] = [{"owner": "key"}, {"owner": "other"}, {}, {"user": "u"}]
    assert len({signalled(program="p", **of).program for of in within}) == len(within)


def test_no_one_is_more_urgent_than_the_server_allows() -> None:
    assert signalled(most_urgent=-3, priority=-3).priority == -3
    with pytest.raises(ApiError, match=r"priority -4 is more urgent .* -3 or more \(--max-pri"):
        signalled(most_urgent=-3, priority=-4)


def test_a_request_that_outlives_its_prediction_may_generate_as_much_again() -> None:
    assert signalled().predicted_tokens == 9
    assert signalled(predicted_tokens=50).predicted_tokens == 9
    inference = signalled(predicted_tokens=2)
    assert inference.predicted_tokens == 2
    inference.receive([1], 0.0)
    assert inference.predicted_tokens == 2
    inference.receive([1, 1], 0.0)
    assert inference.predicted_tokens == 6
    inference.receive([1, 1], 0.0)
    assert inference.predicted_tokens == 9, "at most max_tokens"
