"""How much memory a container's limit leaves; the machine's own figures do not show it.

Reads Linux control groups (kernel documentation, admin-guide/cgroup-v2.rst, "Memory Interface
Files", and cgroup-v1/memory.rst). The process's own group or any group above it may have a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    used: str
    cache: str  # of memory.stat: file pages that are reclaimed before any process is killed


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def container_room_bytes(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int | None:
    """What the tightest limit leaves: limit - (used - inactive file pages); None without a
    limit."""
    rooms = [
        room
        for folder, files in _folders(cgroups, own_groups)
        if (room := _room_bytes(folder, files)) is not None
    ]
    return min(rooms, default=None)


def _folders(cgroups: Path, own_groups: Path) -> Iterator[tuple[Path, _Files]]:
    """The process's groups and all above them; within a container the mount begins at its own
    group."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top, files = cgroups / "memory", _V1
        elif number == "0" and not controllers:
            top, files = cgroups, _V2
        else:
            continue
        group = Path(path.lstrip("/"))
        for at in (group, *group.parents):
            yield top / at, files


def _room_bytes(folder: Path, files: _Files) -> int | None:
    try:
        limit = (folder / files.limit).read_text().strip()
        used = int((folder / files.used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdecimal():  # "max"
        return None
    return max(0, int(limit) - used + int(stat.get(files.cache, 0)))
