"""What a browser receives for pages of other origins."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from app import create_app
from options import OptionError
from serving.config import Config
from tests.server.hash_app import byte_tokenizer, load

ALLOW = "Access-Control-Allow-Origin"
HERE, THERE = "https://here.example", "http://there.example:8080"


def client(allowed: str | None) -> FlaskClient:
    config = Config(mode="dynamic", cors_allow_origin=allowed)
    return create_app(config, load, byte_tokenizer()).test_client()


def told(allowed: str | None, origin: str, method: str = "GET") -> str | None:
    return (
        client(allowed).open("/info", method=method, headers={"Origin": origin}).headers.get(ALLOW)
    )


def test_without_the_option_no_page_of_another_origin_may() -> None:
    assert told(None, HERE) is None
    assert told(None, HERE, "OPTIONS") is None


def test_a_star_lets_every_page() -> None:
    assert told("*", HERE) == "*"


def test_each_listed_origin_is_returned_itself_and_others_nothing() -> None:
    allowed = f"{HERE},{THERE}"
    assert [told(allowed, origin) for origin in (HERE, THERE)] == [HERE, THERE]
    assert told(allowed, "https://elsewhere.example") is None


@pytest.mark.parametrize(
    ("path", "method"),
    [("/v1/chat/completions", "POST"), ("/v1/files/file-1", "DELETE"), ("/inference", "POST")],
)
def test_a_preflight_request_is_granted(path: str, method: str) -> None:
    """The headers are those of OpenAI's SDK, which sends its platform with every request."""
    headers = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    answer = client(HERE).options(path, headers={"Origin": HERE, **asked})
    assert answer.status_code == 200
    assert answer.headers[ALLOW] == HERE
    assert answer.headers["Access-Control-Allow-Methods"] == method
    assert answer.headers["Access-Control-Allow-Headers"] == headers
    assert set(answer.vary) == {"Origin", *asked}


def test_a_page_that_is_not_allowed_is_promised_nothing() -> None:
    asked = {"Access-Control-Request-Method": "POST"}
    answer = client(HERE).options("/inference", headers={"Origin": THERE, **asked})
    assert not any(name.startswith("Access-Control") for name, _ in answer.headers)


def test_an_error_is_readable_for_the_page_too() -> None:
    answer = client(HERE).post("/generate", data=b"", headers={"Origin": HERE})
    assert answer.status_code == 415
    assert answer.headers[ALLOW] == HERE


@pytest.mark.parametrize("wrong", ["here.example", "https://here.example/page", "*,x", "a b"])
def test_an_invalid_origin_is_refused_at_start(wrong: str) -> None:
    with pytest.raises(OptionError, match="--cors-allow-origin"):
        Config(mode="dynamic", cors_allow_origin=wrong)
