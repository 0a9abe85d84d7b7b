"""Who may ask, by key, host and origin, and what the browser of a page of another origin gets to
know. What host and origin decide is tested in `tests/web/`."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app
from options import OptionError
from serving.config import Config
from tests.support.dialects import PATHS, refused
from tests.support.hash_app import byte_tokenizer, load
from web.browsers import own_names

FRIEND, APP, EVIL = "https://friend.example", "chrome-extension://abc", "http://evil.example:8080"
ALLOW = "Access-Control-Allow-Origin"
KEYS = "first-key,second-key"
KEY = {"Authorization": "Bearer first-key"}


@functools.cache
def client(allowed: str | None = None, **options: object) -> FlaskClient:
    config = Config("dynamic", cors_allow_origin=allowed, **options)  # type: ignore[arg-type]
    return create_app(config, load, byte_tokenizer()).test_client()


# --- keys -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> FlaskClient:
    return client(api_key=KEYS)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first-key", "first-key",
     "Bearer first-key,second-key", "Bearer first-ke", "Bearer é"],
)  # fmt: skip
def test_without_a_key_every_path_is_closed(guarded: FlaskClient, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    paths = (*PATHS, "/stats", "/v1/models", "/info", "/nowhere", "/detokenize")
    for path, method in itertools.product(paths, ("GET", "POST")):
        answer = guarded.open(path, method=method, headers=headers)
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
    refused(guarded.get("/detokenize", headers={"Authorization": header}), "/v1", 405)
    assert guarded.get("/health").status_code == 503, "open to all; no model is loaded here"


# --- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "name", "wrong"),
    [
        ("--api-key", "api_key", ["", ",", "a,", ",a", "a b", "clé"]),
        ("--cors-allow-origin", "cors_allow_origin",
         ["here.example", "https://here.example/page", "*,x", "a b"]),
        ("--served-model-name", "served_model_name", ["", ",", "a,", "a b", "a,,b"]),
    ],
)  # fmt: skip
def test_what_no_client_could_send_or_mean_is_refused_at_start(
    flag: str, name: str, wrong: list[Any]
) -> None:
    for value in wrong:
        with pytest.raises(OptionError, match=flag) as error:
            Config("dynamic", **{name: value})
        assert "clé" not in str(error.value), "a key is not shown"


def test_keys_and_names_survive_the_way_through_the_environment() -> None:
    config = Config("dynamic", api_key=KEYS, allow_hosts=("a", "b"))
    arrived = Config.from_environment(config.as_environment())
    assert (arrived.keys, arrived.allow_hosts) == (KEYS.split(","), ("a", "b"))
    wrong = r"--allow-hosts \(EB_ALLOW_HOSTS\): 'a:80' is not a host"
    with pytest.raises(OptionError, match=wrong):
        Config.from_environment({"EB_MODE": "dynamic", "EB_ALLOW_HOSTS": "a:80"})


# --- names of hosts -------------------------------------------------------------------------


def test_a_server_accepts_the_names_of_its_options() -> None:
    named = client(allow_hosts=("server-a", ".svc"), host="llm.lan")
    statuses = {
        host: named.get("/info", base_url=f"http://{host}").status_code
        for host in ("server-a:8500", "eb.default.svc", "llm.lan:8500", "evil.example", "svc.evil")
    }
    assert [*statuses.values()] == [200, 200, 200, 403, 403]


def test_with_a_key_every_host_is_accepted_and_no_resolver_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked() -> str:
        raise AssertionError("the resolver was asked")

    monkeypatch.setattr("socket.getfqdn", asked)
    own_names.cache_clear()
    fresh = client.__wrapped__(api_key=KEYS)
    assert fresh.get("/info", base_url=EVIL, headers=KEY).status_code == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [*((path, "permission_error") for path in ("/v1/files", *PATHS[1:4])),
     (PATHS[4], "forbidden"),
     *((path, None) for path in (PATHS[0], "/watch/events", "/metrics", "/health", "/nowhere"))],
)  # fmt: skip
def test_a_refusal_has_the_shape_of_its_api(path: str, kind: str | None) -> None:
    """DNS rebinding: to the server it is a request with the page's name as its host."""
    for method in ("GET", "POST"):
        answer = client().open(path, method=method, base_url=EVIL)
        message = refused(answer, path if kind else PATHS[0], 403)
        told: Any = answer.get_json()
        assert kind is None or kind == (told.get("error_type") or told["error"]["type"])
        for word in ("evil.example", "localhost", "--allow-hosts"):
            assert word in message


# --- origins of pages -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "read_by", "changed_by"),
    [
        ({}, {}, []),
        ({"allowed": f"{FRIEND},{APP}"}, {FRIEND: FRIEND, APP: APP}, [FRIEND, APP]),
        ({"allowed": "*"}, dict.fromkeys((FRIEND, APP, EVIL), "*"), []),
        ({"allowed": "*", "api_key": KEYS}, dict.fromkeys((FRIEND, APP, EVIL), "*"),
         [FRIEND, APP, EVIL]),
        ({"api_key": KEYS}, {}, []),
    ],
)  # fmt: skip
def test_pages_that_may_read_or_make_changes_are_those_of_the_cors_option(
    options: dict[str, Any], read_by: dict[str, str], changed_by: list[str]
) -> None:
    asked = client(**options)
    for origin in (FRIEND, APP, EVIL):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", **KEY}
        status = asked.post("/stats/reset", headers=headers).status_code
        assert status == (200 if origin in changed_by else 403)
        for method in ("GET", "OPTIONS"):
            answer = asked.open("/info", method=method, headers={"Origin": origin, **KEY})
            assert answer.headers.get(ALLOW) == read_by.get(origin)


def test_a_preflight_request_is_granted_to_the_pages_that_are_allowed() -> None:
    """The headers are those of OpenAI's SDK, which sends its platform with every request."""
    headers = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
    page = client(FRIEND)
    for path, method in (("/v1/chat/completions", "POST"), ("/v1/files/file-1", "DELETE")):
        asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
        answer = page.options(path, headers={"Origin": FRIEND, **asked})
        assert answer.status_code == 200
        assert answer.headers[ALLOW] == FRIEND
        assert answer.headers["Access-Control-Allow-Methods"] == method
        assert answer.headers["Access-Control-Allow-Headers"] == headers
        assert set(answer.vary) == {"Origin", *asked}
        answer = page.options(path, headers={"Origin": EVIL, **asked})
        assert not any(name.startswith("Access-Control") for name, _ in answer.headers)
    error = page.post("/generate", data=b"", headers={"Origin": FRIEND})
    assert (error.status_code, error.headers[ALLOW]) == (415, FRIEND), "it is readable, too"
