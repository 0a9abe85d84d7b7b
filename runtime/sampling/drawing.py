"""From logits to the next token, for all rows of a batch in a fixed number of torch's operators.

`Drawing` defines what is drawn. It runs where no kernel of this project does:
kernels/sampling/sampling.cpp computes the same on CPUs and kernels/gpu/sampling.py on GPUs, both
without a sort. The settings of all rows are tensors, so no operator and no transfer serves a single
row; what no row asks for is not computed.

Sampling uses the Gumbel-max trick: argmax(log p + g) with independent Gumbel noise g draws from p
(Gumbel 1954; Maddison et al., "A* Sampling", 2014, section 2). The noise comes from a
counter-based generator instead of a stateful one (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC '11), so a request draws the same tokens in any batch, after any number of
preemptions and on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Asked:
    """The sampling settings of a batch's rows. The kernel reads the members in this order."""

    seeds: Tensor  # [R] int64, as are the next two
    prompt: Tensor  # tokens
    top_k: Tensor  # V where there is no limit
    temperature: Tensor  # [R] float32, as are the next six; 0 is greedy
    top_p: Tensor
    min_p: Tensor
    typical_p: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    # [R, E]: tokens named by the request, and what is added to their logits while fewer than
    # `until` tokens are known; padded with gains of 0
    edited: Tensor  # int64
    until: Tensor  # int64
    gains: Tensor  # float32


@dataclass(frozen=True, slots=True)
class Wants:
    """What is asked for by at least one row."""

    penalties: bool
    edits: bool
    noise: bool
    cuts: bool  # of any kind, by a row that draws with noise
    top_k: bool  # a cut by it, as of the next two
    top_p: bool
    typical: bool


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that some rows may draw."""

    rows: Tensor  # [M] int64
    bits: Tensor  # [M, ceil(V / 32)] int32: bit i % 32 of word i // 32 is token i

    def only(self, scores: Tensor) -> Tensor:
        """Scores `[R, V]`, in place, -inf where a token is not allowed. If all that are allowed
        have been excluded, by a bias or by `min_tokens`, they are equal."""
        ids = torch.arange(scores.shape[-1], device=scores.device)
        allowed = (self.bits[:, ids >> 5] >> (ids & 31) & 1).bool()  # [M, V]
        kept = scores.index_select(0, self.rows).masked_fill_(~allowed, -torch.inf)
        excluded = (kept == -torch.inf).all(-1, keepdim=True)
        kept.masked_fill_(excluded & allowed, 0.0)
        return scores.index_copy_(0, self.rows, kept)


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the rows of a batch draw."""

    asked: Asked
    wants: Wants
    ids: Tensor  # [R, L] int64: known tokens, padded with any of the row; without penalties L is 1
    known: Tensor  # [R] int64: how many are known
    allowed: Allowed | None = None

    def draw(self, logits: Tensor) -> Tensor:
        """logits `[R, V]` -> next tokens `[R]`, the first of equal ones. Does not change the
        logits."""
        # torch.max also returns the first of equals; it took 2.2 ms, argmax 10.5 (64 x 50257
        # bfloat16, one core)
        return self.scores(logits).max(-1).indices

    def append(self, tokens: Tensor) -> None:
        """Appends one token `[R]` to each row's, in place."""
        place = self.known.clamp(max=self.ids.shape[1] - 1)
        self.ids.scatter_(1, place[:, None], tokens[:, None])
        self.known.add_(1)

    def scores(self, logits: Tensor) -> Tensor:
        """The scores `[R, V]`; the token of a row is the one with the largest."""
        scores = self.shaped(logits)
        if not self.wants.noise:
            return scores
        temperature = self.asked.temperature[:, None]
        noisy = temperature > 0
        kept = scores / torch.where(noisy, temperature, 1.0)
        if self.wants.cuts:
            kept = truncated(kept, self.asked, typical=self.wants.typical)
        noise = gumbel(keys(self.asked.seeds, self.known), logits.shape[-1])
        return torch.where(noisy, kept + noise, scores)

    def shaped(self, logits: Tensor) -> Tensor:
        """Logits `[R, V]` with penalties, bias and masks, as float; the logits themselves if no row
        has any.

        Repetition: Keskar et al., "CTRL" (2019), section 4.1, over all known tokens, as in TGI and
        `transformers`. Presence and frequency: OpenAI's API reference, over generated tokens:
        logit - frequency_penalty * count - presence_penalty * (count > 0).
        """
        asked, ids, wants = self.asked, self.ids, self.wants
        if not (wants.penalties or wants.edits or self.allowed is not None):
            return logits
        # rows side by side, one row as well: Triton compiles a kernel for how they are aligned
        scores = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        known = self.known[:, None]
        if wants.penalties:
            place = torch.arange(ids.shape[1], device=logits.device)
            generated = (place >= asked.prompt[:, None]) & (place < known)
            counts = torch.zeros(scores.shape, dtype=torch.int32, device=logits.device)
            counts.scatter_add_(1, ids, generated.int())
            count = counts.gather(1, ids)
            named = scores.gather(1, ids)
            rate = asked.repetition[:, None]
            named = torch.where(named < 0, named * rate, named / rate)
            named -= count * asked.frequency[:, None] + (count > 0) * asked.presence[:, None]
            scores.scatter_(1, ids, named)  # a token named twice has the same value twice
        if wants.edits:
            gains = torch.where(known < asked.until, asked.gains, 0.0)
            scores.scatter_add_(1, asked.edited, gains)
        return scores if self.allowed is None else self.allowed.only(scores)


def truncated(scores: Tensor, asked: Asked, *, typical: bool = True) -> Tensor:
    """Scores `[R, V]`, -inf outside of `min_p`, then `top_k`, then `top_p`, then `typical_p`. Of
    equal tokens the lower id comes first.

    min_p (Nguyen et al., "Turning Up the Heat", ICLR '25) keeps tokens at least min_p times as
    likely as the likeliest. The nucleus (Holtzman et al., "The Curious Case of Neural Text
    Degeneration", ICLR '20) is the smallest set of best tokens whose probabilities reach top_p. The
    typical set (Meister et al., "Locally Typical Sampling", TACL '23) is the smallest set of mass
    typical_p whose surprise is closest to the entropy. The mass of each set is relative to what the
    sets before it kept. `typical`: whether a row asks for it.
    """
    least = scores.max(-1, keepdim=True).values + asked.min_p[:, None].log()
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    out = torch.arange(scores.shape[-1], device=scores.device) >= asked.top_k[:, None]
    ordered = ordered.masked_fill(out | (ordered < least), -torch.inf)
    ordered = _first(ordered, ordered.softmax(-1), asked.top_p)
    scores = torch.empty_like(scores).scatter_(1, ids, ordered)
    if not typical:
        return scores
    log_p = scores.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p).nan_to_num().sum(-1, keepdim=True)  # 0 x -inf of tokens excluded already
    ids = (-log_p - entropy).abs().sort(dim=-1, stable=True).indices
    ordered = _first(scores.gather(1, ids), p.gather(1, ids), asked.typical_p)
    return torch.empty_like(scores).scatter_(1, ids, ordered)


def _first(ordered: Tensor, p: Tensor, mass: Tensor) -> Tensor:
    """Keeps the first tokens of each row, as many as their probabilities `p` need to reach its
    mass."""
    before = F.pad(p.cumsum(-1)[:, :-1], (1, 0))
    out = (before >= mass[:, None]) & (mass[:, None] < 1)
    return ordered.masked_fill(out, -torch.inf)


def gumbel(keys: Tensor, size: int) -> Tensor:
    """Standard Gumbel noise `[R, size]` for int32 `keys` `[R]`."""
    ids = torch.arange(size, dtype=torch.int32, device=keys.device)
    bits = _mix(_mix(ids)[None, :] ^ keys[:, None])
    # 23 bits and a half: strictly between 0 and 1 in float32, so both logarithms are finite
    uniform = (((bits >> 9) & 0x7FFFFF).float() + 0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _mix(x: Tensor) -> Tensor:
    """Wellons' 32-bit integer hash "lowbias32"; int32 wraps, masks make the shifts logical."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)


def keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """int32 keys of int64 seeds and positions: the finaliser of splitmix64; int64 wraps, too."""
    z = seeds * (0x9E3779B97F4A7C15 - 2**64) + positions * (0xD1B54A32D192ED03 - 2**64) + 1
    z = (z ^ ((z >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    z = (z ^ ((z >> 31) & (2**33 - 1))) & (2**32 - 1)
    return (z - 2**31).int()
