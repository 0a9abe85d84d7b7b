"""Which headers cross the router: what RFC 9110 and WSGI reserve does not, all else does."""

from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from router.rules.messages.headers import to_client, to_upstream

# RFC 9110, 7.6.1, and the fields of proxies that are meant for the next hop only
HOP_BY_HOP = [
    *("Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding"),
    *("Upgrade", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info"),
]
FORWARDING = [
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Prefix",
    "x-forwarded-proto",
    "X-Real-IP",
]
SIGNALS = ["X-User-Id", "X-Program-Id", "X-Priority"]  # for the servers' policies
NAMES = st.text("abcXYZ-_", min_size=1, max_size=8).filter(lambda name: name.strip("-_"))
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([*HOP_BY_HOP, *FORWARDING, *SIGNALS, "SCRIPT_NAME", "PATH_INFO"]) | NAMES,
        NAMES,
    )
)


def sent_on(headers: CIMultiDict[str]) -> list[tuple[str, str]]:
    out = to_upstream(headers, "id", None, drop_authorization=False)
    assert (out.popone("Accept-Encoding"), out.popone("X-Request-Id")) == ("identity", "id")
    return list(out.items())


def lower(names: list[str]) -> set[str]:
    return {name.lower() for name in names}


@given(HEADERS)
def test_a_server_gets_all_headers_but_those_of_the_hop_of_wsgi_and_of_proxies(
    sent: list[tuple[str, str]],
) -> None:
    named = lower([value for name, value in sent if name == "Connection"])
    dropped = lower(HOP_BY_HOP) | lower(FORWARDING) | named
    assert sent_on(CIMultiDict(sent)) == [
        (name, value) for name, value in sent if name.lower() not in dropped and "_" not in name
    ]


@given(HEADERS)
def test_a_client_gets_all_headers_but_those_of_the_hop(sent: list[tuple[str, str]]) -> None:
    named = lower([value for name, value in sent if name == "Connection"])
    out = to_client(CIMultiDict(sent), "id", "http://a")
    assert (out.popone("X-Request-Id"), out.popone("X-Upstream-Origin")) == ("id", "http://a")
    dropped = lower(HOP_BY_HOP) | named
    assert list(out.items()) == [(n, v) for n, v in sent if n.lower() not in dropped]


def test_every_connection_header_names_headers_of_the_hop() -> None:
    sent = CIMultiDict(
        [("Connection", "keep-alive, X-One"), ("connection", "x-two"), ("X-One", "1")]
    )
    sent.add("X-Two", "2")
    sent.add("X-Three", "3")
    assert sent_on(sent) == [("X-Three", "3")]
