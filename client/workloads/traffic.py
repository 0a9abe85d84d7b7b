"""Traffic of several kinds of requests, as evaluations of scheduling policies have it: users of
unequal demand, programs of dependent calls, deadlines, documents that many prompts begin with.

Lengths are in tokens. Rates and targets are multiples of what a server can do with this traffic
(`Speed`), so that the same traffic asks as much of a fast server as of a slow one. Pure: the same
arguments, the same workload.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from client.workloads.arrivals import horizon, parse_arrivals
from client.workloads.lengths import draw, parse_sizes
from client.workloads.prompts import TextMaker, embedded_words, words_of
from client.workloads.workload_file import Request, Workload, seal

_STREAMS = ("arrivals", "order", "calls", "prompts", "outputs", "texts", "seeds", "predictions")


@dataclass(frozen=True, slots=True)
class Speed:
    """Of a server with a traffic when its batch is full: how many requests end in a second, how
    long one of them stays in the batch, and the mean time from token to token."""

    requests_per_s: float
    request_s: float
    token_s: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests of one kind. ``share``: of the programs; a request alone is a program of one call.

    ``calls``: of a program, each sent when the one before it has ended. ``documents`` texts of
    ``document_tokens``, one of which comes before each prompt, equally likely. ``ttft`` and
    ``deadline`` are multiples of `Speed.request_s`, ``tpot`` of `Speed.token_s`.
    ``misprediction``: the standard deviation of the logarithm of predicted over true lengths; None
    for no prediction.
    """

    share: float
    prompt_tokens: str
    output_tokens: str
    calls: str = "fixed:1"
    user: str | None = None
    priority: int | None = None
    documents: int = 0
    document_tokens: int = 0
    ttft: float | None = None
    tpot: float | None = None
    deadline: float | None = None
    misprediction: float | None = None

    @property
    def mean_calls(self) -> float:
        return float(parse_sizes(self.calls)((np.arange(1000) + 0.5) / 1000).mean())


@dataclass(frozen=True, slots=True)
class Traffic:
    """``load``: offered requests, as a multiple of those that the server can end."""

    flows: tuple[Flow, ...]
    load: float
    arrivals: str = "poisson"

    @property
    def mean_calls(self) -> float:
        return sum(f.share * f.mean_calls for f in self.flows) / sum(f.share for f in self.flows)


def open_loop(traffic: Traffic, speed: Speed, requests: int, seed: int, copy: int = 0) -> Workload:
    """About so many requests. ``copy`` changes the words of the prompts and the programs' names,
    so that a server that saw another copy has not cached them; times and lengths stay."""
    programs = _programs(traffic, speed, requests, seed, copy)
    process = parse_arrivals(traffic.arrivals)
    times = process.unit_times(len(programs), _seed(seed, "arrivals"))
    rate = traffic.load * speed.requests_per_s / traffic.mean_calls
    # runs of one load offer exactly the same
    times = times * (len(programs) / max(horizon(process, times), 1e-9)) / rate
    made: list[Request] = []
    for at_s, calls in zip(times.tolist(), programs, strict=True):
        made.append(replace(calls[0], at_s=round(at_s, 6)))
        for call in calls[1:]:
            made.append(replace(call, after=len(made) - 1))
    generator = {**asdict(traffic), "speed": asdict(speed), "seed": seed, "copy": copy}
    return seal(generator, made, len(programs) / rate, steady=False)


def closed_loop(traffic: Traffic, requests: int, users: int, seed: int) -> Workload:
    """The same requests one by one, without targets, which need a `Speed`."""
    programs = _programs(traffic, None, requests, seed, 0)
    made = [call for calls in programs for call in calls]
    generator = {**asdict(traffic), "seed": seed}
    return seal(generator, made, 0.0, steady=True, users=users)


def _programs(
    traffic: Traffic, speed: Speed | None, requests: int, seed: int, copy: int
) -> list[list[Request]]:
    """In the order of their arrival, the calls of each without times."""
    flows = traffic.flows
    count = max(len(flows), round(requests / traffic.mean_calls))
    shares = np.array([flow.share for flow in flows])
    edges = np.rint(np.cumsum(shares) / shares.sum() * count).astype(np.int64)
    of_flow = np.diff(edges, prepend=0).tolist()
    order = np.repeat(np.arange(len(flows)), of_flow)
    _rng(seed, "order").shuffle(order)
    left = [
        iter(_flow(flow, n, speed, seed, copy, number))
        for number, (flow, n) in enumerate(zip(flows, of_flow, strict=True))
    ]
    return [next(left[number]) for number in order.tolist()]


def _flow(
    flow: Flow, programs: int, speed: Speed | None, seed: int, copy: int, number: int
) -> list[list[Request]]:
    calls = draw(parse_sizes(flow.calls), programs, _rng(seed, "calls", number)).tolist()
    n = sum(calls)
    own = draw(parse_sizes(flow.prompt_tokens), n, _rng(seed, "prompts", number))
    output = draw(parse_sizes(flow.output_tokens), n, _rng(seed, "outputs", number))
    rng = _rng(seed, "texts", number, copy)
    if flow.documents:
        words = TextMaker(embedded_words(), rng)
        documents = [words.first(flow.document_tokens) for _ in range(flow.documents)]
        # as often each, so that runs differ in the order only
        chosen = rng.permutation(np.arange(n) % flow.documents).tolist()
        texts = [documents[k] + words.more(m) for k, m in zip(chosen, own.tolist(), strict=True)]
    else:
        texts = words_of(own, rng, embedded_words())[0]
    seeds = _rng(seed, "seeds", number).integers(2**31, size=n).tolist()
    off = _rng(seed, "predictions", number).normal(size=n)
    predicted = np.maximum(1, np.rint(output * np.exp(off * (flow.misprediction or 0.0))))
    common = _signals(flow, speed)
    requests = [
        Request(
            at_s=None, prompt=text, prompt_tokens=tokens + flow.document_tokens,
            output_tokens=out, service="immediate", deadline_s=None, seed=noise,
            signals=common if flow.misprediction is None
            else {**common, "predicted_tokens": int(guess)},
        )
        for text, tokens, out, noise, guess in zip(
            texts, own.tolist(), output.tolist(), seeds, predicted.tolist(), strict=True
        )
    ]  # fmt: skip
    ends = np.cumsum(calls).tolist()
    made = []
    for program, (end, length) in enumerate(zip(ends, calls, strict=True)):
        chain = requests[end - length : end]
        if flow.calls != "fixed:1":
            name = f"{seed}.{copy}.{number}.{program}"
            chain = [replace(r, signals={**r.signals, "program": name}) for r in chain]
        made.append(chain)
    return made


def _signals(flow: Flow, speed: Speed | None) -> dict[str, Any]:
    found: dict[str, Any] = {"user": flow.user, "priority": flow.priority}
    if speed is not None:
        for name, multiple, unit_s in (
            ("ttft_target_s", flow.ttft, speed.request_s),
            ("tpot_target_s", flow.tpot, speed.token_s),
            ("deadline_s", flow.deadline, speed.request_s),
        ):
            found[name] = None if multiple is None else float(f"{multiple * unit_s:.4g}")
    return {name: value for name, value in found.items() if value is not None}


def _seed(seed: int, stream: str, *more: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(_STREAMS.index(stream), *more))


def _rng(seed: int, stream: str, *more: int) -> np.random.Generator:
    return np.random.default_rng(_seed(seed, stream, *more))
