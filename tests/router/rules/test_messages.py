"""What of a message crosses the router, and what it reads: headers (RFC 9110), bodies (against the
standard library's JSON), and events of a stream that is still arriving."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.rules.messages.headers import Headers, to_client, to_upstream
from router.rules.messages.request_body import parse_body, renamed
from router.rules.messages.sse import whole_events

# RFC 9110, 7.6.1, and the fields of proxies that are meant for the next hop only
HOP_BY_HOP = [
    "Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade",
    "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info",
]  # fmt: skip
FORWARDING = [
    "Forwarded", "X-Forwarded-For", "X-Forwarded-Prefix", "x-forwarded-proto", "X-Real-IP"
]  # fmt: skip
SIGNALS = ["X-User-Id", "X-Program-Id", "X-Priority"]  # for the servers' policies
NAMES = st.text("abcXYZ-_", min_size=1, max_size=8).filter(lambda name: name.strip("-_"))
SENT = st.sampled_from([*HOP_BY_HOP, *FORWARDING, *SIGNALS, "SCRIPT_NAME", "PATH_INFO"]) | NAMES
HEADERS = st.lists(st.tuples(SENT, st.lists(NAMES, min_size=1, max_size=2).map(", ".join)))


def headers(sent: list[tuple[str, str]]) -> Headers:
    return Headers([(name.encode(), value.encode()) for name, value in sent])


def lower(names: list[str]) -> set[str]:
    return {name.lower() for name in names}


@given(HEADERS)
def test_all_headers_cross_but_those_of_the_hop_and_to_servers_of_wsgi_and_of_proxies(
    sent: list[tuple[str, str]],
) -> None:
    named = lower(", ".join(value for name, value in sent if name == "Connection").split(", "))
    kept = [(n, v) for n, v in sent if n.lower() not in lower(HOP_BY_HOP) | named]
    own = [("X-Request-Id", "id"), ("X-Upstream-Origin", "http://a")]
    assert to_client(headers(sent), "id", "http://a") == headers(kept + own).pairs
    kept = [(n, v) for n, v in kept if n.lower() not in lower(FORWARDING) and "_" not in n]
    own = [("Accept-Encoding", "identity"), ("X-Request-Id", "id")]
    out = to_upstream(headers(sent), "id", None, drop_authorization=False)
    assert out == headers(kept + own).pairs


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.none() | st.text(),
        "service_tier": st.sampled_from(["flex", "auto", None, 1, {}]),
        "class": st.sampled_from(["deferred", "immediate", ["deferred"]]),
        "prompt": NESTED,
        "messages": NESTED,
        "other": NESTED,
    },
)


@given(FIELDS, st.booleans(), st.sampled_from([None, 2]))
def test_a_body_is_read_as_the_standard_library_reads_it(
    fields: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    try:
        body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:  # a lone surrogate is no text that could be sent
        return
    read = parse_body(body)
    assert read.model == fields.get("model")
    deferred = fields.get("service_tier") == "flex" or fields.get("class") == "deferred"
    assert read.deferred == deferred


ESCAPES = st.sampled_from(
    [r"\ud800", r"\udfff", r"\uD83D\ude00", r"\\", r"\n", r"\u00e9", "ud800", "udc00", "/"]
)


@given(st.lists(ESCAPES, max_size=8).map("".join), st.lists(ESCAPES, max_size=4).map("".join))
def test_a_body_with_half_a_surrogate_pair_is_read_and_may_get_another_model(
    text: str, name: str
) -> None:
    body = f'{{"model": "m", "{name}": "{text}", "max_tokens": 3}}'.encode()
    read = parse_body(body)
    assert (read.model, read.max_tokens) == ("m", 3)
    given, sent = (json.loads(one) for one in (body, renamed(body, "other")))
    halves_replaced = [
        value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for value in given.values()
        if isinstance(value, str)
    ]
    assert [*sent.values()] == ["other", *halves_replaced[1:], 3]


@pytest.mark.parametrize(
    ("path", "body", "repeatable"),
    [
        ("/v1/chat/completions", b"{}", True),
        ("/v1/engines/a/b/completions", b"{}", True),
        ("/v1/embeddings", b"{}", True),
        ("/generate", b"{}", True),
        ("/v1/responses", b'{"store": false}', True),
        ("/v1/responses", b'{"background": true}', False),
        ("/v1/images/generations", b"{}", False),
        ("/v1/fine_tuning/jobs", b"{}", False),
        ("/v1/vector_stores", b"{}", False),
    ],
)
def test_what_changes_nothing_may_be_sent_again(path: str, body: bytes, repeatable: bool) -> None:
    assert parse_body(body).is_repeatable(path) is repeatable


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
