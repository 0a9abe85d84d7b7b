"""An iteration of the local model: what it is, and what comes of it, which may be read late: its
outcome, or one of the engine's errors.

A drawn token is in flight until its iteration is read: it exists on the device only, and its place
among the known ids holds a negative number, -1 - j for token j of that iteration's draws. So the
next iteration can be laid out and launched, and finds the token on the device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.attention import Counts, Flat
from runtime.sampling.scoring import Targets, flattened, logprobs_by_row
from runtime.sequence import Ahead, KnownSequence
from runtime.transfer import NUMPY
from seams import Columns, DeviceLostError, DeviceMemoryError, Drafts, Outcome, TokenLogprobs

Guesses = Mapping[int, Sequence[int]]  # drafts, by row of an iteration

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
class LocalIteration:
    """What it computes, what it yields beside keys and values, and, once it is launched (on a CPU:
    computed), what is read of it. A `seams.Pending`."""

    device: torch.device
    before: LocalIteration | None  # the one that was launched before this one, if it is not read
    start_s: float
    rows: Sequence[KnownSequence]
    drafts: Guesses  # a token is drawn after each
    flat: Flat
    places: Sequence[int]  # by row: of the token that is drawn after all known ones
    drawing: Sequence[int]  # rows for which tokens are drawn
    known: Sequence[KnownSequence | Ahead]  # of each draw: with drafts, a row has several
    kept: Counts  # places on the axis whose hidden states are needed, in ascending order
    drawn: Counts  # of each draw, its place among those
    prompts: Sequence[Targets]  # prompt tokens that are scored
    scored: Sequence[int]  # of the drawing rows, those whose tokens are scored
    also: Sequence[Counts]  # numbers that scoring needs on the device
    in_flight: Tensor | None = None  # the drawn tokens that are not read yet, on the device
    numbers: ReadBack | None = None  # drawn tokens, scores of prompts, scores of drawn tokens
    read_s: float = 0.0  # when it was read
    _outcome: Outcome | None = None

    @classmethod
    def of(
        cls,
        before: LocalIteration | None,
        start_s: float,
        steps: Columns,
        rows: Sequence[KnownSequence],
        drafts: Guesses,
        flat: Flat,
        device: torch.device,
    ) -> LocalIteration:
        draws = drawing = list(compress(range(len(rows)), steps.draws))
        known: list[KnownSequence | Ahead] = list(compress(rows, steps.draws))
        last = flat.ends[drawing] - 1
        if drafts:  # a row for each draw
            draws = [i for i in drawing for _ in range(1 + len(drafts.get(i, ())))]
            known = [one for i in drawing for one in rows[i].draws(drafts.get(i, ()))]
            last = flat.ends[draws] - 1
            last += np.concatenate([np.arange(1 + len(drafts.get(i, ()))) for i in drawing])
        asking = [i for i, row in enumerate(rows) if row.scores]
        prompts = _prompts_to_score(asking, steps, rows, flat.ends) if asking else []
        kept = np.sort(last)
        if prompts:
            kept = np.unique(np.concatenate([last, *(targets.places for targets in prompts)]))
        prompts = [w._replace(at=int(np.searchsorted(kept, w.at))) for w in prompts]
        scored = [i for i in asking if steps.draws[i] and rows[i].sampling.logprobs is not None]
        also = flattened(prompts) if prompts else []
        if scored and len(scored) < len(drawing):
            also.append(np.flatnonzero(np.isin(draws, scored)))
        places = [start + count for start, count in zip(steps.starts, steps.counts, strict=True)]
        return cls(
            device, before, start_s, rows, drafts, flat, places, drawing, known, kept,
            np.searchsorted(kept, last), prompts, scored, also,
        )  # fmt: skip

    def launched(self, in_flight: Tensor | None, numbers: ReadBack) -> None:
        """The drawn tokens are in flight from now on, except after drafts: how many count is not
        known."""
        self.in_flight, self.numbers = in_flight, numbers
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
        assert self.numbers is not None
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
            len(self.flat.tokens),
            self.read_s - self.start_s,
            logprobs,
            of_prompts,
            {i: row.error for i, row in enumerate(rows) if row.error is not None},
            {i: Drafts(len(d), kept[i]) for i, d in drafted.items()},
        )
        return self._outcome


def _prompts_to_score(
    asking: Sequence[int], steps: Columns, rows: Sequence[KnownSequence], ends: Counts
) -> list[Targets]:
    """Prompt tokens after the new positions that were not scored before."""
    targets = []
    for i in asking:
        row = rows[i]
        if row.sampling.prompt_logprobs is not None:
            start, count = steps.starts[i], steps.counts[i]
            first = max(start, row.scored) + 1
            ahead = row.ids[first : min(start + count + 1, row.prompt_tokens)]
            if ahead:
                # the place before the first
                at = int(ends[i]) - count + first - 1 - start
                targets.append(Targets(i, first, at, ahead, row.sampling.prompt_logprobs))
    return targets
