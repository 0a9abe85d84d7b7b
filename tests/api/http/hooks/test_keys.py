"""Who may ask."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from app import create_app
from options import OptionError
from serving.config import Config
from tests.support.dialects import PATHS, refused
from tests.support.hash_app import byte_tokenizer, load

KEYS = "first-key,second-key"


@pytest.fixture(scope="module")
def guarded() -> FlaskClient:
    return create_app(Config(mode="dynamic", api_key=KEYS), load, byte_tokenizer()).test_client()


@pytest.mark.parametrize(
    "path", [*PATHS, "/stats", "/v1/models", "/info", "/nowhere", "/detokenize"]
)
@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first-key", "first-key",
     "Bearer first-key,second-key", "Bearer first-ke", "Bearer é"],
)  # fmt: skip
def test_without_a_key_every_path_is_closed(
    guarded: FlaskClient, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    for answer in (guarded.get(path, headers=headers), guarded.post(path, headers=headers)):
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        error = answer.get_json()["error"]
        if isinstance(error, dict):
            assert error["code"] == "invalid_api_key"
            error = error["message"]
        else:
            assert not path.startswith(("/v1", "/detokenize"))
        assert "--api-key" in error


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer second-key"])
def test_each_key_opens_and_none_is_shown(guarded: FlaskClient, header: str) -> None:
    shown = guarded.get("/stats", headers={"Authorization": header})
    assert shown.status_code == 200
    assert b"-key" not in shown.data
    assert shown.get_json()["options"]["api_key"] == "(set)"
    wrong = guarded.get("/detokenize", headers={"Authorization": header})
    refused(wrong, "/v1", 405)
    assert guarded.get("/health").status_code == 503, "open to all; no model is loaded here"


@pytest.mark.parametrize("keys", ["", ",", "a,", ",a", "a b", "clé"])
def test_keys_that_cannot_be_sent_are_refused_without_showing_them(keys: str) -> None:
    with pytest.raises(OptionError, match="--api-key") as error:
        Config(mode="dynamic", api_key=keys)
    assert "clé" not in str(error.value)


def test_keys_survive_the_way_through_the_environment() -> None:
    config = Config(mode="dynamic", api_key=KEYS)
    assert Config.from_environment(config.as_environment()).keys == ["first-key", "second-key"]
