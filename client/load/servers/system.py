"""A system: a mode of our server, which is started here, or a server that already runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client.load.http.target import Target
from client.load.machine import ROOT

MODES = ("nobatch", "static", "dynamic")
NO_WAIT = "static:nowait"  # static batching with --max-wait-ms 0
COMPARED = ("nobatch", "static", NO_WAIT, "dynamic")


@dataclass(frozen=True, slots=True)
class System:
    """A mode of our server (``command`` starts it) or a server that already runs (``target``).

    ``beside``: it is shown beside that system, at a single load, with which the other keeps up.
    """

    name: str
    command: tuple[str, ...] | None
    target: Target | None
    beside: str | None = None


def server_command(
    mode: str, model: str, options: Sequence[str], *, prefix_caching: bool = False
) -> tuple[str, ...]:
    """How one of our modes is started; ``dynamic:tgi`` is the dynamic mode under that policy, and
    ``static:nowait`` starts a batch at once. Without prefix caching a comparison is of scheduling
    alone; the other modes have none."""
    name, _, policy = mode.partition(":")
    chosen: tuple[str, ...] = ()
    if name == "dynamic":
        chosen += ("--policy", policy) if policy else ()
        chosen += ("--prefix-caching", str(prefix_caching).lower())
    chosen += (*options, *(("--max-wait-ms", "0") if mode == NO_WAIT else ()))
    return (str(ROOT / "server.sh"), name, "--model", model, *chosen)
