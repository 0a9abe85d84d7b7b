"""The data of `seams.py` as messages, and back. msgspec derives both directions from its types; the
calls around them are protobuf's."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from msgspec.msgpack import Decoder, Encoder

import seams
from model_server.wire import model_pb2 as wire

_encode = Encoder(enc_hook=list).encode  # of other sequences, such as ranges
_read_steps = Decoder(list[seams.Step]).decode
_read_outcome = Decoder(seams.Outcome).decode
read_opening = Decoder(seams.Opening).decode


def opening(new: seams.Opening) -> bytes:
    """Raises an error if the other side could not read it."""
    encoded = _encode(new)
    read_opening(encoded)
    return encoded


def iteration(
    session: int, number: int, steps: Sequence[seams.Step], released: Sequence[int]
) -> wire.Iteration:
    return wire.Iteration(session=session, number=number, steps=_encode(steps), released=released)


def read_steps(message: wire.Iteration) -> list[seams.Step]:
    return _read_steps(message.steps)


def outcome(given: seams.Outcome, rank: int) -> wire.Outcome:
    """Every rank sends the digest of its tokens; only rank 0 sends the tokens."""
    return wire.Outcome(digest=_digest(given.tokens), outcome=b"" if rank else _encode(given))


def read_outcome(message: wire.Outcome) -> seams.Outcome:
    return _read_outcome(message.outcome)


def _digest(tokens: Iterable[Sequence[int]]) -> bytes:
    """Row by row; it differs if ranks drew different tokens."""
    flat = array("q")
    for row in tokens:
        flat.append(len(row))
        flat.extend(row)
    return hashlib.blake2b(flat.tobytes(), digest_size=8).digest()
