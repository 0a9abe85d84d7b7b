"""The workload file: JSON lines, a header and then one request a line.

Made once and replayed against every mode, so that differences between two runs come from the
servers. Independent of how the requests were made and how they are sent.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FORMAT = "effective-batching workload 1"
CLASSES = ("immediate", "deferred")


class WorkloadError(ValueError):
    """A file that is not a workload; the message names file, line and what was expected."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``at_s`` is None in a closed loop, where ``think_s`` is the pause before it, and
    for a request that follows the end of another one, the one with the index ``after``. ``signals``
    are further fields of its body: facts for the server's policy."""

    at_s: float | None
    prompt: str
    prompt_tokens: int | None
    output_tokens: int
    service: str
    deadline_s: float | None
    seed: int
    think_s: float = 0.0
    after: int | None = None
    signals: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival and where they came from.

    ``users`` is None for an open loop. ``steady`` says that a warm-up may be cut. ``sha256`` is
    over the request lines, so it identifies what is sent, not what it is called.
    """

    generator: Mapping[str, Any]
    requests: tuple[Request, ...]
    duration_s: float
    steady: bool
    users: int | None
    sha256: str

    @property
    def chained(self) -> bool:
        """Whether some requests follow the end of others."""
        return any(r.after is not None for r in self.requests)

    @property
    def rate(self) -> float | None:
        """Requests a second over the sending window; None where there is no such window."""
        return len(self.requests) / self.duration_s if self.duration_s > 0 else None


def seal(
    generator: Mapping[str, Any],
    requests: Iterable[Request],
    duration_s: float,
    *,
    steady: bool,
    users: int | None = None,
) -> Workload:
    """A workload with its hash."""
    requests = tuple(requests)
    digest = hashlib.sha256("".join(map(_line, requests)).encode()).hexdigest()
    return Workload(generator, requests, duration_s, steady, users, digest)


def until(workload: Workload, end_s: float) -> Workload:
    """What of an open loop arrives before ``end_s``; at least the first request."""
    count = max(1, sum(r.at_s is not None and r.at_s < end_s for r in workload.requests))
    if count == len(workload.requests):
        return workload
    generator = {**workload.generator, "until_s": end_s}
    return seal(generator, workload.requests[:count], end_s, steady=workload.steady)


def write_workload(workload: Workload, path: Path) -> None:
    header = {
        "format": FORMAT,
        "generator": dict(workload.generator),
        "requests": len(workload.requests),
        "duration_s": workload.duration_s,
        "steady": workload.steady,
        "users": workload.users,
        "sha256": workload.sha256,
    }
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        file.writelines(map(_line, workload.requests))


def read_workload(path: Path) -> Workload:
    """Read and check; WorkloadError names file, line and what was expected there."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: cannot be read as text: {error}") from None
    try:
        header = json.loads(lines[0])
        if header["format"] != FORMAT:
            raise KeyError
        declared = (
            dict(header["generator"]),
            float(header["duration_s"]),
            bool(header["steady"]),
            None if header["users"] is None else int(header["users"]),
            str(header["sha256"]),
        )
    except (IndexError, KeyError, TypeError, ValueError):
        raise WorkloadError(
            f"{path}:1: expected a header with format {FORMAT!r}, generator, duration_s, steady, "
            "users and sha256 (python -m client.workload make writes one)"
        ) from None
    generator, duration_s, steady, users, digest = declared
    if not _is_number(duration_s) or (users is not None and users < 1):
        raise WorkloadError(f"{path}:1: expected duration_s >= 0 and users >= 1 or null")
    requests = [
        _parse(path, number, line, closed=users is not None)
        for number, line in enumerate(lines[1:], start=2)
    ]
    if not requests:
        raise WorkloadError(f"{path}: contains no requests")
    times = [r.at_s for r in requests if r.at_s is not None]
    if times != sorted(times):
        raise WorkloadError(f"{path}: the requests are not in order of at_s")
    workload = seal(generator, requests, duration_s, steady=steady, users=users)
    if workload.sha256 != digest:
        raise WorkloadError(
            f"{path}: the requests do not have the header's sha256: the file was changed "
            f"(found {workload.sha256}, {len(requests)} requests)"
        )
    return workload


# what a file calls the fields of a request
_KEYS = {f.name: {"service": "class"}.get(f.name, f.name) for f in fields(Request)}


def _line(request: Request) -> str:
    values = {key: getattr(request, name) for name, key in _KEYS.items()}
    if request.at_s is not None:
        del values["think_s"]
    if request.after is None:
        del values["after"]
    if not request.signals:
        del values["signals"]
    return json.dumps(values) + "\n"


def _parse(path: Path, number: int, line: str, *, closed: bool) -> Request:
    try:
        found = json.loads(line)
        request = Request(**{name: found[key] for name, key in _KEYS.items() if key in found})
    except (ValueError, KeyError, TypeError):
        raise WorkloadError(f"{path}:{number}: expected {_EXPECTED}, found {line[:80]!r}") from None
    at_s, after = request.at_s, request.after
    follows = type(after) is int and 0 <= after < number - 2 and not closed
    good = (
        (at_s is None if closed or follows else _is_number(at_s))
        and (follows or after is None)
        and isinstance(request.signals, dict)
        and isinstance(request.prompt, str)
        and request.prompt != ""
        and (request.prompt_tokens is None or _is_count(request.prompt_tokens))
        and _is_count(request.output_tokens)
        and request.service in CLASSES
        and (request.deadline_s is None or _is_number(request.deadline_s))
        and isinstance(request.seed, int)
        and _is_number(request.think_s)
    )
    if not good:
        raise WorkloadError(f"{path}:{number}: expected {_EXPECTED}, found {line[:80]!r}")
    return request


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_EXPECTED = (
    '{"at_s": seconds (null in a closed loop, or with "after": the number of an earlier request, '
    'from 0), "prompt": text, "prompt_tokens": count or null, '
    '"output_tokens": count, "class": immediate|deferred, "deadline_s": seconds or null, '
    '"seed": whole number}'
)
