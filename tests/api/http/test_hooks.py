"""Who may ask, by key, host and origin, and what the browser of a page of another origin gets to
know. What host and origin decide is tested in `tests/web/`."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app
from options import OptionError
from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import PATHS, refused
from tests.support.hash_app import byte_tokenizer, load

FRIEND, APP, EVIL = "https://friend.example", "chrome-extension://abc", "http://evil.example:8080"
ALLOWED = [f"Access-Control-Allow-{name}" for name in ("Origin", "Methods", "Headers")]
PREFLIGHT = {  # as OpenAI's SDK asks, which sends its platform with every request
    "Access-Control-Request-Method": "DELETE",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-arch",
}
KEYS = "first-key,second-key"
KEY = {"Authorization": "Bearer first-key"}


@functools.cache
def client(allowed: str | None = None, **options: object) -> FlaskClient:
    config = Config("dynamic", cors_allow_origin=allowed, **options)  # type: ignore[arg-type]
    return create_app(config, load, byte_tokenizer()).test_client()


# --- keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first-key", "first-key",
     "Bearer first-key,second-key", "Bearer first-ke", "Bearer é"],
)  # fmt: skip
def test_without_a_key_every_path_is_closed(header: str | None) -> None:
    guarded = client(api_key=KEYS)
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
def test_each_key_opens_and_none_is_shown(header: str) -> None:
    guarded = client(api_key=KEYS)
    shown = guarded.get("/stats", headers={"Authorization": header})
    assert shown.status_code == 200
    assert b"-key" not in shown.data
    assert shown.get_json()["options"]["api_key"] == "(set)"
    refused(guarded.get("/detokenize", headers={"Authorization": header}), "/v1", 405)
    assert guarded.get("/health").status_code == 503, "open to all; no model is loaded here"


def test_a_key_that_no_client_could_send_is_refused_at_start_and_not_shown() -> None:
    for keys in ("", ",", "a,", ",a", "a b", "clé"):
        with pytest.raises(OptionError, match="api-key") as error:
            Config("dynamic", api_key=keys)
        assert "clé" not in str(error.value)


# --- names of hosts -------------------------------------------------------------------------


def test_a_server_accepts_the_names_of_its_options() -> None:
    named = client(allow_hosts=("server-a", ".svc"), host="llm.lan")
    statuses = {
        host: named.get("/info", base_url=f"http://{host}").status_code
        for host in ("server-a:8500", "eb.default.svc", "llm.lan:8500", "evil.example", "svc.evil")
    }
    assert [*statuses.values()] == [200, 200, 200, 403, 403]


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
    """A preflight request is granted to those that may read."""
    asked = client(**options)
    for origin in (FRIEND, APP, EVIL):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", **KEY}
        status = asked.post("/stats/reset", headers=headers).status_code
        assert status == (200 if origin in changed_by else 403)
        reads = read_by.get(origin)
        for method in ("GET", "OPTIONS"):
            headers = {"Origin": origin, **KEY, **PREFLIGHT}
            answer = asked.open("/info", method=method, headers=headers)
            granted = PREFLIGHT if reads and method == "OPTIONS" else {}
            told = [answer.headers[name] for name in ALLOWED if name in answer.headers]
            assert told == ([reads, *granted.values()] if reads else [])
            varies = options.get("allowed", "*") != "*"
            assert set(answer.vary) == {*granted} | ({"Origin"} if varies else set())


# --- what routers are told ------------------------------------------------------------------


def test_whoever_may_generate_is_told_the_load_that_the_metrics_show() -> None:
    with serving(Config("dynamic", api_key=KEYS)) as keyed:
        asked = {"prompt": "a", "max_tokens": 2}
        answer = keyed.post("/v1/completions", json=asked, headers=KEY)
        assert answer.status_code == 200
        told = dict(pair.split("=") for pair in answer.headers["X-Engine-Load"].split())
        assert {*told} == {"waiting", "running", "free_blocks"}
        shown = keyed.get("/metrics", headers=KEY).get_data(as_text=True)
        blocks = re.findall(r'num_gpu_blocks="(\d+)"', shown)[0]
        assert 0 < int(told["free_blocks"]) <= int(blocks)
        assert told["waiting"] == "0"
        assert int(told["running"]) <= 1
        for other in (
            keyed.post("/v1/completions", json=asked),
            keyed.get("/v1/models", headers=KEY),
            keyed.get("/health"),
        ):
            assert "X-Engine-Load" not in other.headers
