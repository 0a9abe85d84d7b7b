"""Plays requests through the real engine (`batching.py`), with a policy, a layout and a memory that
the reader may have written, and keeps what happened.

A server survives the errors of its policy. A course must not: the first error of the reader's code,
and the first rule that it breaks, ends the play with a sentence about it.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from batching import BatchingManager, EngineFailedError
from engine.inference import Inference
from generate.modes import MODES, LayOut, ragged
from learn import LessonError, require
from learn.hash_model import HashModel, VirtualClock, tokens_alone
from seams import Advance, IterationRecord, Model, Policy, RequestRecord, Sampling

MINE = "mine"  # the folder of the reader's files
MOST_STEPS = 20_000  # more than any play takes
SIGNS = {"prefill": "P", "chunk": "c", "decode": "d", "held": "x", "paused": "p"}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks for, and when."""

    prompt: Sequence[int]
    max_tokens: int
    at_s: float = 0.0


class WorkClock:
    """The processor's time in this process, so that other programs do not count. Nobody sleeps
    until an arrival: that time is added."""

    skipped_s = 0.0

    def __call__(self) -> float:
        return time.process_time() + self.skipped_s

    def wait_until(self, moment_s: float) -> None:
        self.skipped_s += max(0.0, moment_s - self())


@dataclass(frozen=True, slots=True)
class Stage:
    """A model with its memory, its layout, and the clock that passes there."""

    model: Model
    ledger: Any  # as engine.blocks.Ledger
    clock: VirtualClock | WorkClock
    lay_out: LayOut = ragged


def hashed(
    blocks: int = 16384,
    size: int = 1,
    ledger: Callable[[int, int], Any] = MODES["dynamic"].ledger,
    lay_out: LayOut = ragged,
) -> Stage:
    """With the hash model: so many blocks of so many tokens. Another layout makes a rectangle."""
    model = HashModel(blocks, size, rectangle=lay_out is not ragged)
    return Stage(model, ledger(blocks, size), model.clock, lay_out)


@dataclass(slots=True)
class Account:
    """What happened. As a `seams.Recorder`, it is told by the engine."""

    requests: Sequence[Inference]
    iterations: list[IterationRecord] = field(default_factory=list)

    def iteration(self, record: IterationRecord) -> None:
        self.iterations.append(record)

    def request(self, record: RequestRecord) -> None:
        """Each request keeps its own."""

    def busy(self, start_s: float, end_s: float) -> None:
        """Nothing here depends on it."""

    @property
    def records(self) -> Sequence[RequestRecord]:
        """In the order in which the requests were asked."""
        return [cast(RequestRecord, request.record) for request in self.requests]

    @property
    def tokens_per_s(self) -> float:
        first_s = min(record.arrival_s for record in self.records)
        last_s = max(record.end_s for record in self.records)
        return sum(record.generated for record in self.records) / (last_s - first_s)

    @property
    def mean_latency_s(self) -> float:
        return sum(record.latency_s for record in self.records) / len(self.records)

    @property
    def padding(self) -> float:
        """Of what was computed, in percent."""
        padding = sum(record.padding for record in self.iterations)
        return 100 * padding / sum(record.num_positions for record in self.iterations)

    def rows(self, kinds: str = "Pcdx") -> Sequence[dict[int, int]]:
        """Iteration by iteration the tokens of each request with a row of these `kinds`."""
        return [
            {row.request: row.num_tokens for row in record.rows if SIGNS[row.kind] in kinds}
            for record in self.iterations
        ]

    def picture(self) -> str:
        """A line for each request, a column for each iteration."""
        lines = []
        for name, request, record in zip("ABCD", self.requests, self.records, strict=False):
            signs = ""
            for iteration in self.iterations:
                kinds = {row.request: row.kind for row in iteration.rows}
                here = record.arrival_s <= iteration.start_s < record.end_s
                signs += SIGNS[kinds[request.id]] if request.id in kinds else " ."[here]
            lines.append(f"{name}  {' '.join(signs)}   answered at {1000 * record.end_s:4.1f} ms")
        return "\n".join(lines)


def play(asks: Sequence[Ask], policy: Policy, stage: Stage, rows: int = 4) -> Account:
    """Until all requests have ended. `rows`: most of an iteration. Raises LessonError."""
    clock, ledger, errors, greedy = stage.clock, stage.ledger, list[str](), Sampling(temperature=0)
    start_s = clock()
    seen = Account([Inference(a.prompt, a.max_tokens, greedy, start_s + a.at_s) for a in asks])
    for owner, names in ((policy, ("plan", "retire")), (ledger, ("fit", "open", "release"))):
        for name in names:
            setattr(owner, name, watched(getattr(owner, name), errors))
    manager = BatchingManager(
        policy, [seen], max_batch_size=rows, max_waiting=len(asks), max_resident=4 * rows
    )
    manager.serve(stage.model, ledger)
    lay_out = watched(stage.lay_out, errors)
    due = deque(sorted(seen.requests, key=lambda request: request.arrival_s))
    for _ in range(MOST_STEPS):
        while due and due[0].arrival_s <= clock():
            manager.enqueue(due.popleft())
        wait = None
        with suppress(EngineFailedError):  # the errors say why
            wait = manager.step(lay_out, clock)
        errors += [request.error for request in seen.requests if request.error]
        if errors:
            said = errors[0].removeprefix("the model failed: ")
            said = said.replace("nothing and set no wake_s", "nothing, and requests wait")
            said = said.replace("internal error: PolicyError", "the engine refuses this")
            said = said.replace("internal error", "your code returned what does not fit")
            raise LessonError(said)
        if wait is not None:
            moment_s = min(wait.until_s, due[0].arrival_s if due else math.inf)
            if moment_s == math.inf:
                break
            clock.wait_until(moment_s)
    late = [request.id for request in seen.requests if request.record is None]
    require(not late, f"the requests {late} never ended: does `retire` return them?")
    require(not ledger.used, f"all requests have ended, and {ledger.used} blocks are not free")
    if isinstance(stage.model, HashModel):
        _check_tokens(seen)
    return seen


def _check_tokens(seen: Account) -> None:
    """Each request got the tokens that it gets alone."""
    for request in seen.requests:
        prompt, tokens = request.ids[: request.prompt_tokens], request.ids[request.prompt_tokens :]
        right = tokens == tokens_alone(prompt, request.max_tokens)
        require(right, f"request {request.id} got other tokens than it gets alone")


def watched(function: Callable[..., Any], errors: list[str]) -> Callable[..., Any]:
    """The reader's function, whose error, which the engine would survive, is kept with its line."""

    def call(*arguments: Any) -> Any:
        try:
            answer = function(*arguments)
            returned = answer is not None or function.__name__ == "release"
            require(returned, f"`{function.__name__}` returned nothing")
            steps = all(isinstance(step, Advance) for step in getattr(answer, "advance", ()))
            require(steps, "a Plan takes a list of steps: Plan([Advance(request, tokens), ...])")
            held = any(isinstance(step, Advance) for step in getattr(answer, "hold", ()))
            require(not held, "`hold` takes requests, not steps")
        except Exception as error:
            errors.append(sentence_of(error))
            raise
        return answer

    return call


def sentence_of(error: Exception) -> str:
    """What went wrong, and in which line of the reader's file."""
    if isinstance(error, LessonError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if Path(frame.filename).parent.name == MINE]
    where = f" ({MINE}/{Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
    if isinstance(error, NotImplementedError):
        return f"not written yet: {error}{where}"
    return f"your code raised {type(error).__name__}: {error}{where}"
