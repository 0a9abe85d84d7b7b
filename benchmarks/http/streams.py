"""The work as streams over loopback, all sent at once by a client in a separate process, and two
sides that serve it in turns."""

from __future__ import annotations

import inspect
import json
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.bare import Job, offline_work
from benchmarks.harness.report import report
from benchmarks.harness.servers import ROOT
from benchmarks.http.client import Received
from client.experiment import Experiment
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

Prompted = tuple[str | list[int], int]  # prompt, output tokens
METRICS: dict[str, Callable[[Received], float]] = {
    "tokens_per_s": lambda received: received.tokens / received.seconds,
    "events_per_s": lambda received: received.events / received.seconds,
}


def text_work(model: str) -> list[tuple[str, Job]]:
    """The work of `offline_work` with the same lengths and prompts cut from a real text."""
    tokenizer = load_tokenizer(model)
    source = textwrap.dedent(inspect.getsource(random))
    lines = [line for line in source.splitlines() if len(line) > 20]
    return [
        (text, Job(tokenizer.encode(text), job.output_tokens))
        for i, job in enumerate(offline_work(tokenizer.vocab_size))
        for text in [_text_of_length(tokenizer, "\n".join(lines[i:]), len(job.prompt))]
    ]


def _text_of_length(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The longest beginning of `text` that encodes to at most `tokens` tokens."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.encode(text[:middle])) <= tokens:
            low = middle
        else:
            high = middle - 1
    return text[:low]


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
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
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
