"""What comes of an iteration of the local model, which may be read late: its outcome, or one of the
engine's errors.

A drawn token is in flight until its iteration is read: it exists on the device only, and its place
among the known ids holds a negative number, -1 - j for token j of that iteration's draws. So the
next iteration can be laid out and launched, and finds the token on the device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.iteration import KnownSequence
from runtime.sampling.scoring import Targets, logprobs_by_row
from runtime.transfer import NUMPY
from seams import DeviceLostError, DeviceMemoryError, Drafts, Outcome, TokenLogprobs

# how those word it that have no error type of their own, in lower case
SHORTAGES = (
    "can't allocate memory",  # torch's allocator for CPUs, on Linux
    "not enough memory",  # and elsewhere
    "out of memory",  # CUDA, Triton's launcher, NCCL
    "_status_alloc_failed",  # cuBLAS, cuDNN, cuSPARSE
    "allocation_failed",  # cuDNN 9
    "failed to cuda calloc",  # NCCL
)

Method = TypeVar("Method", bound=Callable[..., Any])


def with_our_errors(method: Method) -> Method:
    """Wraps a method of an object with a `device`: torch's errors about too little memory or a lost
    device become those of `seams`."""

    @functools.wraps(method)
    def translated(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except torch.OutOfMemoryError as error:
            shortage = str(error)
        except RuntimeError as error:
            if self.device.type == "cuda" and _is_lost(self.device):
                raise DeviceLostError(str(error).partition("\n")[0]) from error
            if not is_shortage(error):
                raise
            shortage = str(error)
        # not from the error: its traceback would keep the tensors of the failed iteration, while a
        # smaller one is tried
        raise DeviceMemoryError(shortage)

    return cast(Method, translated)


def is_shortage(error: RuntimeError) -> bool:
    """Whether memory was missing, on a CPU or a GPU, so that less work may succeed."""
    words = str(error).lower()
    return any(each in words for each in SHORTAGES)


def _is_lost(device: torch.device) -> bool:
    """Whether an error sticks, as after an assertion in a kernel: CUDA then reports it at every
    call until the process ends."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


class ReadBack:
    """`int64` and `float32` tensors that are being read. On a GPU the copy follows the work that is
    already launched. Only `arrays` waits for it, and not for what is launched later."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._like = [(tensor.shape, NUMPY[tensor.dtype]) for tensor in tensors]
        self._done: torch.cuda.Event | None = None
        numbers = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        packed = torch.cat(numbers) if len(numbers) > 1 else (numbers or [torch.empty(0)])[0]
        if device.type == "cuda":
            there = packed
            packed = torch.empty(there.shape, dtype=torch.uint8, pin_memory=True)
            packed.copy_(there, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(torch.cuda.current_stream(device))
        self._packed = packed

    def arrays(self) -> list[NDArray[Any]]:
        if self._done is not None:
            self._done.synchronize()
        numbers, at, found = self._packed.numpy(), 0, []
        for shape, dtype in self._like:
            size = shape.numel() * np.dtype(dtype).itemsize
            found.append(numbers[at : at + size].view(dtype).reshape(shape))
            at += size
        return found


@dataclass(slots=True)
class Started:
    """An iteration that was launched (on a CPU: computed). A `seams.Pending`."""

    device: torch.device
    before: Started | None  # the iteration that was launched before this one, if it is not read
    rows: Sequence[KnownSequence]
    places: Sequence[int]  # by row: of the token that is drawn after all known ones
    positions: int  # computed, padding included
    drawing: Sequence[int]  # rows for which tokens are drawn
    drafts: Mapping[int, Sequence[int]]  # that were computed, by row: a token is drawn after each
    in_flight: Tensor | None  # the drawn tokens that are not read yet, on the device
    prompts: Sequence[Targets]  # prompt tokens that are scored
    scored: Sequence[int]  # of the drawing rows, those whose tokens are scored
    numbers: ReadBack  # drawn tokens, scores of prompts, scores of drawn tokens, if any
    start_s: float
    read_s: float = 0.0  # when it was read
    _outcome: Outcome | None = None

    def expect(self) -> None:
        """The drawn tokens are in flight from now on, except after drafts: how many count is not
        known."""
        rows, drafts, at = self.rows, self.drafts, -1
        for i in self.drawing:
            if drafts and i in drafts:
                at -= len(drafts[i])
            else:
                rows[i].ids.append(at)
            at -= 1

    def read_before(self) -> None:
        """Reads the iteration before this one. Raises DeviceLostError."""
        if self.before is not None:
            self.before.result()
            # what this one takes begins no earlier
            self.start_s = max(self.start_s, self.before.read_s)
            self.before = None

    @with_our_errors
    def result(self) -> Outcome:
        """Waits for it; the drawn tokens are known from then on. Raises DeviceLostError."""
        if self._outcome is not None:
            return self._outcome
        self.read_before()
        arrays, rows, places, drafted = self.numbers.arrays(), self.rows, self.places, self.drafts
        drawn: dict[int, list[int]] = {}  # by row, where more or less may be known than was drawn
        kept: dict[int, int] = {}  # accepted drafts, by row
        tokens: list[list[int]] = [[] for _ in rows]
        if self.drawing:
            numbers, at = arrays.pop(0).tolist(), 0
            for i in self.drawing:
                row = rows[i]
                if row.matching is None and i not in drafted:  # nearly always
                    row.ids[places[i]] = number = numbers[at]
                    tokens[i] = [number]
                    at += 1
                    continue
                drafts = drafted.get(i, ())
                end = at + 1 + len(drafts)
                drawn[i] = numbers[at:end]
                tokens[i], kept[i] = row.receive(drafts, drawn[i], places[i])
                at = end
        logprobs: dict[int, Sequence[TokenLogprobs]] = {}
        of_prompts: dict[int, tuple[int, Sequence[TokenLogprobs]]] = {}
        if self.prompts:
            scores = logprobs_by_row(self.prompts, arrays[:3])
            for targets, words in zip(self.prompts, scores, strict=True):
                of_prompts[targets.row] = targets.first, words
        if self.scored:
            new = [
                Targets(i, 0, 0, drawn.get(i, tokens[i]), rows[i].alternatives) for i in self.scored
            ]
            for i, words in zip(self.scored, logprobs_by_row(new, arrays[-3:]), strict=True):
                logprobs[i] = words[: len(tokens[i])]
        self.read_s, self.in_flight = time.perf_counter(), None
        self._outcome = Outcome(
            tokens,
            self.positions,
            self.read_s - self.start_s,
            logprobs,
            of_prompts,
            {i: row.error for i, row in enumerate(rows) if row.error is not None},
            {i: Drafts(len(d), kept[i]) for i, d in drafted.items()},
        )
        return self._outcome
