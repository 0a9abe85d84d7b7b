"""Which options accept requests that web pages of others send, and how they are refused."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from app import create_app
from options import OptionError
from serving.config import Config
from tests.server.hash_app import byte_tokenizer, load
from web.browsers import own_names

FRIEND, APP, EVIL = "https://friend.example", "chrome-extension://abc", "http://evil.example"


def client(**options: object) -> FlaskClient:
    config = Config(mode="dynamic", **options)  # type: ignore[arg-type]
    return create_app(config, load, byte_tokenizer()).test_client()


def test_a_server_accepts_the_names_of_its_options() -> None:
    named = client(allow_hosts=("server-a", ".svc"), host="llm.lan")
    statuses = {
        host: named.get("/info", base_url=f"http://{host}").status_code
        for host in ("server-a:8500", "eb.default.svc", "llm.lan:8500", "evil.example", "svc.evil")
    }
    assert [*statuses.values()] == [200, 200, 200, 403, 403]


def test_with_a_key_every_host_is_accepted() -> None:
    headers = {"Authorization": "Bearer sesame"}
    answer = client(api_key="sesame").get("/info", base_url=EVIL, headers=headers)
    assert answer.status_code == 200


def test_with_a_key_a_start_asks_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> str:
        raise AssertionError("the resolver was asked")

    monkeypatch.setattr("socket.getfqdn", asked)
    own_names.cache_clear()
    client(api_key="sesame")


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ({}, []),
        ({"cors_allow_origin": f"{FRIEND},{APP}"}, [FRIEND, APP]),
        ({"cors_allow_origin": "*"}, []),
        ({"cors_allow_origin": "*", "api_key": "sesame"}, [FRIEND, APP, EVIL]),
        ({"api_key": "sesame"}, []),
    ],
)
def test_pages_that_may_make_changes_are_those_of_the_cors_option(
    options: dict[str, str], accepted: list[str]
) -> None:
    asked = client(**options)
    for origin in (FRIEND, APP, EVIL):
        headers = {
            "Origin": origin,
            "Sec-Fetch-Site": "cross-site",
            "Authorization": "Bearer sesame",
        }
        status = asked.post("/stats/reset", headers=headers).status_code
        assert status == (200 if origin in accepted else 403)


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/inference", {"error"}),
        ("/generate", {"error", "error_type"}),
        ("/v1/completions", {"message", "type", "param", "code"}),
        ("/v1/files", {"message", "type", "param", "code"}),
        ("/watch/events", {"error"}),
        ("/metrics", {"error"}),
        ("/health", {"error"}),
        ("/nowhere", {"error"}),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_refusal_has_the_shape_of_its_api(path: str, shape: set[str], method: str) -> None:
    """DNS rebinding: to the server it is a request with the page's name as its host."""
    answer = client().open(path, method=method, base_url=EVIL)
    assert answer.status_code == 403
    told = answer.get_json()
    assert set(told["error"] if "code" in shape else told) == shape
    kind = told.get("error_type") or (told["error"]["type"] if "code" in shape else None)
    assert kind in {None, "forbidden", "permission_error"}
    for word in ("evil.example", "localhost", "--allow-hosts"):
        assert word in answer.get_data(as_text=True)


def test_a_wrong_name_is_refused_at_start() -> None:
    with pytest.raises(SystemExit):
        Config.from_args(["dynamic", "--allow-hosts", "http://a"], {})
    with pytest.raises(
        OptionError, match=r"--allow-hosts \(EB_ALLOW_HOSTS\): 'a:80' is not a host"
    ):
        Config.from_environment({"EB_MODE": "dynamic", "EB_ALLOW_HOSTS": "a:80"})
    config = Config.from_args(["dynamic", "--allow-hosts", "a, b"], {})
    assert Config.from_environment(config.as_environment()).allow_hosts == ("a", "b")
