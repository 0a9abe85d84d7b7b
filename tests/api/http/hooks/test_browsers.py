"""Pages of other origins: what they may ask of a server, and what their browser gets to know."""

from __future__ import annotations

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
KEY = {"Authorization": "Bearer sesame"}


def client(allowed: str | None = None, **options: object) -> FlaskClient:
    config = Config("dynamic", cors_allow_origin=allowed, **options)  # type: ignore[arg-type]
    return create_app(config, load, byte_tokenizer()).test_client()


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
    answer = client(api_key="sesame").get("/info", base_url=EVIL, headers=KEY)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [*((path, "permission_error") for path in ("/v1/files", *PATHS[1:4])),
     (PATHS[4], "forbidden"),
     *((path, None) for path in (PATHS[0], "/watch/events", "/metrics", "/health", "/nowhere"))],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_refusal_has_the_shape_of_its_api(path: str, kind: str | None, method: str) -> None:
    """DNS rebinding: to the server it is a request with the page's name as its host."""
    answer = client().open(path, method=method, base_url=EVIL)
    message = refused(answer, path if kind else PATHS[0], 403)
    told: Any = answer.get_json()
    assert kind is None or kind == (told.get("error_type") or told["error"]["type"])
    for word in ("evil.example", "localhost", "--allow-hosts"):
        assert word in message


def test_a_wrong_name_is_refused_at_start() -> None:
    with pytest.raises(SystemExit):
        Config.from_args(["dynamic", "--allow-hosts", "http://a"], {})
    with pytest.raises(
        OptionError, match=r"--allow-hosts \(EB_ALLOW_HOSTS\): 'a:80' is not a host"
    ):
        Config.from_environment({"EB_MODE": "dynamic", "EB_ALLOW_HOSTS": "a:80"})
    config = Config.from_args(["dynamic", "--allow-hosts", "a, b"], {})
    assert Config.from_environment(config.as_environment()).allow_hosts == ("a", "b")


# --- origins of pages -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "read_by", "changed_by"),
    [
        ({}, {}, []),
        ({"allowed": f"{FRIEND},{APP}"}, {FRIEND: FRIEND, APP: APP}, [FRIEND, APP]),
        ({"allowed": "*"}, dict.fromkeys((FRIEND, APP, EVIL), "*"), []),
        (
            {"allowed": "*", "api_key": "sesame"},
            dict.fromkeys((FRIEND, APP, EVIL), "*"),
            [FRIEND, APP, EVIL],
        ),
        ({"api_key": "sesame"}, {}, []),
    ],
)
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


@pytest.mark.parametrize(
    ("path", "method"),
    [("/v1/chat/completions", "POST"), ("/v1/files/file-1", "DELETE"), ("/inference", "POST")],
)
def test_a_preflight_request_is_granted_to_the_pages_that_are_allowed(
    path: str, method: str
) -> None:
    """The headers are those of OpenAI's SDK, which sends its platform with every request."""
    headers = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    answer = client(FRIEND).options(path, headers={"Origin": FRIEND, **asked})
    assert answer.status_code == 200
    assert answer.headers[ALLOW] == FRIEND
    assert answer.headers["Access-Control-Allow-Methods"] == method
    assert answer.headers["Access-Control-Allow-Headers"] == headers
    assert set(answer.vary) == {"Origin", *asked}
    answer = client(FRIEND).options(path, headers={"Origin": EVIL, **asked})
    assert not any(name.startswith("Access-Control") for name, _ in answer.headers)


def test_an_error_is_readable_for_the_page_too() -> None:
    answer = client(FRIEND).post("/generate", data=b"", headers={"Origin": FRIEND})
    assert answer.status_code == 415
    assert answer.headers[ALLOW] == FRIEND


@pytest.mark.parametrize("wrong", ["here.example", "https://here.example/page", "*,x", "a b"])
def test_an_invalid_origin_is_refused_at_start(wrong: str) -> None:
    with pytest.raises(OptionError, match="--cors-allow-origin"):
        Config(mode="dynamic", cors_allow_origin=wrong)
