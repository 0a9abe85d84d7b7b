"""Which headers cross the router. Pure. Source: RFC 9110, 7.6.1 (hop-by-hop fields)."""

from collections.abc import Iterator

Pairs = list[tuple[bytes, bytes]]
_ENCODING = ("utf-8", "surrogateescape")  # any bytes survive it


class Headers:
    """A message's headers: `pairs` as they came, and their values by name."""

    __slots__ = ("_values", "pairs")

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self._values: dict[bytes, bytes] = {}
        for name, value in pairs:
            name = name.lower()
            before = self._values.get(name)
            self._values[name] = value if before is None else b"%b, %b" % (before, value)

    def get(self, name: bytes, default: str = "") -> str:
        """The value of a header, by its name in small letters; those of one that is repeated are
        joined by commas."""
        value = self._values.get(name)
        return default if value is None else value.decode(*_ENCODING)

    def items(self) -> Iterator[tuple[str, str]]:
        for name, value in self._values.items():
            yield name.decode(*_ENCODING), value.decode(*_ENCODING)


def encoded(headers: dict[str, str]) -> Pairs:
    return [(name.encode(*_ENCODING), value.encode(*_ENCODING)) for name, value in headers.items()]


HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Each side sets these for what it sends.
_REQUEST_OWN = HOP_BY_HOP | {
    b"accept-encoding",
    b"content-length",
    b"expect",
    b"host",
    b"x-request-id",
    b"x-upstream-mark",
    # the router has judged the page; for the upstream the router is the client
    b"origin",
    b"sec-fetch-site",
}
# What a proxy adds about its client. The router adds none of these, so a client may not set them.
_FORWARDING = frozenset({b"forwarded", b"x-original-url", b"x-real-ip", b"x-rewrite-url"})
_RESPONSE_OWN = HOP_BY_HOP | {
    b"content-length",
    b"x-engine-load",  # for this router
    b"x-request-id",
    b"x-upstream-origin",
}


def to_upstream(
    headers: Headers, request: str, key: str | None, *, drop_authorization: bool
) -> Pairs:
    """The client's headers for the upstream. `key` replaces Authorization; a key for the router
    (`drop_authorization`) is not passed on. Answers are requested uncompressed: the events of a
    compressed stream cannot be separated.

    Names with underscores are dropped: to a WSGI server `SCRIPT_NAME` is a part of the path, and
    other names look the same with hyphens."""
    dropped = _dropped(headers, _REQUEST_OWN | _FORWARDING)
    if key is not None or drop_authorization:
        dropped = dropped | {b"authorization"}
    out = [
        (name, value)
        for name, value in headers.pairs
        if b"_" not in name
        and (lower := name.lower()) not in dropped
        and not lower.startswith(b"x-forwarded-")
    ]
    out += [(b"Accept-Encoding", b"identity"), (b"X-Request-Id", request.encode())]
    if key is not None:
        out.append((b"Authorization", f"Bearer {key}".encode(*_ENCODING)))
    return out


def to_client(headers: Headers, request: str, origin: str) -> Pairs:
    """The upstream's headers for the client, with the upstream's address."""
    dropped = _dropped(headers, _RESPONSE_OWN)
    out = [pair for pair in headers.pairs if pair[0].lower() not in dropped]
    out += [(b"X-Request-Id", request.encode()), (b"X-Upstream-Origin", origin.encode())]
    return out


def _dropped(headers: Headers, dropped: frozenset[bytes]) -> frozenset[bytes]:
    if named := headers.get(b"connection"):
        dropped |= {word.strip().lower().encode(*_ENCODING) for word in named.split(",")}
    return dropped


def is_plain(headers: Headers) -> bool:
    """Whether the body is not compressed."""
    return headers.get(b"content-encoding", "identity").lower() == "identity"


def retry_after_s(headers: Headers) -> float | None:
    """Retry-After in seconds; None if it is absent or a date."""
    try:
        seconds = float(headers.get(b"retry-after"))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
