"""The data of `seams.py` as messages, and back. An iteration is sent column by column, since a
message per row would cost an object per row on both sides."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

import seams
from model_server.wire import model_pb2 as wire

SAMPLING = msgspec.msgpack.Decoder(seams.Sampling)


def opening(new: seams.Opening) -> wire.Opening:
    return wire.Opening(
        id=new.id,
        ids=new.ids,
        prompt_tokens=new.prompt_tokens,
        scored=new.scored,
        trace=new.trace,
        request_id=new.request_id,
        sampling=msgspec.msgpack.encode(new.sampling),
    )


def read_opening(new: wire.Opening) -> seams.Opening:
    return seams.Opening(
        new.id,
        list(new.ids),
        new.prompt_tokens,
        SAMPLING.decode(new.sampling),
        new.scored,
        new.trace if new.HasField("trace") else None,
        new.request_id if new.HasField("request_id") else None,
    )


def iteration(
    session: int, number: int, steps: Sequence[seams.Step], released: Sequence[int]
) -> wire.Iteration:
    ids, starts, tokens, draw, blocks, padding, drafts = zip(*steps, strict=True)
    given = any(blocks)
    return wire.Iteration(
        session=session,
        number=number,
        ids=ids,
        starts=starts,
        tokens=tokens,
        draw=draw,
        padding=padding if any(padding) else (),
        block_counts=[len(row) for row in blocks] if given else (),
        blocks=[block for row in blocks for block in row] if given else (),
        released=released,
        drafts=drafts if any(drafts) else (),
    )


def read_steps(message: wire.Iteration) -> list[seams.Step]:
    rows = len(message.ids)
    padding: Sequence[int] = message.padding or [0] * rows
    drafts: Sequence[int] = message.drafts or [0] * rows
    blocks = _split(message.blocks, message.block_counts) if message.block_counts else [()] * rows
    columns = (message.ids, message.starts, message.tokens, message.draw, blocks, padding, drafts)
    return [seams.Step(*row) for row in zip(*columns, strict=True)]


def outcome(given: seams.Outcome, rank: int) -> wire.Outcome:
    digest = digest_of(given.tokens)
    if rank:
        return wire.Outcome(digest=digest, duration_s=given.duration_s)
    return wire.Outcome(
        digest=digest,
        token_counts=[len(row) for row in given.tokens],
        tokens=[token for row in given.tokens for token in row],
        positions=given.positions,
        duration_s=given.duration_s,
        logprobs=[_row(row, 0, scores) for row, scores in given.logprobs.items()],
        prompt_logprobs=[
            _row(row, first, scores) for row, (first, scores) in given.prompt_logprobs.items()
        ],
        failed=[wire.Failure(row=row, reason=reason) for row, reason in given.failed.items()],
        drafts=[
            wire.RowDrafts(row=row, computed=of.computed, accepted=of.accepted)
            for row, of in given.drafts.items()
        ],
    )


def read_outcome(message: wire.Outcome) -> seams.Outcome:
    return seams.Outcome(
        _split(message.tokens, message.token_counts),
        message.positions,
        message.duration_s,
        {row.row: _scores(row) for row in message.logprobs},
        {row.row: (row.first, _scores(row)) for row in message.prompt_logprobs},
        {failure.row: failure.reason for failure in message.failed},
        {of.row: seams.Drafts(of.computed, of.accepted) for of in message.drafts},
    )


def digest_of(tokens: Iterable[Sequence[int]]) -> bytes:
    """Digest of an iteration's tokens, row by row; it differs if ranks drew different tokens."""
    flat = array("q")
    for row in tokens:
        flat.append(len(row))
        flat.extend(row)
    return hashlib.blake2b(flat.tobytes(), digest_size=8).digest()


def _split(flat: Iterable[int], counts: Iterable[int]) -> list[list[int]]:
    rest = iter(flat)
    return [list(islice(rest, count)) for count in counts]


def _row(row: int, first: int, scores: Sequence[seams.TokenLogprobs]) -> wire.RowLogprobs:
    tokens = [
        wire.TokenLogprobs(
            token=score.token,
            logprob=score.logprob,
            top_tokens=[token for token, _ in score.top],
            top_logprobs=[logprob for _, logprob in score.top],
        )
        for score in scores
    ]
    return wire.RowLogprobs(row=row, first=first, tokens=tokens)


def _scores(row: wire.RowLogprobs) -> list[seams.TokenLogprobs]:
    return [
        seams.TokenLogprobs(
            score.token,
            score.logprob,
            tuple(zip(score.top_tokens, score.top_logprobs, strict=True)),
        )
        for score in row.tokens
    ]
