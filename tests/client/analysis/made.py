"""Records made by hand, so that each figure can be worked out."""

from __future__ import annotations

from dataclasses import replace

from client.analysis.comparison.results import Calibration, Job, Result
from client.analysis.gates import judge
from client.analysis.metrics import Isolated, measure
from client.load.records import Outcome, Run
from client.workloads.workload_file import Request, seal

# one request at a time on the baseline, as it is where nothing depends on it
CALIBRATION = Calibration(
    baseline="nobatch", capacity=1.0, isolated=Isolated(0.1, 0.0, 0.1), ttft_s=0.1, longest_s=1.0,
    start_s=1.0, streamed=True, requests=10,
)  # fmt: skip


def outcome(
    index: int = 0, at: float = 0.0, sent: float | None = None, first: float = 0.5,
    gap: float = 0.1, tokens: int = 5, **changes: object,
) -> Outcome:  # fmt: skip
    """Tokens one by one from ``at + first`` on."""
    sent = at if sent is None else sent
    times = [at + first + k * gap for k in range(tokens)]
    made = Outcome(
        index=index, service="immediate", deadline_s=None, requested_tokens=tokens,
        intended_s=at, sent_s=sent, first_s=times[0], end_s=times[-1], left_s=times[-1],
        deliveries=tuple((t, 1) for t in times), prompt_tokens=3, output_tokens=tokens,
        queue_s=None, first_from="stream", failure=None,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def run_of(outcomes: list[Outcome], duration_s: float = 10.0, **changes: object) -> Run:
    requests = [
        Request(o.intended_s, "p", 3, o.requested_tokens, o.service, o.deadline_s, 0)
        for o in outcomes
    ]
    end = max([o.left_s for o in outcomes] + [duration_s])
    made = Run(
        target="t", workload=seal({}, requests, duration_s, steady=False),
        outcomes=tuple(outcomes), wall_s=float(end), counted="ids",
        streamed=True,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def steady(outcomes: list[Outcome], duration_s: float = 10.0) -> Run:
    run = run_of(outcomes, duration_s)
    return replace(run, workload=replace(run.workload, steady=True))


def result(run: Run, seed: int = 0, *, system: str = "dynamic", load: float = 1.0) -> Result:
    """A run as a result; none of it is cut as warm-up."""
    measured = measure(run, None, 0.0)
    job = Job(system, load, seed, repeat=False)
    return Result(job, run, None, measured, judge(run, measured))
