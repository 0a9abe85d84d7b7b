"""The work as streams over loopback, all sent at once by a client in a separate process, and two
sides that serve it in turns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.report import report
from benchmarks.http.client import Received
from client.experiment import Experiment
from client.load.machine import ROOT

Prompted = tuple[str | list[int], int]  # prompt, output tokens
METRICS: dict[str, Callable[[Received], float]] = {
    "tokens_per_s": lambda received: received.tokens / received.seconds,
    "events_per_s": lambda received: received.events / received.seconds,
}


def stream_all(url: str, model: str, work: Sequence[Prompted]) -> Received:
    """Raises RuntimeError if a stream breaks off or has another number of tokens than requested."""
    bodies = [
        {
            "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }
        for prompt, tokens in work
    ]  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.http.client"],
        input=json.dumps({"url": f"{url}/v1/completions", "bodies": bodies}),
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    received = Received(**json.loads(result.stdout))
    if received.lost:
        raise RuntimeError(f"{received.lost} streams are lost, the first: {received.first_loss}")
    return received


def compare(
    title: str,
    sides: Mapping[str, Mapping[str, Callable[[], Received]]],
    rounds: int,
    out: Path | None,
    name: str,
) -> None:
    """`sides`: by dtype, two that serve the same work, by name; the first is compared with the
    second."""
    found = []
    for dtype, both in sides.items():
        turns = {side: (lambda _, turn=turn: turn()) for side, turn in both.items()}
        experiment = Experiment(turns, METRICS, to=list(both)[-1], of={"dtype": dtype})
        found.append(experiment.run(rounds))
    report(found, f"{title}, client included", out, name)
