"""The same requests in each mode, as bars over time: waiting, prefill, decode, done but held back.

Drawn from what the client saw and the queue time that each answer states. A server that states none
shows one bar up to the first token.
"""

from __future__ import annotations

from collections.abc import Sequence

from client.analysis.results import Result
from client.analysis.summary import Point, final
from client.load.records import Outcome
from client.report.chart import Axis, Bar, Chart
from client.report.page import seconds
from client.report.pictures import names_of

WAITING, PREFILL, DECODE, HELD, CUT = "#d5d5d5", "#e8833a", "#3b75af", "#9fc3e0", "#c0392b"
_SHOWN = 24
_ROW_PX, _FRAME_PX = 9, 90


def gantt(points: Sequence[Point], results: Sequence[Result], load: float) -> list[Chart]:
    """A chart a contestant: consecutive requests from the middle of one seed's run."""
    here = [r for r in final(results) if r.load == load]
    seed = min((r.seed for r in here), default=0)
    runs = {r.contestant: r for r in here if r.seed == seed}
    shown = {name: _middle(runs[name].run.outcomes) for name in names_of(points) if name in runs}
    all_of = [o for outcomes in shown.values() for o in outcomes]
    if not all_of:
        return []
    start_s = min(o.origin_s for o in all_of)
    end_s = max(o.left_s for o in all_of) - start_s
    return [_chart(name, outcomes, load, start_s, end_s) for name, outcomes in shown.items()]


def _middle(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same of every contestant: they were planned alike."""
    first = max(0, (len(outcomes) - _SHOWN) // 2)
    return [o for o in outcomes if first <= o.index < first + _SHOWN]


def _chart(
    name: str, outcomes: Sequence[Outcome], load: float, start_s: float, end_s: float
) -> Chart:
    bars = [bar for row, o in enumerate(outcomes) for bar in _bars(o, start_s, len(outcomes) - row)]
    done = [(o.end_s or 0.0) - o.origin_s for o in outcomes if o.ok]
    mean = f"{seconds(sum(done) / len(done))} from due to done on average" if done else "none done"
    ok = f"{len(done)} of {len(outcomes)} done"
    return Chart(
        title=f"{name}, load {load:g}",
        finding=f"{name} at load {load:g}, {len(outcomes)} requests in order: {ok}, {mean}.",
        x=Axis("seconds since the first of them was due", low=0.0, high=end_s),
        y=Axis("one row a request", ticks=(), low=0.4, high=len(outcomes) + 0.6),
        bars=bars,
        height=_FRAME_PX + _ROW_PX * max(len(outcomes), 3),
    )


def _bars(o: Outcome, start_s: float, row: int) -> list[Bar]:
    """What became of one request, stretch by stretch."""
    last_s = o.deliveries[-1][0] if o.deliveries else o.end_s
    admitted_s = o.sent_s + o.queue_s if o.queue_s is not None else o.first_s
    ends = [("waiting", admitted_s, WAITING), ("prefill", o.first_s, PREFILL),
            ("decode", last_s, DECODE), ("done, held back", o.end_s, HELD)]  # fmt: skip
    bars, at = [], o.origin_s
    for what, end_s, colour in ends:
        if end_s is None:
            break
        end_s = max(end_s, at)
        if end_s - at > 1e-4:
            tip = f"request {o.index}, {o.requested_tokens} tokens: {what} {seconds(end_s - at)}"
            bars.append(Bar(at - start_s, end_s - start_s, row - 0.4, row + 0.4, colour, tip))
        at = end_s
    if not o.ok and o.left_s > at:
        tip = f"request {o.index}, {o.requested_tokens} tokens: {o.failure}"
        edge = max(at, o.left_s - 0.01 * (o.left_s - o.origin_s))
        grey = WAITING if o.first_s is None else DECODE
        bars.append(Bar(at - start_s, edge - start_s, row - 0.4, row + 0.4, grey, tip))
        bars.append(Bar(edge - start_s, o.left_s - start_s, row - 0.4, row + 0.4, CUT, tip))
    return bars
