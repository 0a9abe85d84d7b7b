"""What server and router share: what `Host`, `Origin` and `Sec-Fetch-Site` decide, as tables and
for all origins; JSON that can always be encoded; refusals that are late where one address causes
many."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.browsers import Rules, host_names, own_names
from web.requests import AT_ONCE, MOST_ADDRESSES, MOST_LATE_S, PACED, PER_S, Pace, read_json

KEYS = ("sesame",)
HERE = "127.0.0.1:8500"
FRIEND = "https://friend.example"
CHANGES = ("POST", "PUT", "PATCH", "DELETE", "BREW")
READS = ("GET", "HEAD", "OPTIONS")


rules = functools.partial(
    Rules, keys=(), names=(), origins=(), key_option="--key", origins_option="--origins"
)


@pytest.mark.parametrize(
    "host",
    [
        "",  # a client of HTTP/1.0
        "127.0.0.1", "127.0.0.1:8500", "10.1.2.3:80", "127.0.0.1.",
        "[::1]", "[::1]:8500", "[2001:DB8::1]:1", "[::ffff:127.0.0.1]",
        "localhost", "localhost:1", "LocalHost:8500", "localhost.", "localhost:",
        "box", "Box:9", "box.lan", "box.lan.:9",
        "a.inside.example", "b.a.inside.example:80", "inside.example",
    ],
)  # fmt: skip
def test_a_server_without_a_key_has_these_names(host: str) -> None:
    known = rules(names=("", "box", "box.LAN", ".inside.example"))
    assert known.refusal("GET", host, "", "") is known.refusal("POST", host, "", "") is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8500", "evil.example.", ".", ":8500", " ", "*",
        "localhost.evil.example", "127.0.0.1.evil.example", "evil.localhost", "notbox", "box.evil",
        "notinside.example", "inside.example.evil", ".box", "evil.example,localhost",
        "localhost:8500:1", "localhost:80a", "user@localhost", "localhost/evil", "http://localhost",
        "[::1", "::1", "[localhost]", "[127.0.0.1]", "[::1]evil", "1.2.3", "1.2.3.4.5", "0x7f.1",
        "256.1.1.1", "löcalhost", "localhost\x00",
    ],
)  # fmt: skip
def test_a_host_with_another_name_is_refused_unless_a_key_is_needed(host: str) -> None:
    names = ("", "box", ".inside.example")
    for method in ("GET", "POST"):
        refused = rules(names=names).refusal(method, host, "", "") or ""
        for said in (repr(host), "--allow-hosts", "--key"):
            assert said in refused
        assert rules(keys=KEYS, names=names).refusal(method, host, "", "") is None


PASSING = [
    ("", ""),  # no browser
    ("same-origin", ""),
    ("none", ""),
    ("same-origin", "https://llm.example"),  # a proxy has changed Host
    ("", f"http://{HERE}"),
    ("", f"https://{HERE}"),  # a proxy ended TLS
    ("", FRIEND),
    ("cross-site", FRIEND),
]
REFUSED = [
    *((site, origin) for site in ("same-site", "unheard-of") for origin in ("", f"http://{HERE}")),
    *(("cross-site", origin) for origin in ("", "http://evil.example", "null")),
    ("same-origin,cross-site", ""),
    *(("", origin) for origin in (
        "null", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:3000",
        "http://localhost:8500", f"ftp://{HERE}", HERE, f"http://{HERE},http://evil.example",
        f"http://{HERE}/", "https://friend.example.evil", "http://friend.example",
    )),
]  # fmt: skip


@pytest.mark.parametrize("keys", [(), KEYS])
def test_a_change_passes_from_own_pages_and_allowed_ones_only(keys: tuple[str, ...]) -> None:
    allowed = rules(keys=keys, origins=("", FRIEND))
    for site, origin in (*PASSING, *REFUSED):
        refusals = {method: allowed.refusal(method, HERE, origin, site) for method in CHANGES}
        passes = (site, origin) in PASSING
        assert {refusal is None for refusal in refusals.values()} == {passes}, (site, origin)
        for method in READS:
            assert allowed.refusal(method, HERE, origin, site) is None


def test_a_star_lets_other_pages_make_changes_only_where_they_need_a_key() -> None:
    asked = ("POST", HERE, "http://elsewhere.example", "cross-site")
    assert rules(keys=KEYS, origins=("*",)).refusal(*asked) is None
    refused = rules(origins=("*",)).refusal(*asked)
    assert refused is not None
    assert "http://elsewhere.example" in refused
    assert "--origins (* only with --key)" in refused


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=12))
def test_whatever_the_headers_say_there_is_a_decision(host: str, origin: str, site: str) -> None:
    for method, keys in itertools.product(("GET", "POST"), ((), KEYS)):
        refused = rules(keys=keys).refusal(method, host, origin, site)
        assert refused is None or refused.startswith(("this server", "a web page"))


def test_a_machine_knows_its_own_name_and_others_are_given_with_commas() -> None:
    assert own_names()
    for name in own_names():
        assert rules(names=own_names()).refusal("GET", f"{name}:8500", "", "") is None
    names = ("server-a", "eb_server.default.svc", ".svc", "10.0.0.1")
    assert (host_names(""), host_names(" , ".join(names))) == ((), names)
    for text in ("http://a", "a:80", "a/b", "*", "*.a", "a b", "a..b", "[::1]"):
        with pytest.raises(ValueError, match="is not a host name; allowed: names such as"):
            host_names(text)


# --- JSON ---------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=8,
)


def whole(value: Any) -> Any:
    """Each half of a surrogate pair as U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [whole(one) for one in value]
    if isinstance(value, dict):
        return {whole(name): whole(one) for name, one in value.items()}
    return value


@given(values, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_halves_of_surrogate_pairs_become_replacement_characters(value: Any, code: str) -> None:
    assert read_json(json.dumps(value).encode(code)) == whole(value)


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b'"\xed\xa0\x80"', b"\xff", b"1" * 5000])
def test_what_is_no_json_or_no_text_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|NaN|decode|limit"):
        read_json(body)


# --- refusals, by a clock that the test moves ----------------------------------------------


def test_the_first_refusals_are_not_late_and_then_each_is_later_up_to_a_limit() -> None:
    now_s = [100.0]
    pace = Pace(lambda: now_s[0])
    late = [pace.late_s("a") for _ in range(AT_ONCE + 1000)]
    assert late[:AT_ONCE] == pytest.approx([0.0] * AT_ONCE)
    assert late[AT_ONCE : AT_ONCE + 3] == pytest.approx([1 / PER_S, 2 / PER_S, 3 / PER_S])
    assert late[-1] == pytest.approx(MOST_LATE_S)
    assert pace.late_s("b") == 0.0
    now_s[0] += MOST_LATE_S
    assert pace.late_s("a") == pytest.approx(1 / PER_S)
    now_s[0] += AT_ONCE / PER_S + 1
    assert pace.late_s("a") == 0.0


def test_no_more_addresses_are_kept_than_allowed_and_only_what_clients_do_wrong_is_paced() -> None:
    pace = Pace(lambda: 0.0)
    for number in range(2 * MOST_ADDRESSES):
        pace.late_s(str(number))
    assert len(pace._paid_s) == MOST_ADDRESSES
    assert PACED & {200, 308, 400, 404, 408, 413, 429, 500, 503} == {400, 404, 413}
