"""Triton kernels that draw the next tokens, as `runtime.sampling.drawing.draw` defines them.

A program serves a piece of a row. `_race` reads each score once: it hashes, adds noise and keeps
the best token of its piece. `_finish` takes the best of them and appends it to what the row knows.

Rows that truncate need passes before, a launch each. `_peak` finds the best score. Then `_narrow`
finds the last token of each set: it divides the interval of scores within which that token lies
into `BINS` bins, and sums the weight of each bin in each piece; every program of the next launch
adds these sums up in the same order, and so knows which bin is the next interval. Three such passes
are enough for any bfloat16s, and nothing is sorted. Tokens are ordered by score, equal ones by id:
which of the tokens that equal the last one are inside is known for all pieces but one, and that one
adds its equals up. A row's token does not depend on the rows beside it.

Selection by pivots instead of sorting: "FlashInfer", Ye et al., 2025, section 3.4.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.operators import operator

PIECE = 4096  # tokens of a row that one program reads, all at once
BINS = tl.constexpr(41)  # the third power exceeds the number of bfloat16s
# the settings of rows lie one after the other: whether one begins at a multiple of 16 bytes depends
# on the number of rows, and must not compile the kernels again
ROW_BY_ROW = [
    *("seeds", "known", "temperature", "top_k", "top_p", "min_p", "typical_p", "ids", "tokens"),
]
LOWEST = tl.constexpr(-(2**31))
HIGHEST = tl.constexpr(2**31 - 1)
LOWEST_SCORE = tl.constexpr(-2139095041)  # -inf as `_ordered`
# what a launch sums: tokens, their mass, what is typical of that, mass again; ALL: after these
COUNT, MASS, MOMENTS, TYPICAL, ALL = (tl.constexpr(kind) for kind in range(5))
# a score's bits behind those that its type has as a float32, and the steps that find one of the
# scores: with 41 bins each, as many as leave a single score in the interval
SHIFTS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
STEPS = {torch.bfloat16: 3, torch.float16: 4, torch.float32: 6}
WIDE_STEPS = tl.constexpr(6)  # of typicality, which is a float32
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
def _load(row, ids, size, readable):
    """Up to `readable`, of which a compiler knows more than of `size`, a row may be read."""
    score = tl.load(row + ids, mask=ids < readable, other=float("-inf")).to(tl.float32)
    return tl.where(ids < size, score, float("-inf"))


@triton.jit
def _best(tops, at, pieces, PIECES: tl.constexpr):
    piece = tl.arange(0, PIECES)
    return tl.max(tl.load(tops + at * pieces + piece, mask=piece < pieces, other=float("-inf")), 0)


@triton.jit
def _bins(sums, at, pieces, PIECES: tl.constexpr):
    """[PIECES, 64]: what a step has summed."""
    piece, bin = tl.arange(0, PIECES)[:, None], tl.arange(0, 64)[None, :]
    there = (piece < pieces) & (bin < BINS)
    return tl.load(sums + (at * pieces + piece) * BINS + bin, mask=there, other=0.0)


@triton.jit
def _advance(
    edges, weights, sums, at, piece, pieces, wanted, begins, COUNTS: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """After a step: the interval of the set's last key, the weight of what is above it, the set's
    weight, and the weights of the interval's keys before this piece and in it. `begins`: the step
    was the first, over all keys; of a share of the mass the weight is known only then."""
    low, high = tl.load(edges + at * 2), tl.load(edges + at * 2 + 1)
    above, target = tl.load(weights + at * 2), tl.load(weights + at * 2 + 1)
    found = _bins(sums, at, pieces, PIECES)
    bin = tl.arange(0, 64)
    own = tl.sum(found, 0)
    until = above + tl.cumsum(own, 0)
    if begins:
        target = wanted
        if not COUNTS:
            target = wanted * tl.max(until, 0)
    chosen = tl.minimum(tl.sum(((until < target) & (bin < BINS)).to(tl.int32), 0), BINS - 1)
    if chosen > 0:
        above = tl.sum(tl.where(bin == chosen - 1, until, 0.0), 0)
    width = (high - low) // BINS + 1
    high = high - chosen * width
    low = tl.maximum(low, high - width + 1)
    its = tl.sum(tl.where(bin[None, :] == chosen, found, 0.0), 1)
    of = tl.arange(0, PIECES)
    before = above + tl.sum(tl.where(of < piece, its, 0.0), 0)
    mine = tl.sum(tl.where(of == piece, its, 0.0), 0)
    return low, high, above, target, before, mine


@triton.jit
def _first(
    kept, key, own, edges, weights, sums, at, piece, pieces, wanted,
    COUNTS: tl.constexpr, SHIFT: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Of the kept tokens, those of the set whose last key the steps before have found."""
    _, last, _, target, before, mine = _advance(
        edges, weights, sums, at, piece, pieces, wanted, False, COUNTS, PIECES
    )
    equal = kept & ((key >> SHIFT) == last)
    inside = tl.where(equal, before, target) < target
    if (before < target) & (before + mine >= target):
        its = tl.where(equal, own, 0.0)
        inside = equal & (before + tl.cumsum(its, 0) - its < target)
    return kept & (((key >> SHIFT) > last) | inside)


@triton.jit
def _kept(
    score, ids, at, piece, rows, temperature, top_k, top_p, min_p, typical_p, tops, edges, weights,
    sums, size, pieces,
    KIND: tl.constexpr, SHIFT: tl.constexpr, STEPS: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """The tokens that the cuts before `KIND` keep, their weights, what typicality is of them, the
    best score, and whether the row is cut at all."""
    kelvin = tl.load(temperature + at)
    rate = 1.0 / tl.where(kelvin > 0, kelvin, 1.0)
    best = _best(tops, at, pieces, PIECES)
    there = (kelvin > 0) & (best > float("-inf"))
    kept = ids < size
    key = _ordered(score)
    own = tl.zeros_like(score)
    likely = tl.zeros_like(key)
    if there:
        log = (score - best) * rate
        own = tl.exp2(log * LOG2_E)
        least = tl.load(min_p + at)
        if least > 0:
            kept = kept & (key >= _ordered(best + kelvin * tl.log(least)))
        if KIND > COUNT:
            k = tl.load(top_k + at)
            if k < size:
                step = (STEPS - 1) * rows
                kept = _first(
                    kept, key, tl.full(score.shape, 1.0, tl.float32), edges + step * 2,
                    weights + step * 2, sums + step * pieces * BINS, at, piece, pieces,
                    k.to(tl.float32), True, SHIFT, PIECES,
                )  # fmt: skip
        if KIND > MASS:
            p = tl.load(top_p + at)
            if p < 1:
                step = (2 * STEPS - 1) * rows
                kept = _first(
                    kept, key, own, edges + step * 2, weights + step * 2,
                    sums + step * pieces * BINS, at, piece, pieces, p, False, SHIFT, PIECES,
                )  # fmt: skip
        if KIND > MOMENTS:
            typical = tl.load(typical_p + at)
            if typical < 1:
                # surprise less entropy, as the distance from the mean log-probability
                both = tl.sum(_bins(sums + 2 * STEPS * rows * pieces * BINS, at, pieces, PIECES), 0)
                bin = tl.arange(0, 64)
                mass = tl.sum(tl.where(bin == 0, both, 0.0), 0)
                mean = tl.sum(tl.where(bin == 1, both, 0.0), 0) / mass
                likely = _ordered(-tl.abs(log - mean))
                if KIND > TYPICAL:
                    step = (2 * STEPS + WIDE_STEPS) * rows
                    kept = _first(
                        kept, likely, own, edges + step * 2, weights + step * 2,
                        sums + step * pieces * BINS, at, piece, pieces, typical, False, 0, PIECES,
                    )  # fmt: skip
    return kept, own, key, likely, best, there


@triton.jit(do_not_specialize=["size", "pieces"])
def _peak(scores, tops, stride, size, readable, pieces, PIECE: tl.constexpr):
    """The best score of a piece of a row."""
    at, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = piece * PIECE + tl.arange(0, PIECE)
    tl.store(
        tops + at * pieces + piece, tl.max(_load(scores + at * stride, ids, size, readable), 0)
    )


@triton.jit(
    do_not_specialize=["size", "pieces", "rows", "step"], do_not_specialize_on_alignment=ROW_BY_ROW
)
def _narrow(
    scores, temperature, top_k, top_p, min_p, typical_p, tops, edges, weights, sums,
    stride, size, readable, pieces, rows, step,
    KIND: tl.constexpr, SHIFT: tl.constexpr, STEPS: tl.constexpr,
    PIECE: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """One step towards the last token of the row's set of a kind: the weights of the bins."""
    at, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if KIND == COUNT:
        k = tl.load(top_k + at)
        wanted, asked = k.to(tl.float32), k < size
    elif KIND == MASS:
        wanted = tl.load(top_p + at)
        asked = wanted < 1
    else:
        wanted = tl.load(typical_p + at)
        asked = wanted < 1
    if asked:
        ids = piece * PIECE + tl.arange(0, PIECE)
        score = _load(scores + at * stride, ids, size, readable)
        kept, own, key, likely, best, there = _kept(
            score, ids, at, piece, rows, temperature, top_k, top_p, min_p, typical_p, tops, edges,
            weights, sums, size, pieces, KIND, SHIFT, STEPS, PIECES,
        )  # fmt: skip
        if there:
            here = sums + ((step.to(tl.int64) * rows + at) * pieces + piece) * BINS
            all = tl.arange(0, 64)
            if KIND == MOMENTS:
                kept = kept & (score > float("-inf"))
                log = tl.where(kept, (score - best) * (1.0 / tl.load(temperature + at)), 0.0)
                own = tl.where(kept, own, 0.0)
                both = tl.where(all == 0, tl.sum(own, 0), 0.0)
                both = tl.where(all == 1, tl.sum(own * log, 0), both)
                tl.store(here + all, both, mask=all < BINS)
            else:
                if KIND == TYPICAL:
                    begin, shift, high = 2 * STEPS + 1, 0, 0
                    key = likely
                else:
                    begin, shift, high = KIND * STEPS, SHIFT, _ordered(best) >> SHIFT
                if KIND == COUNT:
                    own = tl.full([PIECE], 1.0, tl.float32)
                low = tl.full([], LOWEST_SCORE >> shift, tl.int64)
                high = tl.full([], 0, tl.int64) + high
                above, target = 0.0, 0.0
                if step > begin:
                    last = (step - 1).to(tl.int64) * rows
                    low, high, above, target, _, _ = _advance(
                        edges + last * 2, weights + last * 2, sums + last * pieces * BINS, at,
                        piece, pieces, wanted, step - 1 == begin, KIND == COUNT, PIECES,
                    )  # fmt: skip
                if piece == 0:
                    this = (step.to(tl.int64) * rows + at) * 2
                    tl.store(edges + this, low)
                    tl.store(edges + this + 1, high)
                    tl.store(weights + this, above)
                    tl.store(weights + this + 1, target)
                width = ((high - low) // BINS + 1).to(tl.uint32)
                key = key >> shift
                inside = kept & (key >= low) & (key <= high)
                bin = ((high.to(tl.int32) - key).to(tl.uint32, bitcast=True) // width).to(tl.int32)
                bin = tl.where(inside, bin, BINS)
                found = tl.zeros([64], tl.float32)
                for each in range(tl.min(bin, 0), tl.max(tl.where(inside, bin, -1), 0) + 1):
                    weight = tl.sum(tl.where(bin == each, own, 0.0), 0)
                    found = tl.where(all == each, weight, found)
                tl.store(here + all, found, mask=all < BINS)


@triton.jit(do_not_specialize=["size", "pieces", "rows"], do_not_specialize_on_alignment=ROW_BY_ROW)
def _race(
    scores, seeds, known, temperature, top_k, top_p, min_p, typical_p, peaks, edges, weights, sums,
    tops, winners, stride, size, readable, pieces, rows,
    NOISE: tl.constexpr, CUTS: tl.constexpr, SHIFT: tl.constexpr, STEPS: tl.constexpr,
    PIECE: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """The best score, with noise, of a piece of a row, and the first token that has it."""
    at, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = piece * PIECE + tl.arange(0, PIECE)
    score = _load(scores + at * stride, ids, size, readable)
    if NOISE:
        kelvin = tl.load(temperature + at)
        if kelvin > 0:
            if CUTS:
                kept, _, _, _, _, _ = _kept(
                    score, ids, at, piece, rows, temperature, top_k, top_p, min_p, typical_p, peaks,
                    edges, weights, sums, size, pieces, ALL, SHIFT, STEPS, PIECES,
                )  # fmt: skip
                score = tl.where(kept, score, float("-inf"))
            key = _key(tl.load(seeds + at), tl.load(known + at))
            score = score * (1.0 / kelvin) + _gumbel(ids, key)
    best = tl.max(score, 0)
    tl.store(tops + at * pieces + piece, best)
    winner = tl.min(tl.where((score == best) & (ids < size), ids, HIGHEST), 0)
    tl.store(winners + at * pieces + piece, winner)


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


@operator(
    lambda scores, *_: scores.new_empty(len(scores), dtype=torch.int64), changes=("ids", "known")
)
def draw(
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
    by_count: bool,
    by_mass: bool,
    by_typicality: bool,
) -> Tensor:
    """scores `[R, V]`, settings of the rows `[R]`, and the tokens that they know, ids `[R, L]` and
    known `[R]` -> the next ones `[R]`, known from then on. `noise`, `cuts`, `by_...`: whether a row
    asks for it."""
    rows, size = scores.shape
    stride, device = scores.stride(0), scores.device
    pieces = triton.cdiv(size, PIECE)
    together = triton.next_power_of_2(pieces)
    # the head pads rows, and a load of 16 bytes may reach into the padding
    whole = triton.cdiv(size, 16) * 16
    readable = whole if stride % 16 == 0 and stride >= whole else size
    shift, steps = SHIFTS[scores.dtype], STEPS[scores.dtype]
    middle, end = 2 * steps, 2 * steps + 1 + WIDE_STEPS.value
    launches = end if cuts else 0
    peaks = torch.empty(rows if cuts else 0, pieces, dtype=torch.float32, device=device)
    edges = torch.empty(launches, rows, 2, dtype=torch.int64, device=device)
    weights = torch.empty(launches, rows, 2, dtype=torch.float32, device=device)
    sums = torch.empty(launches, rows, pieces, BINS.value, dtype=torch.float32, device=device)
    tops = torch.empty(rows, pieces, dtype=torch.float32, device=device)
    winners = torch.empty(rows, pieces, dtype=torch.int32, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    # a set's last token is found by equality of what two kernels compute: no FMA in one of them
    exact = {"enable_fp_fusion": False}
    asked = temperature, top_k, top_p, min_p, typical_p
    if cuts:
        _peak[(rows, pieces)](scores, peaks, stride, size, readable, pieces, PIECE)
    for is_asked, kind, numbers in (
        (by_count, COUNT, range(steps)),
        (by_mass, MASS, range(steps, middle)),
        (by_typicality, MOMENTS, range(middle, middle + 1)),
        (by_typicality, TYPICAL, range(middle + 1, end)),
    ):
        for step in numbers if is_asked else ():
            _narrow[(rows, pieces)](
                scores, *asked, peaks, edges, weights, sums,
                stride, size, readable, pieces, rows, step,
                kind.value, shift, steps, PIECE, together, num_warps=8, **exact,
            )  # fmt: skip
    _race[(rows, pieces)](
        scores, seeds, known, *asked, peaks, edges, weights, sums, tops, winners,
        stride, size, readable, pieces, rows,
        noise, cuts, shift, steps, PIECE, together, num_warps=16 if cuts else 8, **exact,
    )  # fmt: skip
    _finish[(rows,)](tops, winners, tokens, ids, known, pieces, ids.shape[1], together, num_warps=1)
    return tokens
