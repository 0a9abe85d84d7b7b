"""The same requests in each mode, as bars over time: waiting, prefill, decode, done but held back.

Drawn from the servers' records of their iterations if there are any, otherwise from the client's
observations and the queue time that each response states. Without one there is a single bar up to
the first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from client.analysis.comparison.results import Result
from client.analysis.comparison.summary import Point, final, names_of
from client.load.records import Outcome
from client.load.rows import Span
from client.report.html.chart import Axis, Bar, Chart
from client.report.html.page import seconds

WAITING, PREFILL, DECODE, HELD, CUT = "#d5d5d5", "#e8833a", "#3b75af", "#9fc3e0", "#c0392b"
SENT = "#ececec"
COLOURS = {
    "prefill": PREFILL, "chunk": "#f4b98a", "decode": DECODE, "held": HELD, "paused": "#a58cc4"
}  # fmt: skip
Rows = Mapping[str, Mapping[int, Sequence[Span]]]  # by run and request
_SHOWN = 24
_ROW_PX, _FRAME_PX = 9, 90


def pictured(results: Sequence[Result]) -> list[Result]:
    """The runs of which a part is drawn: those of the first seed."""
    kept = final(results)
    seed = min((r.job.seed for r in kept), default=0)
    return [r for r in kept if r.job.seed == seed]


def gantt(
    points: Sequence[Point], results: Sequence[Result], load: float, rows: Rows
) -> list[Chart]:
    """A chart a system: consecutive requests from the middle of one seed's run."""
    runs = {r.job.system: r for r in pictured(results) if r.job.load == load}
    shown = {name: middle(runs[name].run.outcomes) for name in names_of(points) if name in runs}
    all_of = [o for outcomes in shown.values() for o in outcomes]
    if not all_of:
        return []
    start_s = min(o.origin_s for o in all_of)
    end_s = max(o.left_s for o in all_of) - start_s
    return [
        _chart(name, outcomes, load, start_s, end_s, rows.get(runs[name].job.name, {}))
        for name, outcomes in shown.items()
    ]


def middle(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same of every system: they were planned alike."""
    first = max(0, (len(outcomes) - _SHOWN) // 2)
    return [o for o in outcomes if first <= o.index < first + _SHOWN]


def _chart(
    name: str,
    outcomes: Sequence[Outcome],
    load: float,
    start_s: float,
    end_s: float,
    rows: Mapping[int, Sequence[Span]],
) -> Chart:
    bars = [
        bar
        for row, o in enumerate(outcomes)
        for bar in _bars(o, start_s, len(outcomes) - row, rows.get(o.index, ()))
    ]
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


def _bars(o: Outcome, start_s: float, row: int, rows: Sequence[Span]) -> list[Bar]:
    """The states of one request, span by span."""
    bars = []
    for what, from_s, to_s, colour in _recorded(o, rows) if rows else _seen(o):
        if to_s - from_s > 1e-4:
            tip = f"request {o.index}, {o.requested_tokens} tokens: {what} {seconds(to_s - from_s)}"
            at = from_s - start_s, to_s - start_s
            bars.append(Bar(*at, row - 0.4, row + 0.4, colour, tip))
    if not o.ok:
        tip = f"request {o.index}, {o.requested_tokens} tokens: {o.failure}"
        edge = o.left_s - 0.01 * (o.left_s - o.origin_s)
        bars.append(Bar(edge - start_s, o.left_s - start_s, row - 0.4, row + 0.4, CUT, tip))
    return bars


def _seen(o: Outcome) -> Iterator[tuple[str, float, float, str]]:
    """The client's observations, up to the request's end or cut."""
    last_s = o.deliveries[-1][0] if o.deliveries else o.end_s
    admitted_s = o.sent_s + o.queue_s if o.queue_s is not None else o.first_s
    at = o.origin_s
    for what, end_s, colour in (
        ("waiting", admitted_s, WAITING), ("prefill", o.first_s, PREFILL),
        ("decode", last_s, DECODE), ("done, held back", o.end_s, HELD),
    ):  # fmt: skip
        if end_s is None:
            break
        yield what, at, max(end_s, at), colour
        at = max(end_s, at)
    if not o.ok:
        yield "cut", at, o.left_s, WAITING if o.first_s is None else DECODE


def _recorded(o: Outcome, rows: Sequence[Span]) -> Iterator[tuple[str, float, float, str]]:
    """The server's record of it; waiting when it was in no iteration."""
    at = o.origin_s
    for kind, start_s, end_s in rows:
        yield "waiting", at, start_s, WAITING
        what = "done, held back" if kind == "held" else kind
        yield what, max(start_s, at), min(end_s, o.left_s), COLOURS[kind]
        at = max(at, end_s)
    what, colour = ("being sent to the client", SENT) if o.ok else ("waiting", WAITING)
    yield what, at, o.left_s, colour
