"""Whether a run can be believed: checks whose answers are printed with every report.

VALID; SATURATED (the server could not keep up, so latencies describe the run's length);
INVALID-CLIENT (the measurement is wrong); FAILED (the server did not answer). Pure functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from client.analysis.metrics import Measured
from client.analysis.statistics import slope
from client.load.records import Run

VALID, SATURATED, INVALID_CLIENT, FAILED = "VALID", "SATURATED", "INVALID-CLIENT", "FAILED"
LAG = "dispatch lag"
UNDONE = 0.02  # of the arrivals: a server that leaves more does not keep up
_SEVERITY = (VALID, SATURATED, INVALID_CLIENT, FAILED)


@dataclass(frozen=True, slots=True)
class Gate:
    """One check: what was found, and the verdict it leads to."""

    name: str
    found: str
    verdict: str = VALID


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of the gates, with its reasons."""

    word: str
    reason: str
    gates: tuple[Gate, ...]


def judge(run: Run, measured: Measured, server_tokens: int | None = None) -> Verdict:
    """Pass a run through every gate. ``server_tokens`` is the server's own count for the run."""
    gates = [
        _answered(run, measured),
        _lag(run, measured),
        _little(run),
        _tokens(run, server_tokens),
        _identity(run),
        *_load(run, measured),
    ]
    word = max((g.verdict for g in gates), key=_SEVERITY.index)
    reason = "; ".join(f"{g.name}: {g.found}" for g in gates if g.verdict == word != VALID)
    return Verdict(word, reason, tuple(gates))


def _answered(run: Run, m: Measured) -> Gate:
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


def _lag(run: Run, m: Measured) -> Gate:
    """p99 lag against max(10 ms, 2 % of the median TTFT), the largest lag where n is small."""
    if not m.lag.size:
        return Gate(LAG, "no intended times (closed loop)")
    lag = float(np.quantile(m.lag, 0.99, method="higher"))
    ttft = m.latencies["ttft"]
    median = float(np.median(ttft)) if ttft.size else 0.0
    limit = max(0.010, 0.02 * median if math.isfinite(median) else 0.0)
    found = f"p99 {lag * 1e3:.1f} ms, limit {limit * 1e3:.1f} ms"
    return Gate(LAG, found, VALID if lag <= limit else INVALID_CLIENT)


def _little(run: Run) -> Gate:
    """L sampled while the run went on against lambda W summed over its records."""
    if len(run.in_flight) < 10 or not run.outcomes:
        return Gate("Little's law", "run too short to tell")
    times = np.array([t for t, _ in run.in_flight])
    counts = np.array([n for _, n in run.in_flight], dtype=np.float64)
    span = float(times[-1])
    sampled = float(np.trapezoid(counts, times))
    stays = np.array([min(o.left_s, span) - min(o.sent_s, span) for o in run.outcomes])
    summed = float(stays.sum())
    if summed <= 0:
        return Gate("Little's law", "run too short to tell")
    # A sample sees each request's ends to within a step, at random.
    step = float(np.sqrt(np.mean(np.diff(times) ** 2)))
    limit = max(0.02, 5 * step * math.sqrt(len(stays) / 6) / summed)
    off = abs(sampled - summed) / summed
    found = f"L {sampled / span:.2f} sampled, lambda W {summed / span:.2f}, off {off:.1%}"
    return Gate("Little's law", found, VALID if off <= limit else INVALID_CLIENT)


def _tokens(run: Run, server_tokens: int | None) -> Gate:
    done = [o for o in run.outcomes if o.ok]
    total = sum(o.output_tokens or 0 for o in done)
    streamed = [o for o in done if o.deliveries]
    if run.streamed and streamed:
        delivered = sum(tokens for o in streamed for _, tokens in o.deliveries)
        stated = sum(o.output_tokens or 0 for o in streamed)
        exact = "usage" not in run.counted
        found = f"{delivered} {'tokens' if exact else 'events'} delivered, {stated} stated"
        if delivered != stated:
            found += "" if exact else " (an event is not a token here: ITL is between events)"
            return Gate("token conservation", found, INVALID_CLIENT if exact else VALID)
    else:
        found = f"{total} tokens stated"
    if server_tokens is not None and len(done) == len(run.outcomes):
        found += f", {server_tokens} in the server's books"
        if server_tokens != total:
            return Gate("token conservation", found, INVALID_CLIENT)
    return Gate("token conservation", found)


def _identity(run: Run) -> Gate:
    """E2E = TTFT + sum of ITL + what the end of the stream lagged behind its last token."""
    done = [o for o in run.outcomes if o.ok and o.deliveries and o.end_s is not None]
    if not done:
        return Gate("E2E = TTFT + sum ITL", "no streams")
    holds = []
    for o in done:
        times = [at for at, _ in o.deliveries]
        if times != sorted(times) or times[0] != o.first_s or times[-1] > (o.end_s or 0.0):
            found = f"request {o.index}: token times out of order"
            return Gate("E2E = TTFT + sum ITL", found, INVALID_CLIENT)
        holds.append((o.end_s or 0.0) - times[-1])
    found = f"holds; the end came {np.mean(holds) * 1e3:.1f} ms after the last token on average"
    return Gate("E2E = TTFT + sum ITL", found)


def _load(run: Run, m: Measured) -> list[Gate]:
    if run.workload.users is not None:
        return [Gate("achieved rate", f"{m.achieved:.2f}/s (closed loop)")]
    kept = Gate("achieved / offered", f"{m.achieved:.2f} / {m.offered:.2f} requests/s")
    if m.unfinished and not run.interrupted:
        found = f"{m.unfinished} requests had not ended when the run was cut"
        return [kept, Gate("backlog", found, SATURATED)]
    if not run.workload.steady:
        return [kept, Gate("backlog", "not applied: the load itself comes and goes")]
    end_s = run.window_end_s
    window = [(t, n) for t, n in run.in_flight if t <= end_s]
    asked = [o for o in run.outcomes if o.first_s is not None]
    if len(window) < 20 or len(asked) < 10:
        return [kept, Gate("backlog", "run too short to tell")]
    # Samples of a queue hang together over a residence; thinned, their slope can be judged.
    window = window[:: max(1, round(len(window) / 20))]
    times = np.array([t for t, _ in window])
    counts = np.array([n for _, n in window], dtype=np.float64)
    half = len(window) // 2
    grows, late = slope(times, counts), slope(times[half:], counts[half:])
    waits = slope(
        np.array([o.origin_s for o in asked]),
        np.array([(o.first_s or 0.0) - o.origin_s for o in asked]),
    )
    growth = grows.value * float(times[-1] - times[0])
    both = (grows.low or 0.0) > 0 and (waits.low or 0.0) > 0
    # Undone arrivals wait in line, each longer than the one before by their share of the time
    # between them; or they are served too, all the slower, and those in flight go on to grow.
    goes_on = (late.low or 0.0) > 0 and late.value > UNDONE * m.offered
    undone = waits.value > UNDONE or goes_on
    found = f"{growth:+.1f} requests over the sends, TTFT {waits.value * 1e3:+.0f} ms/s"
    saturated = both and undone and growth > 3
    return [kept, Gate("backlog", found, SATURATED if saturated else VALID)]
