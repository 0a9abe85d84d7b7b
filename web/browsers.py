"""Which requests of web pages are accepted, and which pages may read the responses, for server and
router. No I/O but `own_names`.

A page that a browser shows can send requests to servers that only this browser reaches, in two
ways. It makes its own name resolve to the server's address (DNS rebinding): for the browser the
server is then the page's own, and only `Host` shows the other name. Or it sends a request to
another origin that needs no preflight: it cannot read the response, but a change is made. `Origin`
or `Sec-Fetch-Site`, which no page can set, show where such a request comes from; other clients send
neither. <https://fetch.spec.whatwg.org/#origin-header>, <https://www.w3.org/TR/fetch-metadata/>

Before a request that needs it, a browser sends OPTIONS, which gets the same headers. An allowed
origin may use any method and headers: the headers of clients' SDKs change with every release, and
servers refuse or ignore unknown ones anyway. <https://fetch.spec.whatwg.org/#http-cors-protocol>
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence, Set

from options import comma_separated

ANY_ORIGIN = "*"
HEADERS = ("Host", "Origin", "Sec-Fetch-Site")  # what `Rules.refusal` judges
READS = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES = ("same-origin", "none")  # none: the user typed the address or chose a bookmark
DEFAULT_PORTS = {"http": 80, "https": 443}
ALLOWS = {  # request header -> response header
    "Access-Control-Request-Method": "Access-Control-Allow-Methods",
    "Access-Control-Request-Headers": "Access-Control-Allow-Headers",
}
MOST_REMEMBERED = 256  # hosts, and whether they are known
MAX_AGE_S = 600  # for which the response to OPTIONS is valid

_NAME = re.compile(r"\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE | re.ASCII)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{0,5}))?")


def host_names(text: str) -> tuple[str, ...]:
    """The names of `--allow-hosts`. Raises ValueError."""
    names = comma_separated(text)
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a host name; allowed: names such as llm.example.com or, with all "
                "names below it, .example.com; no scheme, no port"
            )
    return names


@functools.cache
def own_names() -> frozenset[str]:
    """The hostname of this machine, short and fully qualified. Asks the resolver."""
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


class Rules:
    """Without `keys` a request must be sent to a known host; a page of others has no key. A change
    that a page asks for must come from the server's own pages or from one of `origins`; `*`, every
    page, counts only with keys."""

    def __init__(
        self,
        *,
        keys: Sequence[str],
        names: Iterable[str],
        origins: Iterable[str],
        key_option: str,
        origins_option: str,
    ) -> None:
        """`names`: hosts beside localhost; one that begins with a dot includes all below it. Empty
        names and origins are ignored. Messages name the two options."""
        self._keys = bool(keys)
        self._names = frozenset(name.lower() for name in names if name) | {"localhost"}
        self._domains = tuple(name for name in self._names if name.startswith("."))
        self._origins = frozenset(origins) - {"", *(() if keys else (ANY_ORIGIN,))}
        self._key_option = key_option
        self._origins_option = origins_option
        self._knows = functools.lru_cache(MOST_REMEMBERED)(self._is_known)

    def refusal(self, method: str, host: str, origin: str, site: str) -> str | None:
        """Why a request with these values of HEADERS is refused; None if it is not. A header that
        is absent is empty, the values of one that is repeated are joined by commas."""
        if not self._keys and not self._knows(host):
            return (
                f"this server does not know the host {host[:100]!r}; allowed without "
                f"{self._key_option}: an IP address, localhost, the name of its machine and the "
                "names of --allow-hosts"
            )
        if method in READS or site in OWN_SITES or not (origin or site):
            return None
        if origin in self._origins or ANY_ORIGIN in self._origins:
            return None
        if not site and _is_same(origin, host):
            return None
        return (
            f"a web page of {origin[:100] or 'another site'} may change nothing here; allowed: "
            f"the server's own pages and the origins of {self._origins_option}"
            + ("" if self._keys else f" (* only with {self._key_option})")
        )

    def _is_known(self, host: str) -> bool:
        """Any client but a browser may leave out its Host. No name of a page is an IP address."""
        name, _ = _split(host)
        if not host or name in self._names or f".{name}".endswith(self._domains):
            return True
        read = ipaddress.IPv6Address if name.startswith("[") else ipaddress.IPv4Address
        try:
            return bool(read(name.strip("[]")))
        except ValueError:
            return False


def _split(authority: str) -> tuple[str, int | None]:
    """Its host, in small letters and without a last dot, and its port; an empty host if it is not
    valid."""
    match = _AUTHORITY.fullmatch(authority.lower())
    if match is None:
        return "", None
    return match[1].removesuffix("."), int(match[2]) if match[2] else None


def _is_same(origin: str, host: str) -> bool:
    """Whether a page is of this server. A proxy in front of it may have ended TLS, so a Host
    without a port has the default port of the page's scheme."""
    scheme, _, authority = origin.partition("://")
    default = DEFAULT_PORTS.get(scheme)
    (name, port), (own_name, own_port) = _split(authority), _split(host)
    return bool(default and name) and (name, port or default) == (own_name, own_port or default)


def response_headers(
    allowed: Set[str], method: str, header: Callable[[str], str | None]
) -> tuple[dict[str, str], set[str]]:
    """The headers that a response gets, and the names that it adds to `Vary`. `allowed`: origins,
    or `*` for all of them. `header` returns a header of the request."""
    # a cache must not give one origin's response to another
    origin, vary = (ANY_ORIGIN, set()) if ANY_ORIGIN in allowed else (header("Origin"), {"Origin"})
    if origin is None or origin not in allowed:
        return {}, vary
    headers = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "X-Request-Id, Retry-After",
    }
    if method == "OPTIONS":
        vary.update(ALLOWS)
        headers["Access-Control-Max-Age"] = str(MAX_AGE_S)
        headers |= {allow: value for asked, allow in ALLOWS.items() if (value := header(asked))}
    return headers, vary
