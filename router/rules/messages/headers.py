"""Which headers cross the router. Pure. Source: RFC 9110, 7.6.1 (hop-by-hop fields)."""

from collections.abc import Mapping

from multidict import CIMultiDict, MultiMapping

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Each side sets these for what it sends.
_REQUEST_OWN = HOP_BY_HOP | {
    "accept-encoding",
    "content-length",
    "expect",
    "host",
    "x-request-id",
    "x-upstream-mark",
    # the router has judged the page; for the upstream the router is the client
    "origin",
    "sec-fetch-site",
}
# What a proxy adds about its client. The router adds none of these, so a client may not set them.
_FORWARDING = frozenset({"forwarded", "x-original-url", "x-real-ip", "x-rewrite-url"})
_RESPONSE_OWN = HOP_BY_HOP | {
    "content-length",
    "x-engine-load",  # for this router
    "x-request-id",
    "x-upstream-origin",
}


def to_upstream(
    headers: MultiMapping[str], request: str, key: str | None, *, drop_authorization: bool
) -> CIMultiDict[str]:
    """The client's headers for the upstream. `key` replaces Authorization; a key for the router
    (`drop_authorization`) is not passed on. Answers are requested uncompressed: the events of a
    compressed stream cannot be separated.

    Names with underscores are dropped: to a WSGI server `SCRIPT_NAME` is a part of the path, and
    other names look the same with hyphens."""
    out = CIMultiDict(
        (name, value)
        for name, value in _without(headers, _REQUEST_OWN | _FORWARDING).items()
        if "_" not in name and not name.lower().startswith("x-forwarded-")
    )
    out["Accept-Encoding"] = "identity"
    out["X-Request-Id"] = request
    if key is not None:
        out["Authorization"] = f"Bearer {key}"
    elif drop_authorization:
        out.popall("Authorization", None)
    return out


def to_client(headers: MultiMapping[str], request: str, origin: str) -> CIMultiDict[str]:
    """The upstream's headers for the client, with the upstream's address."""
    out = _without(headers, _RESPONSE_OWN)
    out["X-Request-Id"] = request
    out["X-Upstream-Origin"] = origin
    return out


def _without(headers: MultiMapping[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    for named in headers.getall("Connection", []):
        dropped = dropped | {word.strip().lower() for word in named.split(",")}
    return CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in dropped)


def is_plain(headers: Mapping[str, str]) -> bool:
    """Whether the body is not compressed."""
    return headers.get("Content-Encoding", "identity").lower() == "identity"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds; None if it is absent or a date."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
