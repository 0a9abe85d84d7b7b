"""Triton kernels that draw the next tokens, as `runtime.sampling.drawing.draw` defines them.

`_race` reads each score once: it hashes, adds noise and keeps the best token, many programs to a
row. `_finish` takes the best of them and appends it to what the row knows. Rows that truncate need
`_truncate` before: it finds the last token of each set by halving the range of scores, a pass over
the row each time, and so sorts nothing. Tokens are ordered by score, equal ones by id; a set is
described by its last score and the id from which on equal scores are outside, its place. A row's
token does not depend on the rows beside it.

Selection by pivots instead of sorting: "FlashInfer", Ye et al., 2025, section 3.4.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.operators import operator

PIECE = 8192  # tokens of a row that one program races
BLOCK = 1024
TRUNCATED_TOGETHER = 2048  # tokens of a row
# the settings of rows lie one after the other: whether one begins at a multiple of 16 bytes depends
# on the number of rows, and must not compile the kernels again
ROW_BY_ROW = [
    *("seeds", "known", "temperature", "top_k", "top_p", "min_p", "typical_p", "ids", "tokens"),
]
LOWEST = tl.constexpr(-(2**31))
HIGHEST = tl.constexpr(2**31 - 1)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _mix(x):
    """Wellons' "lowbias32" of uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _key(seed, position):
    """The finaliser of splitmix64."""
    z = seed.to(tl.uint64) * 0x9E3779B97F4A7C15 + position.to(tl.uint64) * 0xD1B54A32D192ED03 + 1
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return (z ^ (z >> 31)).to(tl.uint32) ^ 0x80000000


@triton.jit
def _gumbel(ids, key):
    bits = _mix(_mix(ids.to(tl.uint32)) ^ key) >> 9
    return -tl.log(-tl.log((bits.to(tl.float32) + 0.5) * (0.5 / 4194304)))


@triton.jit
def _ordered(score):
    """An int32 for each float32, in the same order."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)  # there are two zeros
    return tl.where(bits < 0, bits ^ HIGHEST, bits)


@triton.jit
def _load(row, ids, size):
    return tl.load(row + ids, mask=ids < size, other=float("-inf")).to(tl.float32)


@triton.jit
def _is_before(key, ids, place_key, place_id):
    return (key > place_key) | ((key == place_key) & (ids < place_id))


@triton.jit
def _typicality(score, best, rate, mean):
    """Surprise less entropy, as the distance from the mean log-probability; larger is better."""
    return _ordered(-tl.abs((score - best) * rate - mean))


@triton.jit
def _weigh(
    row, size, pivot, best, rate, mean, place_key, place_id,
    COUNT: tl.constexpr, TYPICAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of the tokens before the place: the weight of those with a key above `pivot`, the lowest such
    key, and the highest of the others."""
    weight = tl.zeros([BLOCK], tl.float32)
    above = tl.full([BLOCK], HIGHEST, tl.int32)
    below = tl.full([BLOCK], LOWEST, tl.int32)
    for start in range(0, size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        score = _load(row, ids, size)
        key = _ordered(score)
        kept = (ids < size) & _is_before(key, ids, place_key, place_id)
        if TYPICAL:
            key = _typicality(score, best, rate, mean)
        counted = kept & (key > pivot)
        if COUNT:
            weight += tl.where(counted, 1.0, 0.0)
        else:
            weight += tl.where(counted, tl.exp2((score - best) * rate * LOG2_E), 0.0)
        above = tl.minimum(above, tl.where(counted, key, HIGHEST))
        below = tl.maximum(below, tl.where(kept & (key <= pivot), key, LOWEST))
    return tl.sum(weight, 0), tl.min(above, 0), tl.max(below, 0)


@triton.jit
def _first_outside(
    row, size, target, weight, last, best, rate, mean, place_key, place_id,
    COUNT: tl.constexpr, TYPICAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first id with the key `last` before which the weight reaches `target`; `weight` is that
    of the tokens with higher keys."""
    found = size
    for start in range(0, size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        score = _load(row, ids, size)
        key = _ordered(score)
        equal = (ids < size) & _is_before(key, ids, place_key, place_id)
        if TYPICAL:
            key = _typicality(score, best, rate, mean)
        equal = equal & (key == last)
        if COUNT:
            own = tl.where(equal, 1.0, 0.0)
        else:
            own = tl.where(equal, tl.exp2((score - best) * rate * LOG2_E), 0.0)
        before = weight + tl.cumsum(own, 0) - own
        found = tl.minimum(found, tl.min(tl.where(equal & (before >= target), ids, size), 0))
        weight += tl.sum(own, 0)
    return found


@triton.jit
def _place(
    row, size, wanted, highest, best, rate, mean, place_key, place_id,
    COUNT: tl.constexpr, TYPICAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The place of the smallest set of best tokens before a place that weigh `wanted`, a number of
    tokens or a share of the mass; the place itself if there are too few. `highest`: no key is
    higher."""
    total, low, _ = _weigh(
        row, size, LOWEST, best, rate, mean, place_key, place_id, COUNT, TYPICAL, BLOCK
    )
    target = wanted
    if not COUNT:
        target = wanted * total
    found_key, found_id = place_key, place_id
    if total >= target:
        # the last key of the set is from `low` to `high`; what is above `high` weighs `weight`
        high = highest
        weight = 0.0
        while low < high:
            pivot = ((low.to(tl.int64) + high.to(tl.int64)) >> 1).to(tl.int32)
            beyond, above, below = _weigh(
                row, size, pivot, best, rate, mean, place_key, place_id, COUNT, TYPICAL, BLOCK
            )
            if beyond >= target:
                low = above
            else:
                high = below
                weight = beyond
        found_key = high
        found_id = _first_outside(
            row, size, target, weight, high, best, rate, mean, place_key, place_id,
            COUNT, TYPICAL, BLOCK,
        )  # fmt: skip
    return found_key, found_id


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=ROW_BY_ROW)
def _truncate(
    scores, temperature, top_k, top_p, min_p, typical_p, places, centres, stride, size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The places of a row's sets, by score and by typicality; what typicality is relative to."""
    at = tl.program_id(0).to(tl.int64)
    row = scores + at * stride
    key, first = LOWEST, size
    typical_key, typical_first = LOWEST, size
    best, mean = 0.0, 0.0
    kelvin = tl.load(temperature + at)
    k, p = tl.load(top_k + at), tl.load(top_p + at)
    least, typical = tl.load(min_p + at), tl.load(typical_p + at)
    if (kelvin > 0) & ((k < size) | (p < 1) | (least > 0) | (typical < 1)):
        rate = 1.0 / kelvin
        tops = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, size, BLOCK):
            tops = tl.maximum(tops, _load(row, start + tl.arange(0, BLOCK), size))
        best = tl.max(tops, 0)
        highest = _ordered(best)
        if best > float("-inf"):
            if least > 0:
                key = _ordered(best + kelvin * tl.log(least))
            if k < size:
                key, first = _place(
                    row, size, k.to(tl.float32), highest, best, rate, mean, key, first,
                    True, False, BLOCK,
                )  # fmt: skip
            if p < 1:
                key, first = _place(
                    row, size, p, highest, best, rate, mean, key, first, False, False, BLOCK
                )
            if typical < 1:
                mass = tl.zeros([BLOCK], tl.float32)
                moment = tl.zeros([BLOCK], tl.float32)
                for start in range(0, size, BLOCK):
                    ids = start + tl.arange(0, BLOCK)
                    score = _load(row, ids, size)
                    kept = (score > float("-inf")) & _is_before(_ordered(score), ids, key, first)
                    log = tl.where(kept, (score - best) * rate, 0.0)
                    own = tl.where(kept, tl.exp2(log * LOG2_E), 0.0)
                    mass += own
                    moment += own * log
                mean = tl.sum(moment, 0) / tl.sum(mass, 0)
                typical_key, typical_first = _place(
                    row, size, typical, 0, best, rate, mean, key, first, False, True, BLOCK
                )
    tl.store(places + at * 4, key)
    tl.store(places + at * 4 + 1, first)
    tl.store(places + at * 4 + 2, typical_key)
    tl.store(places + at * 4 + 3, typical_first)
    tl.store(centres + at * 2, best)
    tl.store(centres + at * 2 + 1, mean)


@triton.jit(do_not_specialize=["size", "pieces"], do_not_specialize_on_alignment=ROW_BY_ROW)
def _race(
    scores, seeds, known, temperature, places, centres, tops, winners, stride, size, pieces,
    NOISE: tl.constexpr, CUTS: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best score, with noise, of a piece of a row, and the first token that has it."""
    at, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = scores + at * stride
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    winner = tl.zeros([BLOCK], tl.int32)
    if NOISE:
        kelvin = tl.load(temperature + at)
        rate = 1.0 / tl.where(kelvin > 0, kelvin, 1.0)
        key = _key(tl.load(seeds + at), tl.load(known + at))
    for start in range(piece * PIECE, tl.minimum(size, (piece + 1) * PIECE), BLOCK):
        ids = start + tl.arange(0, BLOCK)
        score = _load(row, ids, size)
        if CUTS:
            kept = _is_before(
                _ordered(score), ids, tl.load(places + at * 4), tl.load(places + at * 4 + 1)
            )
            likely = _typicality(
                score, tl.load(centres + at * 2), rate, tl.load(centres + at * 2 + 1)
            )
            kept = kept & _is_before(
                likely, ids, tl.load(places + at * 4 + 2), tl.load(places + at * 4 + 3)
            )
            score = tl.where(kept, score, float("-inf"))
        if NOISE:
            score = tl.where(kelvin > 0, score * rate + _gumbel(ids, key), score)
        better = score > top
        top = tl.where(better, score, top)
        winner = tl.where(better, ids, winner)
    best = tl.max(top, 0)
    tl.store(tops + at * pieces + piece, best)
    tl.store(winners + at * pieces + piece, tl.min(tl.where(top == best, winner, HIGHEST), 0))


@triton.jit(do_not_specialize=["pieces", "length"], do_not_specialize_on_alignment=ROW_BY_ROW)
def _finish(tops, winners, tokens, ids, known, pieces, length, PIECES: tl.constexpr):
    """The row's token, known from then on."""
    at = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    there = piece < pieces
    top = tl.load(tops + at * pieces + piece, mask=there, other=float("-inf"))
    winner = tl.load(winners + at * pieces + piece, mask=there, other=HIGHEST)
    token = tl.min(tl.where(top == tl.max(top, 0), winner, HIGHEST), 0).to(tl.int64)
    count = tl.load(known + at)
    tl.store(tokens + at, token)
    tl.store(ids + at * length + tl.minimum(count, length - 1), token)
    tl.store(known + at, count + 1)


def _launch(
    scores: Tensor,
    seeds: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    typical_p: Tensor,
    ids: Tensor,
    known: Tensor,
    noise: bool,
    cuts: bool,
) -> Tensor:
    rows, size = scores.shape
    device = scores.device
    pieces = triton.cdiv(size, PIECE)
    places = torch.empty(rows if cuts else 0, 4, dtype=torch.int32, device=device)
    centres = torch.empty(rows if cuts else 0, 2, dtype=torch.float32, device=device)
    tops = torch.empty(rows, pieces, dtype=torch.float32, device=device)
    winners = torch.empty(rows, pieces, dtype=torch.int32, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    # a set's last token is found by equality of what two kernels compute: no FMA in one of them
    exact = {"enable_fp_fusion": False}
    if cuts:
        _truncate[(rows,)](
            scores, temperature, top_k, top_p, min_p, typical_p, places, centres,
            scores.stride(0), size, TRUNCATED_TOGETHER, num_warps=16, **exact,
        )  # fmt: skip
    _race[(rows, pieces)](
        scores, seeds, known, temperature, places, centres, tops, winners,
        scores.stride(0), size, pieces, noise, cuts, PIECE, BLOCK, **exact,
    )  # fmt: skip
    _finish[(rows,)](
        tops, winners, tokens, ids, known, pieces, ids.shape[1], triton.next_power_of_2(pieces),
        num_warps=1,
    )  # fmt: skip
    return tokens


def _fake(scores: Tensor, *_: object) -> Tensor:
    return scores.new_empty(len(scores), dtype=torch.int64)


draw = operator(
    "draw",
    "(Tensor scores, Tensor seeds, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
    "Tensor typical_p, Tensor(a!) ids, Tensor(b!) known, bool noise, bool cuts) -> Tensor",
    _launch,
    _fake,
)
