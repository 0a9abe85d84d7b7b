"""Where the time of one token goes: the picture of docs/one-token.md.

    python -m benchmarks.pictures.one_token      # docs/img/one-token.png, some seconds

A server with the embedded model, whose functions are wrapped to note when they begin and end
(benchmarks/pictures/watched.py), gets one streaming request after the other. The first tokens give
the stops that a request passes once, all others those that every token passes. An instant counts
for the innermost function that is running. What the wrappers cost is part of the times.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import ROOT, free_port, serving
from benchmarks.pictures.page import command, save, without_frame
from benchmarks.pictures.watched import Span
from serving.config import Config

REQUESTS, TOKENS = 12, 50
PROMPT = "def mean(numbers):\n    "
US = 1e6
ONCE = {"http": "gunicorn, Flask", "handler": "1  handler", "queue": "2  queue"}
EACH = {
    "plan": "3  plan",
    "ledger": "4  ledger",
    "step": "5  step",
    "linear": "6  model: linear layers",
    "model": "6  model: norms, torch, Python",
    "attention": "7  kernel: attention",
    "sampling": "7  sampling",
    "finish": "8  back: to the request",
    "event": "8  back: text, JSON, socket",
    "client": "the client has it",
}
COLOURS = {"linear": "#4c78a8", "attention": "#d55e00", "sampling": "#009e73", "event": "#b279a2"}
OTHERS = "#777777"


@dataclass(frozen=True, slots=True)
class Token:
    """`spans` from the beginning of its iteration to its arrival at the client."""

    start_s: float
    end_s: float
    spans: Sequence[Span]

    def spent_s(self, name: str) -> float:
        return sum(span.end_s - span.start_s for span in self.spans if span.name == name)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as its client sees it."""

    sent_s: float
    arrived_s: Sequence[float]  # of each event


def ask(url: str) -> Sent:
    body = {"prompt": PROMPT, "num_tokens": TOKENS, "temperature": 0, "stream": True}
    asked = urllib.request.Request(
        f"{url}/inference", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    sent_s, arrived_s = time.perf_counter(), []
    with urllib.request.urlopen(asked, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                arrived_s.append(time.perf_counter())
    return Sent(sent_s, arrived_s)


def measure() -> tuple[list[Sent], list[Span]]:
    with tempfile.TemporaryDirectory() as folder:
        config = Config(mode="dynamic", port=free_port(), dtype="float32", data_dir=folder)
        command = [
            sys.executable, "-m", "gunicorn", "-c", str(ROOT / "api/http/gunicorn_conf.py"),
            "benchmarks.pictures.watched:make_app()",
        ]  # fmt: skip
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment = {**kept, "PYTHONPATH": str(ROOT), **config.as_environment()}
        with serving(command, environment, config.port) as url:
            ask(url)  # the first one fills caches
            sent = [ask(url) for _ in range(REQUESTS)]
            with urllib.request.urlopen(f"{url}/spans", timeout=60) as answer:
                spans = [Span(*span) for span in json.load(answer)]
    return sent, sorted((s for s in spans if s.start_s > sent[0].sent_s), key=lambda s: s.start_s)


def innermost(spans: Sequence[Span]) -> list[Span]:
    """The nested spans of one thread, cut so that each instant belongs to the innermost one."""
    found: list[Span] = []
    running: list[Span] = []
    at_s = 0.0

    def go_to(now_s: float) -> None:
        nonlocal at_s
        if running and now_s > at_s:
            found.append(running[-1]._replace(start_s=at_s, end_s=now_s))
        at_s = now_s

    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        while running and running[-1].end_s <= span.start_s:
            go_to(running[-1].end_s)
            running.pop()
        go_to(span.start_s)
        running.append(span)
    while running:
        go_to(running[-1].end_s)
        running.pop()
    return found


def first(spans: Sequence[Span], name: str, from_s: float) -> Span:
    return next(span for span in spans if span.name == name and span.start_s >= from_s)


def once(sent: Sent, spans: Sequence[Span]) -> Token:
    """What a request passes before its first iteration."""
    handler = first(spans, "handler", sent.sent_s)
    put = first(spans, "put", handler.start_s)
    plan = first(spans, "plan", put.start_s)
    passed = [
        Span("http", 0, sent.sent_s, handler.start_s),
        Span("handler", 0, handler.start_s, put.start_s),
        Span("queue", 0, put.start_s, plan.start_s),
    ]
    return Token(sent.sent_s, plan.start_s, passed)


def decodes(sent: Sent, spans: Sequence[Span]) -> list[Token]:
    """All tokens but the first and the last, whose event leaves with the end of the response."""
    own = [s for s in spans if sent.sent_s < s.start_s < sent.arrived_s[-1]]
    steps = [span for span in own if span.name == "step"]
    plans = [
        next(plan for plan in own if plan.name == "plan" and plan.end_s >= step.end_s)
        for step in steps
    ]
    found = []
    for plan, following in itertools.pairwise(plans[1:]):
        finish = first(own, "finish", plan.start_s)
        event = first(own, "event", finish.start_s)
        arrived_s = next(at_s for at_s in sent.arrived_s if at_s > event.start_s)
        engine = [
            span
            for span in own
            if span.thread == plan.thread and plan.start_s <= span.start_s < following.start_s
        ]
        found.append(Token(plan.start_s, arrived_s, [*innermost(engine), event]))
    return found


def medians_s(tokens: Sequence[Token], names: Collection[str]) -> dict[str, float]:
    return {name: median(token.spent_s(name) for token in tokens) for name in names}


def typical(tokens: Sequence[Token], names: Collection[str]) -> Token:
    """The one whose stops are nearest to the medians."""
    of_all = medians_s(tokens, names)
    return min(
        tokens, key=lambda token: sum(abs(token.spent_s(name) - of_all[name]) for name in names)
    )


def draw_one(axis: Axes, names: dict[str, str], tokens: Sequence[Token]) -> None:
    """A typical token; beside each stop the median of all."""
    shown, of_all = typical(tokens, names), medians_s(tokens, names)
    lanes = {name: lane for lane, name in enumerate(names)}
    for span in shown.spans:
        axis.barh(
            lanes[span.name], US * (span.end_s - span.start_s),
            left=US * (span.start_s - shown.start_s), height=0.7,
            color=COLOURS.get(span.name, OTHERS), snap=False,
        )  # fmt: skip
    for name, lane in lanes.items():
        if name == "client":
            axis.scatter(US * (shown.end_s - shown.start_s), lane, color="black", marker="D", s=24)
            continue
        text = f"{US * of_all[name]:,.0f} µs"
        axis.text(1.07, lane, text, transform=axis.get_yaxis_transform(), va="center", ha="right")
    axis.set_yticks(range(len(names)), list(names.values()))
    axis.invert_yaxis()
    axis.set_xlim(0, 1.03 * US * (shown.end_s - shown.start_s))
    without_frame(axis, "x")
    axis.set_axisbelow(True)


def draw(requests: Sequence[Token], tokens: Sequence[Token], path: Path) -> None:
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 5.6), height_ratios=(len(ONCE), len(EACH)), layout="constrained"
    )
    draw_one(above, ONCE, requests)
    draw_one(below, EACH, tokens)
    for axis, text, passed in (
        (above, "Once for each request: {} µs until its first plan (median of {})", requests),
        (below, "For each token: {} µs from its plan to the client (median of {})", tokens),
    ):
        whole_us = US * median(token.end_s - token.start_s for token in passed)
        axis.set_title(text.format(f"{whole_us:,.0f}", len(passed)), loc="left", fontsize=10)
    above.set_xlabel("microseconds")
    below.set_xlabel(
        f"microseconds; embedded model, one request at a time, {cpu_name()}", loc="right"
    )
    save(figure, path)


def picture(folder: Path) -> None:
    sent, spans = measure()
    tokens = [token for one in sent for token in decodes(one, spans)]
    draw([once(one, spans) for one in sent], tokens, folder / "one-token.png")


def main() -> None:
    command(__doc__, picture)


if __name__ == "__main__":
    main()
