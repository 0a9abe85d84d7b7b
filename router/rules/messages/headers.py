"""Which headers cross the router. Pure. Source: RFC 9110, 7.6.1 (hop-by-hop fields)."""

Pairs = list[tuple[bytes, bytes]]
_ENCODING = ("utf-8", "surrogateescape")  # any bytes survive it


class Headers(dict[bytes, bytes]):
    """A message's headers: `pairs` as they came, and their values by name in small letters; those
    of one that is repeated are joined by commas."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        for name, value in pairs:
            name = name.lower()
            before = self.get(name)
            self[name] = value if before is None else b"%b, %b" % (before, value)

    def text(self, name: bytes) -> str:
        """Empty if there is none."""
        value = self.get(name)
        return value.decode(*_ENCODING) if value else ""


def encoded(headers: dict[str, str]) -> Pairs:
    return [(name.encode(*_ENCODING), value.encode(*_ENCODING)) for name, value in headers.items()]


HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authentication-info proxy-authorization "
    b"proxy-connection te trailer transfer-encoding upgrade".split()
)
# Each side sets these for what it sends. The router has judged the page (origin, sec-fetch-site);
# for the upstream the router is the client.
_REQUEST_OWN = HOP_BY_HOP.union(
    b"accept-encoding content-length expect host x-request-id x-upstream-mark origin "
    b"sec-fetch-site".split()
)
# What a proxy adds about its client. The router adds none of these, so a client may not set them.
_FORWARDING = frozenset(b"forwarded x-original-url x-real-ip x-rewrite-url".split())
_TO_UPSTREAM = _REQUEST_OWN | _FORWARDING
# X-Engine-Load is for this router.
_TO_CLIENT = HOP_BY_HOP.union(
    b"content-length x-engine-load x-request-id x-upstream-origin".split()
)


def to_upstream(
    headers: Headers, request: str, key: str | None, *, drop_authorization: bool
) -> Pairs:
    """The client's headers for the upstream. `key` replaces Authorization; a key for the router
    (`drop_authorization`) is not passed on. Answers are requested uncompressed: the events of a
    compressed stream cannot be separated.

    Names with underscores are dropped: to a WSGI server `SCRIPT_NAME` is a part of the path, and
    other names look the same with hyphens."""
    dropped = _dropped(headers, _TO_UPSTREAM)
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
    dropped = _dropped(headers, _TO_CLIENT)
    out = [pair for pair in headers.pairs if pair[0].lower() not in dropped]
    out += [(b"X-Request-Id", request.encode()), (b"X-Upstream-Origin", origin.encode())]
    return out


def _dropped(headers: Headers, dropped: frozenset[bytes]) -> frozenset[bytes]:
    named = headers.get(b"connection")
    if named is None or named == b"keep-alive":
        return dropped
    return dropped.union(word.strip().lower() for word in named.split(b","))


def is_plain(headers: Headers) -> bool:
    """Whether the body is not compressed."""
    return headers.get(b"content-encoding", b"identity").lower() == b"identity"


def retry_after_s(headers: Headers) -> float | None:
    """Retry-After in seconds; None if it is absent or a date."""
    try:
        seconds = float(headers.get(b"retry-after", b""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
