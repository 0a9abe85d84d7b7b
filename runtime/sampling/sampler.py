"""The next tokens of a batch, and their logprobs.

The settings of the rows are staged as tensors when the batch changes, and reused until it changes
again. `drawing.py` defines what is drawn; kernels draw it, on CPUs kernels/sampling/sampling.cpp,
on GPUs kernels/gpu/sampling.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from operator import is_
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kernels import draw_kernel
from runtime.grammar.matching import Masks
from runtime.sampling.drawing import Allowed, Asked, Drawing, Wants
from runtime.transfer import send
from seams import Opening, Sampling

ALWAYS = 2**62  # known tokens that no sequence reaches
SPARE = 64  # tokens that a staged batch may draw
TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}  # of logits that kernels take
# of `Sampling`, in the order of `Asked`
RATES = (
    *("temperature", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)

# one of each kind: by whether a batch draws with noise, truncates, and changes its logits before
KINDS = [
    replace(kind, presence_penalty=penalty)
    for kind in (
        Sampling(temperature=0.0),
        Sampling(temperature=1.0),
        Sampling(temperature=1.0, top_k=1, top_p=0.9, typical_p=0.9),
    )
    for penalty in (0.0, 1.0)
]


class Known(Protocol):
    """The parts of a sequence that sampling reads; a `seams.Opening` has them."""

    @property
    def ids(self) -> Sequence[int]: ...  # the prompt, then what was generated

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def sampling(self) -> Sampling: ...


class Sampler:
    """Draws for one batch after the other. A batch with the same rows, each longer by what was
    drawn, is staged once."""

    def __init__(self, *, kernel: bool = False) -> None:
        """`kernel`: whether Triton kernels draw, on a GPU or interpreted on a CPU."""
        self._kernel = kernel
        self._ids: list[Sequence[int]] = []
        self._known: list[int] = []
        self._batch: StagedBatch | None = None

    def warm_up(self, logits: Tensor) -> None:
        """Draws after logits `[1, V]` in all ways that Triton compiles separately, so that no
        request waits for it."""
        for sampling in KINDS:
            row = Opening(0, (0,), 1, sampling)
            StagedBatch([row], logits.shape[-1], logits.device, kernel=self._kernel).draw(logits)

    def draw(
        self,
        logits: Tensor,
        rows: Sequence[Known],
        masks: Masks | None = None,
        learn: Callable[[], object] | None = None,
    ) -> Tensor:
        """logits `[R, V]` -> next tokens `[R]`. Does not change the logits. `learn`: is called if
        the newest ids are needed, not only their number: for penalties of a batch to be staged."""
        ids = [row.ids for row in rows]
        known = list(map(len, ids))
        if self._batch is None or not self._continues(self._batch, ids, known):
            if learn is not None and any(_is_penalised(row.sampling) for row in rows):
                learn()
            # not the rows themselves, which may hold more than they know; a row's list is its own
            self._ids = ids
            self._batch = StagedBatch(rows, logits.shape[-1], logits.device, kernel=self._kernel)
        elif known != self._known:
            self._batch.skip_to(known)
        self._known = [count + 1 for count in known]
        return self._batch.draw(logits, masks)

    def _continues(self, batch: StagedBatch, ids: list[Sequence[int]], known: list[int]) -> bool:
        """Whether the batch is staged: as it was drawn for, or where its tokens do not matter, also
        with rows to which some were added since."""
        return (
            (known == self._known or (len(known) == len(self._known) and not batch.has_ids))
            and batch.left > 0
            and all(map(is_, ids, self._ids))
        )


class StagedBatch:
    """Rows that draw together, token after token, while the staged tensors have space."""

    def __init__(
        self, rows: Sequence[Known], vocab_size: int, device: torch.device, *, kernel: bool
    ) -> None:
        self._drawing = drawing_of(rows, vocab_size, device)
        self.left = SPARE
        self._triton = kernel
        asked = self._drawing.asked
        members = [getattr(asked, field.name).data_ptr() for field in fields(Asked)]
        self._members = (ctypes.c_void_p * len(members))(*members)

    @property
    def has_ids(self) -> bool:
        """Whether the known tokens matter, and not only their number."""
        return self._drawing.wants.penalties

    def skip_to(self, known: Sequence[int]) -> None:
        """The rows know so many tokens now."""
        here = self._drawing.known
        (there,) = send([np.array(known)], here.device)
        here.copy_(there)

    def draw(self, logits: Tensor, masks: Masks | None = None) -> Tensor:
        """logits `[R, V]` -> the next tokens `[R]`, known from then on."""
        self.left -= 1
        drawing = self._drawing
        kernel = None
        if not self._triton and logits.device.type == "cpu" and logits.dtype in TYPES:
            kernel = draw_kernel(TYPES[logits.dtype])
        if kernel is None:
            if masks is not None:
                drawing = replace(drawing, allowed=allowed_of(masks, logits.device))
            if self._triton:
                return _by_triton(drawing, logits)
            tokens = drawing.draw(logits)
            drawing.append(tokens)
            return tokens
        logits = logits.contiguous()
        tokens = torch.empty(len(logits), dtype=torch.int64)
        of_masks: tuple[int | None, int | None, int] = (None, None, 0)
        if masks is not None:
            of_masks = masks.bits.ctypes.data, masks.places.ctypes.data, masks.bits.shape[1]
        kernel(
            logits.data_ptr(), *logits.shape, self._members, drawing.asked.edited.shape[1],
            *of_masks, drawing.ids.data_ptr(), drawing.ids.shape[1], drawing.known.data_ptr(),
            tokens.data_ptr(),
        )  # fmt: skip
        return tokens


def _by_triton(drawing: Drawing, logits: Tensor) -> Tensor:
    from kernels.gpu.sampling import draw  # Triton is part of torch's CUDA build only

    asked, wants = drawing.asked, drawing.wants
    tokens: Tensor = draw(
        drawing.shaped(logits),
        asked.seeds, asked.temperature, asked.top_k, asked.top_p, asked.min_p, asked.typical_p,
        drawing.ids, drawing.known, wants.noise, wants.cuts, wants.top_k, wants.top_p,
        wants.typical,
    )  # fmt: skip
    return tokens


def drawing_of(rows: Sequence[Known], vocab_size: int, device: torch.device) -> Drawing:
    """How these rows draw; their known tokens are staged only if a row has a penalty."""
    asked = asked_of(rows, vocab_size, device)
    penalties = any(_is_penalised(row.sampling) for row in rows)
    noisy = [row.sampling for row in rows if row.sampling.temperature > 0]
    top_k = any(sampling.top_k is not None for sampling in noisy)
    top_p = any(sampling.top_p < 1 for sampling in noisy)
    typical = any(sampling.typical_p < 1 for sampling in noisy)
    wants = Wants(
        penalties=penalties,
        edits=asked.edited.shape[1] > 0,
        noise=bool(noisy),
        cuts=top_k or top_p or typical or any(sampling.min_p > 0 for sampling in noisy),
        top_k=top_k,
        top_p=top_p,
        typical=typical,
    )
    known = [len(row.ids) for row in rows]
    ids = np.zeros((len(rows), max(known) + SPARE if penalties else 1), dtype=np.int64)
    if penalties:
        for i, row in enumerate(rows):
            ids[i] = row.ids[0]
            ids[i, : known[i]] = row.ids
    sent = send([ids, np.array(known)], device)
    return Drawing(asked, wants, ids=sent[0], known=sent[1])


def allowed_of(masks: Masks, device: torch.device) -> Allowed:
    return Allowed(*send([np.flatnonzero(masks.places >= 0), masks.bits], device))


def asked_of(rows: Sequence[Known], vocab_size: int, device: torch.device) -> Asked:
    """The settings of `rows`, in one transfer."""
    samplings = [row.sampling for row in rows]
    numbers = np.array(
        [
            [sampling.seed % 2**64 for sampling in samplings],
            [row.prompt_tokens for row in rows],
            [min(sampling.top_k or vocab_size, vocab_size) for sampling in samplings],
        ],
        dtype=np.uint64,
    )
    rates = np.array(
        [[getattr(sampling, rate) for sampling in samplings] for rate in RATES], dtype=np.float32
    )
    edits = [_edits(row, vocab_size) for row in rows]
    most = max(map(len, edits))
    named = np.zeros((2, len(rows), most), dtype=np.int64)
    gains = np.zeros((len(rows), most), dtype=np.float32)
    for i, found in enumerate(edits):
        for j, (token, until, gain) in enumerate(found):
            named[:, i, j], gains[i, j] = (token, until), gain
    sent = send([numbers.view(np.int64), rates, named, gains], device)
    return Asked(*sent[0], *sent[1], *sent[2], sent[3])  # type: ignore[call-arg]  # uncounted


def _edits(row: Known, vocab_size: int) -> list[tuple[int, int, float]]:
    """(token, number of known tokens until which it applies, what is added to its logit)"""
    sampling = row.sampling
    edits = [(token, ALWAYS, gain) for token, gain in sampling.logit_bias]
    if sampling.min_tokens:
        until = row.prompt_tokens + sampling.min_tokens
        edits += [(token, until, -torch.inf) for token in sampling.end_ids]
    return [edit for edit in edits if edit[0] < vocab_size]


def _is_penalised(sampling: Sampling) -> bool:
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )
