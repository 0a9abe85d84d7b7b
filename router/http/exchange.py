"""A client's request in the data plane, and how an attempt at it may end."""

from dataclasses import dataclass, field
from typing import NamedTuple

from router.http.server import ClientRequest
from router.rules.messages.errors import Response
from router.rules.request import RoutedRequest
from telemetry.tracing import Traced


class Attempt(NamedTuple):
    """The time that one upstream had the request, in seconds of the loop's clock."""

    upstream: str
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class ProxiedRequest:
    """A client's request and its state. `openai`: its errors are OpenAI's, whatever the path."""

    request: ClientRequest
    started: float
    request_id: str
    model: str = ""
    openai: bool = False
    limits: dict[str, str] = field(default_factory=dict)  # headers that tell them
    body: bytearray = field(default_factory=bytearray)
    buffered_bytes: int = 0  # of the body, and of an answer that is held back
    routed: RoutedRequest | None = None
    takes_events: bool = False  # its answer has begun, and an error event may end it
    broken: str = ""
    writing: bool = False
    torn: bool = False  # a part of an event was passed on
    uploading: bool = False  # the router waits for the client's body
    first_byte_s: float = 0.0
    # `begun_s`: from arrival until the answer could be sent; `upstream_s`: the upstream's share.
    upstream_s: float = 0.0
    begun_s: float = 0.0
    passed_s: float | None = None  # just before the last piece of the answer was passed on
    attempts: list[Attempt] = field(default_factory=list)
    trace: Traced | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed attempt that may be repeated elsewhere. `response`: for the client if it is not."""

    reason: str
    response: Response
