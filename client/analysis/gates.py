"""Whether a run can be trusted: checks, whose findings every report shows.

VALID; SATURATED (the server could not keep up, so latencies describe the run's length);
INVALID-CLIENT (the measurement is wrong); DISTURBED (another client used the server); FAILED (the
server did not respond, or too many requests failed). A gate that invalidates single figures voids
those: they are shown, marked, with the reason and a remedy, and the others stand. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from client.analysis.figures import LATENCIES
from client.analysis.metrics import RunFigures
from client.analysis.statistics import (
    PERCENTILES,
    Floats,
    Interval,
    mean_interval,
    percentile,
    ranked,
)
from client.load.records import Run

VALID, SATURATED, INVALID_CLIENT, FAILED = "VALID", "SATURATED", "INVALID-CLIENT", "FAILED"
DISTURBED, PARTLY_VOID = "DISTURBED", "PARTLY VOID"
LAG, TOKENS = "dispatch lag", "token conservation"
ADVICE = "end other programs on this machine, or run the client on another one"
LAGS = 5.0  # a latency below this many lags of the client reflects the client
UNDONE = 0.02  # of the arrivals: a server that leaves more does not keep up
_GREW = 3.0  # requests: fewer are no queue
UNPLACED = 0.1  # of the tokens, which TPOT may be wrong by
SEVERITY = (VALID, SATURATED, INVALID_CLIENT, DISTURBED, FAILED)


@dataclass(frozen=True, slots=True)
class Void:
    """A figure that is not to be used: ``throughput``, ``goodput`` or a latency's ``ttft_p50``."""

    figure: str
    reason: str
    remedy: str = ADVICE


@dataclass(frozen=True, slots=True)
class Gate:
    """One check: what was found, and the verdict it leads to.

    With ``voids`` it is on those figures alone and the verdict `PARTLY_VOID`, otherwise on all.
    """

    name: str
    found: str
    verdict: str = VALID
    voids: tuple[Void, ...] = ()


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The worst of the gates that judge the whole run, with its reasons; what is void besides."""

    word: str
    reason: str
    gates: tuple[Gate, ...]

    @property
    def voids(self) -> tuple[Void, ...]:
        return tuple(void for gate in self.gates for void in gate.voids)


def void_of(voids: Sequence[Void], figure: str) -> Void | None:
    """Why a figure is not to be used; None where it is."""
    return next((void for void in voids if void.figure == figure), None)


def judge(run: Run, measured: RunFigures, server_tokens: int | None = None) -> RunVerdict:
    """Pass a run through every gate. ``server_tokens`` is the server's own count for the run."""
    known = replace(measured, unfinished=0) if run.interrupted else measured
    gates = [
        _answered(run, measured),
        lag_gate([measured], ranked),
        _tokens(run, server_tokens),
        _lengths(run),
        Gate("achieved / offered", f"{measured.achieved:.2f} / {measured.offered:.2f} requests/s"),
        keeping_up([known]),  # what an interruption cut is no backlog
    ]
    whole = [g for g in gates if not g.voids]
    word = max((g.verdict for g in whole), key=SEVERITY.index)
    reason = "; ".join(f"{g.name}: {g.found}" for g in whole if g.verdict == word != VALID)
    return RunVerdict(word, reason, tuple(gates))


def _answered(run: Run, m: RunFigures) -> Gate:
    if run.not_begun:
        return Gate("answers", f"none of {m.planned} was sent: {run.not_begun}", FAILED)
    found = f"{m.ok} ok, {m.failed} failed, {m.unfinished} unfinished of {m.planned}"
    failures = [o.failure for o in run.outcomes if o.failure is not None and not o.unfinished]
    if failures:
        found += f"; first failure: {failures[0]}"
    if run.interrupted:
        found += f"; {run.interrupted}"
    lost = m.ok + m.failed + m.unfinished != m.planned and not run.interrupted
    if m.unfinished and not m.ok and not any(o.deliveries for o in run.outcomes):
        return Gate("answers", found + "; nothing came back", VALID if run.interrupted else FAILED)
    if m.failed and (m.ok == 0 or m.failed > 0.05 * m.planned):
        return Gate("answers", found, FAILED)
    return Gate("answers", found, INVALID_CLIENT if lost else VALID)


def lag_gate(
    runs: Sequence[RunFigures], shown: Callable[[Floats, float], float | None] = percentile
) -> Gate:
    """The figures that the client's own lateness invalidates, in one run or all runs of a load.

    A percentile of less than five times the same percentile of the lag; goodput that differs when
    counted from the send; throughput if the load was not the intended one. ``shown`` gives a
    percentile, None where it is not shown.
    """
    lag = np.concatenate([m.lag for m in runs])
    if not lag.size:
        return Gate(LAG, "no intended times (closed loop)")
    levels = np.array(PERCENTILES) / 100
    late = dict(zip(PERCENTILES, np.quantile(lag, levels, method="higher").tolist(), strict=True))
    tokens = sum(m.output_tokens for m in runs) / max(sum(m.ok for m in runs), 1)
    voids = []
    for figure in LATENCIES:
        if figure.lag is None:
            continue
        values = np.concatenate([m.latencies[figure.key] for m in runs])
        for p in PERCENTILES:
            value = shown(values, p)
            if value is not None and value < LAGS * late[p] * figure.lag(max(tokens, 1)):
                how = f"{late[p] * 1e3:.3g} ms late at p{p}"
                voids.append(Void(f"{figure.key}_p{p}", f"the client was {how}"))
    shares = [(m.attained, m.attained_sent) for m in runs]
    off = [abs(a - b) for a, b in shares if a is not None and b is not None]
    if off and sum(off) / len(off) > UNDONE:
        how = f"late enough to change it by up to {max(off):.0%}"
        voids.append(Void("goodput", f"the client was {how}"))
    if late[99] > 0.1 * min(m.window_s for m in runs):
        voids.append(Void("throughput", f"the client was {late[99]:.3g} s late at p99"))
    found = f"p50 {late[50] * 1e3:.1f} ms, p99 {late[99] * 1e3:.1f} ms"
    if voids:
        found += f"; not to be used: {', '.join(void.figure for void in voids)}"
    return Gate(LAG, found, PARTLY_VOID if voids else VALID, tuple(voids))


def _tokens(run: Run, server_tokens: int | None) -> Gate:
    done = [o for o in run.outcomes if o.ok]
    total = sum(o.output_tokens or 0 for o in done)
    found = f"{total} tokens stated"
    unplaced = sum(o.unplaced for o in done)
    if run.streamed and done:
        delivered = sum(tokens for o in done for _, tokens in o.deliveries)
        found = f"{delivered} tokens delivered, {found.replace(' tokens', '')}"
        if delivered + sum(o.unplaced for o in done if not o.deliveries) != total:
            return Gate(TOKENS, found, INVALID_CLIENT)
    if server_tokens is not None and len(done) == len(run.outcomes):
        found += f", {server_tokens} counted by the server"
        if server_tokens > total:
            return Gate(TOKENS, f"another client used this server: {found}", DISTURBED)
        if server_tokens < total:
            return Gate(TOKENS, found, INVALID_CLIENT)
    if unplaced <= UNPLACED * total:
        return Gate(TOKENS, found)
    how = f"{unplaced} tokens without an event or count that shows when they came"
    times = [f"{name}_p{p}" for name in ("ttft", "tpot", "itl") for p in PERCENTILES]
    remedy = "have the server send every token, or its count with every event"
    voids = tuple(Void(figure, how, remedy) for figure in (*times, "goodput"))
    return Gate(TOKENS, f"{found}, {how}", PARTLY_VOID, voids)


def _lengths(run: Run) -> Gate:
    """Responses of other lengths are other work, whose figures cannot be compared."""
    done = [o for o in run.outcomes if o.ok]
    other = [o for o in done if o.output_tokens != o.requested_tokens]
    if not other:
        return Gate("requested tokens", f"{len(done)} responses have the requested length")
    o = other[0]
    found = (
        f"{len(other)} of {len(done)} responses have another length, the first {o.output_tokens} "
        f"tokens instead of {o.requested_tokens}; a server that accepts ignore_eos does not end "
        "early"
    )
    return Gate("requested tokens", found, INVALID_CLIENT)


def keeping_up(runs: Sequence[RunFigures]) -> Gate:
    """Whether a server keeps up, judged on all runs of one load together.

    Growth of a queue is noise in one short run and evidence in six, so the slopes of all runs are
    averaged and judged once, with their common interval.
    """
    planned, unfinished = sum(r.planned for r in runs), sum(r.unfinished for r in runs)
    if unfinished > UNDONE * planned:
        found = f"{unfinished} of {planned} requests had not ended when the run was cut"
        return Gate("backlog", found, SATURATED)
    known = [r.slopes for r in runs if r.slopes is not None]
    if not known:
        return Gate("backlog", "too short for a verdict, or the load itself varies")
    grows, later, wait = (
        _mean([getattr(s, name) for s in known]) for name in ("in_flight", "later", "wait")
    )
    growth = sum(s.in_flight.value * s.span_s for s in known)
    # Arrivals beyond the limit wait in the queue, each longer than the previous one by their share
    # of the time between them; or they are served, more slowly, and the requests in flight grow.
    offered = sum(r.offered for r in runs) / len(runs)
    goes_on = (later.low or 0.0) > 0 and later.value > UNDONE * offered
    undone = wait.value > UNDONE or goes_on
    both = (grows.low or 0.0) > 0 and (wait.low or 0.0) > 0
    found = f"{growth:+.1f} requests over the sends, TTFT {wait.value * 1e3:+.0f} ms/s"
    return Gate("backlog", found, SATURATED if both and undone and growth > _GREW else VALID)


def _mean(slopes: Sequence[Interval]) -> Interval:
    """The mean slope; its interval is from the spread of three or more runs, else from their
    own."""
    n = len(slopes)
    if n > 2:
        return mean_interval([s.value for s in slopes])
    value = sum(s.value for s in slopes) / n
    halves = [s.value - s.low for s in slopes if s.low is not None]
    if len(halves) < n:
        return Interval(value, None, None)
    half = math.sqrt(sum(h * h for h in halves)) / n
    return Interval(value, value - half, value + half)
