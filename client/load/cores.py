"""Which of this machine's cores the client and the servers that it starts run on."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_SHARE = 4  # the client takes at most one in so many


@dataclass(frozen=True, slots=True)
class Cores:
    """Numbers of logical cores."""

    client: tuple[int, ...]
    servers: tuple[int, ...]

    @property
    def shared(self) -> bool:
        return bool(set(self.client) & set(self.servers))

    def __str__(self) -> str:
        if self.shared:
            return f"client and servers share the {len(self.servers)} cores of this machine"
        return f"client on cores {_told(self.client)}, servers on cores {_told(self.servers)}"


def of_this_machine(workers: int = 1) -> Cores:
    """A physical core for each of the client's processes, where the servers keep three in four."""
    allowed = os.sched_getaffinity(0)
    return divided([siblings(core) & allowed for core in sorted(allowed)], workers)


def divided(siblings_of: Collection[frozenset[int] | set[int]], workers: int) -> Cores:
    """By physical cores, each given as its logical ones."""
    physical = sorted({tuple(sorted(group)) for group in siblings_of})
    everyone = tuple(sorted(core for group in physical for core in group))
    if workers * _SHARE > len(physical):
        return Cores(everyone, everyone)
    own = {core for group in physical[-workers:] for core in group}
    return Cores(tuple(sorted(own)), tuple(core for core in everyone if core not in own))


def siblings(core: int) -> set[int]:
    """The logical cores of its physical one, itself among them."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        text = path.read_text()
    except OSError:
        return {core}
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found | {core}


def _told(cores: Collection[int]) -> str:
    return ", ".join(map(str, cores))
