"""How much work a server has, and how fast it does it, as far as the router knows. Pure.

Work is counted in tokens as in VTC: 1 for each of the prompt, 2 for each generated one. A request
counts from the moment at which its server is chosen, so a burst does not pile onto one server; what
its answer shows to be done is taken off.

A server's rate is the tokens a second that a request alone would get. It is measured at any load,
and corrected for the requests beside it: with n of them a token takes n ** s times as long, where s
is between 0 (a batch costs nothing) and 1 (the server is full). The exponent is learned from how
the times of each server vary with n, over all servers. So on servers whose rates are r, tokens are
equally fast if the work is in proportion to r ** (1 / s), the capacities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduling.policies.orders.vtc import cost

HEADER = "X-Engine-Load"
_FIGURE = re.compile(r"(waiting|running|free_blocks)=(\d{1,9})\b")
_USAGE = re.compile(rb'"(prompt|input|completion|output|generated)_tokens"\s*:\s*(\d{1,9})\b')
# Weights of a new sample in a moving average.
WEIGHT, RATE_WEIGHT, SLOPE_WEIGHT = 0.1, 0.02, 0.01
# With a smaller one, errors of measured rates would count for more than differences of load.
LEAST_EXPONENT = 0.5
# A rate counts as the mean of all until it has about so many samples, of at most so many.
DOUBTED_SAMPLES, MOST_SAMPLES = 2.0, 100.0
CERTAINTY_HALVED_S = 60.0
# Work of others: the weight of what an answer tells, and after how long half of it counts as done.
FOREIGN_WEIGHT, FOREIGN_HALVED_S = 0.05, 10.0
# A response that is longer than expected goes on for this part of what was expected.
LEFT_AT_LEAST = 0.25
# Before anything was learned: bytes of the body's JSON in a token, tokens of a response.
BYTES_PER_TOKEN, OUTPUT_TOKENS = 4.0, 128.0
# However large a limit is: no client makes a server look busy for ever.
MOST_EXPECTED = 1e5


class StatedUsage(NamedTuple):
    """Tokens, as the answer states them."""

    prompt: int
    generated: int


NOTHING = StatedUsage(0, 0)


def usage_in(answer: bytes) -> StatedUsage | None:
    """What the end of an answer, or of a stream, states. In a text of the answer the quotes would
    be escaped. None if it states nothing."""
    found = {kind: int(count) for kind, count in _USAGE.findall(answer)}
    prompt = found.get(b"prompt", found.get(b"input", 0))
    generated = found.get(b"completion", found.get(b"output", found.get(b"generated", 0)))
    return StatedUsage(prompt, generated) if found else None


class Moment(NamedTuple):
    at: float
    request_seconds: float  # of the server until then


START = Moment(0.0, 0.0)


@dataclass(slots=True)
class Forecast:
    """What requests for a model are expected to cost; learns from what they cost. Clients give far
    too large limits of output or exact ones: `share` is how much of theirs was used."""

    bytes_per_token: float = BYTES_PER_TOKEN
    share: float = 1.0
    output: float = OUTPUT_TOKENS

    def expect(self, work: RequestWork) -> None:
        work.prompt = work.prompt_bytes / self.bytes_per_token
        most = work.max_tokens
        work.output = min(self.output if most is None else self.share * most, MOST_EXPECTED)

    def learn(self, work: RequestWork, usage: StatedUsage) -> None:
        if usage.prompt and work.prompt_bytes:
            found = work.prompt_bytes / usage.prompt
            self.bytes_per_token += WEIGHT * (found - self.bytes_per_token)
        if work.max_tokens:
            used = min(1.0, usage.generated / work.max_tokens)
            self.share += WEIGHT * (used - self.share)
        else:
            self.output += WEIGHT * (usage.generated - self.output)


@dataclass(slots=True)
class RequestWork:
    """What a request costs. `max_tokens`: the limit of its output, over all of its choices; None if
    it has none. `prompt` and `output`: tokens expected of it."""

    prompt_bytes: int = 0
    max_tokens: int | None = None
    prompt: float = 0.0
    output: float = 0.0
    generated: int = 0  # seen so far
    spent: StatedUsage = NOTHING  # by the last attempt that has ended
    _load: UpstreamLoad | None = None  # of the server that does it
    _left: float = 0.0
    _started: Moment = START
    _began: Moment | None = None

    @property
    def total(self) -> float:
        return cost(self.prompt, self.output)

    def start(self, load: UpstreamLoad, now: float) -> None:
        """Its server was chosen."""
        load.pass_time(now, 1)
        self._load, self._left, self.generated, self._began = load, self.total, 0, None
        self._started = Moment(now, load.request_seconds)
        load.outstanding += self._left

    def begin(self, now: float) -> None:
        """The first byte of the answer shows that the prompt is computed."""
        if self._load is not None and self._began is None:
            self._load.pass_time(now, 0)
            self._began = Moment(now, self._load.request_seconds)
            self._do(cost(self.prompt, 0))

    def proceed(self, events: int) -> None:
        """Events of the answer have come, each of which usually has a token."""
        self.generated += events
        self._do(cost(0, events))

    def _do(self, done: float) -> None:
        left = max(self._left - done, LEFT_AT_LEAST * cost(0, self.output))
        if self._load is not None and left < self._left:
            self._load.outstanding = max(0.0, self._load.outstanding - (self._left - left))
            self._left = left

    def end(self, now: float, usage: StatedUsage | None, *, complete: bool) -> None:
        """Its server is done with it. Without `usage` a complete answer that was no stream is taken
        to be as long as expected."""
        load, self._load = self._load, None
        if load is None:
            return
        load.pass_time(now, -1)
        # what is rounded away adds up to nothing
        load.outstanding = max(0.0, load.outstanding - self._left) if load.requests else 0.0
        prompt = round(self.prompt) if complete or self._began else 0
        self.spent = StatedUsage(prompt, self.generated)
        if complete:
            self.spent = usage or StatedUsage(prompt, self.generated or round(self.output))
            self._measure(load, now)

    def _measure(self, load: UpstreamLoad, now: float) -> None:
        """The time of a token: from the first byte on, unless the answer came as a whole."""
        began, started = self._began or self._started, self._started
        since = began if now - began.at > began.at - started.at else started
        tokens, seconds = self.spent.generated or self.spent.prompt, now - since.at
        if tokens and seconds:
            requests = (load.request_seconds - since.request_seconds) / seconds
            load.measure(seconds / tokens, requests, now)


@dataclass(slots=True)
class Slowdown:
    """How much requests slow each other down, over all servers: the slope of the logarithm of a
    request's time on that of the number of requests, within each server."""

    _covariance: float = 0.05
    _variance: float = 0.1

    @property
    def exponent(self) -> float:
        return min(1.0, max(0.0, self._covariance / self._variance))

    def learn(self, requests: float, time: float) -> None:
        """Both as logarithms, less the server's mean."""
        self._covariance += SLOPE_WEIGHT * (requests * time - self._covariance)
        self._variance += SLOPE_WEIGHT * (requests * requests - self._variance)


@dataclass(slots=True)
class UpstreamLoad:
    """The load of one server. `outstanding`: the work of this router's requests. `told`: by the
    server, of waiting and running requests and free blocks."""

    slowdown: Slowdown = field(default_factory=Slowdown)
    outstanding: float = 0.0
    told: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    request_seconds: float = 0.0  # the time of all requests together
    _passed: float = 0.0
    _measured: float = 0.0
    _samples: float = 0.0
    _requests_log: float = 0.0  # moving averages
    _time_log: float = 0.0  # of a token
    _foreign: float = 0.0  # work of others
    _told_at: float = 0.0

    def pass_time(self, now: float, more: int) -> None:
        """Until now it had the same requests; `more` come."""
        self.request_seconds += self.requests * (now - self._passed)
        self.requests += more
        self._passed = now

    def measure(self, token_s: float, requests: float, now: float) -> None:
        """A request took so long for a token, among so many requests on average."""
        time_log, requests_log = math.log(token_s), math.log(requests)
        self._samples = min(MOST_SAMPLES, self.certainty(now) + 1)
        self._measured = now
        more_s, more = time_log - self._time_log, requests_log - self._requests_log
        weight = max(RATE_WEIGHT, 1 / self._samples)
        self._time_log += weight * more_s
        self._requests_log += weight * more
        if self._samples > 1:
            self.slowdown.learn(more, more_s)

    @property
    def rate(self) -> float | None:
        """None if it was never measured."""
        if not self._samples:
            return None
        return math.exp(self.slowdown.exponent * self._requests_log - self._time_log)

    def certainty(self, now: float) -> float:
        """Of the rate: how many samples it is worth. The server may have changed since the last."""
        halvings: float = (now - self._measured) / CERTAINTY_HALVED_S
        return self._samples * math.pow(0.5, halvings)

    def tell(self, header: str, now: float) -> None:
        """The server told what it has. What is more than this router's requests is others'."""
        self.told = {name: int(count) for name, count in _FIGURE.findall(header)}
        if "running" not in self.told or not self.requests:
            return
        foreign = self.told["running"] + self.told.get("waiting", 0) - self.requests
        mean = self.outstanding / self.requests
        self._foreign = self._faded(now)
        self._foreign += FOREIGN_WEIGHT * (max(0, foreign) * mean - self._foreign)
        self._told_at = now

    def work(self, now: float) -> float:
        """All that it has to do, others' requests included."""
        return self.outstanding + self._faded(now)

    def _faded(self, now: float) -> float:
        halvings: float = (now - self._told_at) / FOREIGN_HALVED_S
        return self._foreign * math.pow(0.5, halvings) if self._foreign else 0.0


def capacities(loads: Sequence[UpstreamLoad], now: float) -> list[float] | None:
    """None if no rate is known. One that is not certain is nearer to the others' mean."""
    measured = [(load.certainty(now), math.log(load.rate)) if load.rate else None for load in loads]
    known = [each for each in measured if each is not None]
    total = sum(certainty for certainty, _ in known)
    if not total:
        return None
    mean = sum(certainty * rate for certainty, rate in known) / total
    found = []
    for load, each in zip(loads, measured, strict=True):
        certainty, rate = each or (0.0, mean)
        more = (rate - mean) * certainty / (certainty + DOUBTED_SAMPLES)
        found.append(math.exp(more / max(LEAST_EXPONENT, load.slowdown.exponent)))
    return found
