"""Where a model server listens, and which clients may use it.

A Unix socket is protected by the permissions of its folder. Any other address needs a token that
both sides have, or TLS with certificates on both sides, since a client of a model server can read
what it computes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from seams import LoadError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

TLS_FILES = ("ca.pem", "key.pem", "cert.pem")  # in the folder of --model-tls
HEADER = "authorization"
# an iteration of long prompts is megabytes; each side trusts the other
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),  # a second server on an address is an error
    ("grpc.use_local_subchannel_pool", 1),  # a new channel connects at once, also after failures
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True, slots=True)
class Access:
    """`token`: both sides have it. `tls`: folder with ca.pem, key.pem and cert.pem."""

    token: str | None = None
    tls: str | None = None

    def check(self, address: str) -> None:
        """Raises LoadError."""
        if address.startswith("unix:"):
            return
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise LoadError(f"'{address}' is not an address; allowed: unix:/PATH, or HOST:PORT")
        if self.token is None and self.tls is None:
            raise LoadError(
                f"{address} is open to others: it needs a token (--model-token) or TLS "
                "(--model-tls); a Unix socket (unix:/PATH) needs neither"
            )

    def listen(self, server: grpc.Server, address: str) -> None:
        """Raises LoadError, OSError."""
        self.check(address)
        try:
            if self.tls is None or address.startswith("unix:"):
                server.add_insecure_port(address)
            else:
                ca, key, cert = self._files()
                server.add_secure_port(
                    address, grpc.ssl_server_credentials([(key, cert)], ca, True)
                )
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error

    def channel(self, address: str) -> grpc.Channel:
        """Raises LoadError. Nothing is connected yet."""
        self.check(address)
        if self.tls is None or address.startswith("unix:"):
            return grpc.insecure_channel(address, OPTIONS)
        ca, key, cert = self._files()
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), OPTIONS)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call."""
        return () if self.token is None else ((HEADER, f"Bearer {self.token}"),)

    def guards(self) -> list[grpc.ServerInterceptor]:
        return [] if self.token is None else [_TokenGuard(self.token)]

    def _files(self) -> list[bytes]:
        assert self.tls is not None
        try:
            return [(Path(self.tls) / name).read_bytes() for name in TLS_FILES]
        except OSError as error:
            raise LoadError(f"TLS needs {', '.join(TLS_FILES)} in {self.tls}: {error}") from error


class _TokenGuard(grpc.ServerInterceptor):
    """Refuses calls without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        for key, value in details.invocation_metadata:
            if key == HEADER and hmac.compare_digest(str(value), self._expected):
                return continuation(details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


def _refuse(_request: Any, context: grpc.ServicerContext) -> Any:
    message = "the token is missing or wrong (--model-token)"
    context.abort(grpc.StatusCode.UNAUTHENTICATED, message)
