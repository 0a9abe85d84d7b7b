"""What clients may tell policies of a request: the same fields and headers on every API.

With keys, the user is the key, and what the client names divides within it; `--max-priority` bounds
what anyone may ask for. Targets and predicted lengths are believed: a request whose target cannot
be met comes last, and one that outlives its prediction counts as longer. Names are kept as hashes
that differ from process to process.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence

from pydantic import BaseModel, Field
from werkzeug.datastructures import Headers

from api.http.errors import ApiError, show
from api.limits import COUNT, PRIORITY, TARGET, Count, Priority, Target
from engine.inference import Inference

USER, PROGRAM, PRIORITY_HEADER = "X-User-Id", "X-Program-Id", "X-Priority"
MOST_CHARACTERS = 256  # of a header's name for a user or a program
SALT = secrets.token_bytes(16)


class Signals(BaseModel):
    """None: left out. Policies that do not use a field ignore it."""

    user: str | None = Field(None, description="a string (as a header: X-User-Id)")
    program: str | None = Field(
        None, description="a string that the calls of one program share (as a header: X-Program-Id)"
    )
    priority: Priority | None = Field(
        None, description=f"{PRIORITY} (a lower number is more urgent; as a header: X-Priority)"
    )
    ttft_target_s: Target | None = Field(None, description=f"{TARGET}, to the first token")
    tpot_target_s: Target | None = Field(None, description=f"{TARGET}, from token to token")
    predicted_tokens: Count | None = Field(
        None, description=f"{COUNT}: how many will be generated, as far as is known"
    )


NONE = Signals.model_validate({})


def signal(
    inferences: Sequence[Inference],
    asked: Signals,
    headers: Headers,
    owner: str,
    most_urgent: int,
) -> None:
    """Gives requests what their client says of them. A field overrides its header. `owner`: of the
    key; "" if none is required. `most_urgent`: the lowest priority allowed. Raises ApiError."""
    names = []
    for said, header in ((asked.user, USER), (asked.program, PROGRAM)):
        names.append(said or headers.get(header, ""))
        if not said and len(names[-1]) > MOST_CHARACTERS:
            raise ApiError(
                400,
                f"header {header} has {len(names[-1])} characters; allowed: at most "
                f"{MOST_CHARACTERS}",
            )
    user, program = names
    priority = asked.priority
    if priority is None:
        given = headers.get(PRIORITY_HEADER, "0")
        if not re.fullmatch(r"[+-]?[0-9]{1,10}", given) or not -(2**31) <= int(given) < 2**31:
            raise ApiError(400, f"header {PRIORITY_HEADER} must be {PRIORITY}, got {show(given)}")
        priority = int(given)
    if priority < most_urgent:
        raise ApiError(
            400,
            f"priority {priority} is more urgent than allowed; allowed: {most_urgent} or more "
            "(--max-priority)",
            param="priority",
        )
    for inference in inferences:
        inference.user = _number(owner or user)
        inference.end_user = _number(owner, user) if owner and user else 0
        inference.program = _number(owner, user, program) if program else None
        inference.priority = priority
        inference.ttft_target_s = asked.ttft_target_s
        inference.tpot_target_s = asked.tpot_target_s
        inference.predicted = asked.predicted_tokens


def _number(*names: str) -> int:
    """0 for no name."""
    if not any(names):
        return 0
    digest = hashlib.blake2b(key=SALT, digest_size=8)
    for name in names:
        encoded = name.encode()
        digest.update(len(encoded).to_bytes(8) + encoded)
    return int.from_bytes(digest.digest()) >> 1
