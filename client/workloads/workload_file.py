"""The workload file: JSON lines, a header and then one request a line.

Made once and replayed against every mode, so that differences between two runs come from the
servers. Independent of how the requests were made and how they are sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SkipValidation, TypeAdapter

from client.workloads.spec import Count, Least0, SpecError, read_text, said

FORMAT: Literal["effective-batching workload 1"] = "effective-batching workload 1"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``at_s`` is None in a closed loop, where ``think_s`` is the pause before it, and
    for a request that follows the end of another one, the one with the index ``after``. ``signals``
    are further fields of its body: facts for the server's policy. A file calls the ``service`` its
    class."""

    at_s: Least0 | None
    prompt: Annotated[str, Field(min_length=1)]
    prompt_tokens: Count | None
    output_tokens: Count
    service: Annotated[str, Field(alias="class", pattern="^(immediate|deferred)$")]
    deadline_s: Least0 | None
    seed: int
    think_s: Least0 = 0.0
    after: Annotated[int, Field(ge=0)] | None = None
    signals: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival and where they came from. In a file all but the requests are its
    header, which has their number.

    ``users`` is None for an open loop. ``steady`` says that a warm-up may be cut. ``sha256`` is
    over the request lines, so it identifies what is sent, not what it is called.
    """

    format: Literal["effective-batching workload 1"]
    generator: Mapping[str, Any]
    requests: SkipValidation[tuple[Request, ...]]
    duration_s: Least0
    steady: bool
    users: Count | None
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
    generator = json.loads(json.dumps(generator))  # as a file gives it back
    sha256 = _digest(map(_line, requests))
    return Workload(FORMAT, generator, requests, duration_s, steady, users, sha256)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def until(workload: Workload, end_s: float) -> Workload:
    """What of an open loop arrives before ``end_s``; at least the first request."""
    count = max(1, sum(r.at_s is not None and r.at_s < end_s for r in workload.requests))
    if count == len(workload.requests):
        return workload
    generator = {**workload.generator, "until_s": end_s}
    return seal(generator, workload.requests[:count], end_s, steady=workload.steady)


def write_workload(workload: Workload, path: Path) -> None:
    header = {f.name: getattr(workload, f.name) for f in fields(workload)}
    header["requests"] = len(workload.requests)
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        file.writelines(map(_line, workload.requests))


def _line(request: Request) -> str:
    values = {f.name: getattr(request, f.name) for f in fields(request)}
    values = {"class" if name == "service" else name: value for name, value in values.items()}
    if request.at_s is not None:
        del values["think_s"]
    if request.after is None:
        del values["after"]
    if not request.signals:
        del values["signals"]
    return json.dumps(values) + "\n"


def read_workload(path: Path) -> Workload:
    """Read and check; SpecError names file, line and what was expected there."""
    head, *lines = read_text(path).removesuffix("\n").split("\n")
    reader, requests, number, line = TypeAdapter(Request), list[Request](), 1, head
    try:
        header = TypeAdapter(Workload).validate_json(head, strict=True)
        for number, line in enumerate(lines, start=2):
            request = reader.validate_json(line, strict=True)
            follows = header.users is None and request.after is not None
            if (request.at_s is None) != (follows or header.users is not None):
                raise ValueError("at_s is null in a closed loop and with after, and only there")
            if request.after is not None and not (follows and request.after < number - 2):
                raise ValueError("after is the number of an earlier request, from 0")
            requests.append(request)
    except ValueError as error:
        what = "a request" if number > 1 else f"a header with format {FORMAT!r} (python -m "
        what += "" if number > 1 else "client.workload make writes one)"
        raise SpecError(
            f"{path}:{number}: expected {what}: {said(error)}; found {line[:80]!r}"
        ) from None
    if not requests:
        raise SpecError(f"{path}: contains no requests")
    times = [r.at_s for r in requests if r.at_s is not None]
    if times != sorted(times):
        raise SpecError(f"{path}: the requests are not in order of at_s")
    digest = _digest(f"{line}\n" for line in lines)
    if digest != header.sha256:
        raise SpecError(
            f"{path}: the requests do not have the header's sha256: the file was changed "
            f"(found {digest}, {len(requests)} requests)"
        )
    return replace(header, requests=tuple(requests))
