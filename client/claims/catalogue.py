"""The claims, one for each policy: what its authors say, against which baseline, and the traffic
and the one metric that decide about it here.

Traffic and metrics are fixed: they were written down before the first run, after the evaluation
sections of the papers, and are not adapted to results. A claim has a second traffic, `calm`, in
which the policy should change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from client.workloads.traffic import Flow, Traffic

ROWS = 8  # of an iteration: few, so that a queue forms under a load that one client can send


@dataclass(frozen=True, slots=True)
class Claim:
    """``metric`` is a key of `figures.METRICS`, ``paper`` the authors' value of policy / baseline
    in it, None where theirs is another. ``options`` are the servers'."""

    policy: str
    baseline: str
    source: str
    claim: str
    metric: str
    traffic: Traffic
    calm: Traffic
    paper: float | None = None
    options: tuple[str, ...] = ()
    prefix_caching: bool = False


SHORT_PROMPT, LONG_PROMPT = "uniform:8,48", "uniform:500,800"
CHAT = Flow(1.0, "uniform:16,64", "uniform:16,48")
HEAVY_TAILED = Flow(1.0, "lognormal:32,0.8,4,300", "lognormal:12,1.2,1,300")
HALF_EMPTY = 0.5


def _overload(load: float, *flows: Flow) -> tuple[Traffic, Traffic]:
    """More than the server can serve, and the same at half of what it can."""
    return Traffic(flows, load), Traffic(flows, HALF_EMPTY)


_BY_LENGTH = _overload(
    1.5, Flow(0.85, SHORT_PROMPT, "uniform:8,24"), Flow(0.15, LONG_PROMPT, "uniform:8,24")
)
_TWO_USERS = _overload(2.0, replace(CHAT, share=1, user="a"), replace(CHAT, share=2, user="b"))
_DOCUMENTS = _overload(
    3.0,
    *(
        Flow(1, "uniform:8,24", "uniform:4,12", user=user, documents=8, document_tokens=384)
        for user in "abcd"
    ),
)
_UNEQUAL = _overload(1.4, HEAVY_TAILED)
_PREDICTED = _overload(1.4, replace(HEAVY_TAILED, misprediction=0.4))
_URGENT = _overload(
    1.4, replace(CHAT, share=0.2, priority=0), replace(CHAT, share=0.8, priority=10)
)
_AGENTS = _overload(
    1.3,
    *(
        Flow(share, "uniform:16,64", "uniform:8,24", calls=calls)
        for share, calls in ((0.6, "fixed:1"), (0.25, "fixed:3"), (0.15, "fixed:10"))
    ),
)
_DEADLINES = _overload(
    1.5,
    Flow(1, "uniform:16,64", "uniform:8,24", user="interactive", ttft=2),
    Flow(1, "uniform:200,500", "uniform:16,32", user="document", deadline=8),
    Flow(1, "uniform:200,500", "uniform:16,32", user="batch", deadline=24),
)
_TARGETS = Traffic(
    (Flow(1, "lognormal:120,0.8,16,700", "uniform:16,48", ttft=4, tpot=4),), 0.8, "gamma:cv=2"
)
_INTERFERING = Traffic(
    (Flow(0.85, SHORT_PROMPT, "uniform:32,64"), Flow(0.15, "uniform:600,900", "uniform:4,8")), 0.7
)
_SHORT_ALONE = Traffic((Flow(1, "uniform:4,16", "uniform:16,48"),), 0.3)
_SHORT_IN_TIME = Traffic((Flow(1, "uniform:4,16", "uniform:16,48", ttft=4, tpot=4),), 0.3)

CLAIMS = {
    claim.policy: claim
    for claim in (
        Claim(
            "stall-free", "orca", "Agrawal et al., Sarathi-Serve, OSDI '24",
            "2.6 (Mistral-7B) to 3.7 times (Yi-34B) the capacity at an objective for the p99 of "
            "the time between tokens, since a long prompt no longer stalls decodes",
            "itl_p99", _INTERFERING, _SHORT_ALONE,
        ),
        Claim(
            "hrrn", "stall-free", "SGLang, pull request 32911; Brinch Hansen, 1971",
            "mean TTFT 24.2 s → 7.5 s, p99 60.5 s → 55.5 s",
            "ttft_mean", *_BY_LENGTH, paper=0.31,
            options=("--max-bypass", "1000000"),  # without ageing
        ),
        Claim(
            "vtc", "stall-free", "Sheng et al., OSDI '24",
            "the service of two backlogged users differs by a bounded amount, where first come, "
            "first served lets it grow without bound",
            "service_gap", *_TWO_USERS,
        ),
        Claim(
            "dlpm", "vtc", "Cao et al., arXiv 2501.14312",
            "up to 2.87 times the throughput of VTC, with nearly its fairness",
            "throughput", *_DOCUMENTS, paper=2.87,
            options=("--kv-memory", "4096tokens"), prefix_caching=True,
        ),
        Claim(
            "mlfq", "stall-free", "Wu et al., FastServe, NSDI '26 (arXiv 2305.05920)",
            "at the same mean latency per token up to 31.4 times the throughput of vLLM in the "
            "preprint, 6.1 times in the published version",
            "latency_per_token_mean", *_UNEQUAL,
        ),
        Claim(
            "deadline", "stall-free", "Goel et al., Niyama, arXiv 2503.22562",
            "an order of magnitude fewer violated objectives under extreme load, 32 % more "
            "capacity than separate servers",
            "missed", *_DEADLINES, paper=0.1,
        ),
        Claim(
            "priority", "stall-free", "Kleinrock, Queueing Systems 2, 1976; vLLM",
            "urgent requests are served as if there were no others",
            "urgent_ttft_mean", *_URGENT,
        ),
        Claim(
            "program", "stall-free", "Luo et al., Autellix, arXiv 2502.13965",
            "4 to 15 times the program throughput of vLLM at the same latency",
            "program_per_token_mean", *_AGENTS,
        ),
        Claim(
            "fair-slack", "stall-free", "Lyu et al., FairBatching, arXiv 2510.14392",
            "TTFT tail up to 2.29 times lower, 20 % more capacity",
            "ttft_p99", _TARGETS, _SHORT_IN_TIME, paper=1 / 2.29,
        ),
        Claim(
            "srpt", "stall-free", "Qiu et al., SSJF, arXiv 2404.08509; Fu et al., arXiv 2408.15792",
            "mean completion time 30 to 40 % lower with predicted lengths; 2.8 times lower latency "
            "of a chat service",
            "e2e_mean", *_PREDICTED, paper=0.65,
        ),
    )
}  # fmt: skip
