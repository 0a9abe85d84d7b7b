"""How much work a server has, and how fast it does it, as far as the router knows. Pure.

Work is counted in tokens as in VTC: 1 for each of the prompt, 2 for each generated one. A request
counts from the moment at which its server is chosen, so a burst does not pile onto one server; what
its answer shows to be done is taken off.

The rate of a server is measured as BBR measures that of a path (Cardwell et al., ACM Queue 2016):
the work done between the choice and the end of a request, by all requests, over that time. A server
with little to do shows less than it could, so a sample at fewer requests counts only if it raises
the rate.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduling.policies.orders.vtc import GENERATED_TOKEN, PROMPT_TOKEN, cost

HEADER = "X-Engine-Load"
_FIGURE = re.compile(r"(waiting|running|free_blocks)=(\d{1,9})\b")
_USAGE = re.compile(rb'"(prompt|input|completion|output|generated)_tokens"\s*:\s*(\d{1,9})\b')
# Weight of a new sample in a moving average.
WEIGHT = 0.1
# A rate without a sample for so long says nothing any more: the server may have recovered.
RATE_KEPT_S = 60.0
# After so long, half of the work that a server has from others is taken to be done.
FOREIGN_HALVED_S = 2.0
# A response that is longer than expected goes on for this part of what was expected.
LEFT_AT_LEAST = 0.25
# Before anything was learned: bytes of the body's JSON in a token, tokens of a response.
BYTES_PER_TOKEN, OUTPUT_TOKENS = 4.0, 128.0


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
        work.output = self.output if most is None else self.share * most

    def learn(self, work: RequestWork, usage: StatedUsage) -> None:
        if usage.prompt and work.prompt_bytes:
            self.bytes_per_token += WEIGHT * (
                work.prompt_bytes / usage.prompt - self.bytes_per_token
            )
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
    _done: float = 0.0
    _at_start: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def total(self) -> float:
        return cost(self.prompt, self.output)

    def start(self, load: UpstreamLoad, now: float) -> None:
        """Its server was chosen."""
        load.pass_time(now, 1)
        self._load, self._left, self._done, self.generated = load, self.total, 0.0, 0
        self._at_start = (now, load.delivered, load.request_seconds)
        load.outstanding += self._left

    def proceed(self, events: int, *, first: bool = False) -> None:
        """Events of its answer have come, each of which usually has a token. The first byte
        (`first`) shows that the prompt is computed."""
        load = self._load
        if load is None:
            return
        self.generated += events
        done = GENERATED_TOKEN * events + (PROMPT_TOKEN * self.prompt if first else 0.0)
        self._done += done
        load.delivered += done
        left = max(self._left - done, GENERATED_TOKEN * self.output * LEFT_AT_LEAST)
        if left < self._left:
            load.outstanding -= self._left - left
            self._left = left

    def end(self, now: float, usage: StatedUsage | None, *, complete: bool) -> None:
        """Its server is done with it. Without `usage` a complete answer that was no stream is taken
        to be as long as expected."""
        load = self._load
        if load is None:
            return
        self._load = None
        load.pass_time(now, -1)
        # what is rounded away adds up to nothing
        load.outstanding = max(0.0, load.outstanding - self._left) if load.requests else 0.0
        prompt = round(self.prompt) if complete or self._done else 0
        self.spent = StatedUsage(prompt, self.generated)
        if complete:
            self.spent = usage or StatedUsage(prompt, self.generated or round(self.output))
            load.delivered += cost(*self.spent) - self._done
        start, delivered, request_seconds = self._at_start
        if complete and now > start:
            seconds = now - start
            load.measure(
                (load.delivered - delivered) / seconds,
                (load.request_seconds - request_seconds) / seconds,
                now,
            )


@dataclass(slots=True)
class UpstreamLoad:
    """The load of one server. `outstanding`: the work of this router's requests. `rate`: work done
    in a second, with the number of requests at which it was measured; None until then."""

    outstanding: float = 0.0
    rate: float | None = None
    told: dict[str, int] = field(default_factory=dict)  # by the server: waiting, running, blocks
    delivered: float = 0.0  # work, since the start
    request_seconds: float = 0.0  # the time of all requests together
    _concurrency: float = 0.0
    requests: int = 0
    _passed: float = 0.0
    _measured: float = 0.0
    _foreign: float = 0.0  # work of others
    _told_at: float = 0.0

    def pass_time(self, now: float, more: int) -> None:
        """Until now it had the same requests; `more` come."""
        self.request_seconds += self.requests * (now - self._passed)
        self.requests += more
        self._passed = now

    def measure(self, rate: float, concurrency: float, now: float) -> None:
        """A sample of its rate, at so many requests on average."""
        if self.rate is None or now - self._measured > RATE_KEPT_S:
            self.rate, self._concurrency, self._measured = rate, concurrency, now
        elif rate > self.rate or concurrency >= self._concurrency:
            self.rate += WEIGHT * (rate - self.rate)
            self._concurrency += WEIGHT * (concurrency - self._concurrency)
            self._measured = now

    def tell(self, header: str, now: float) -> None:
        """The server told what it has. What is more than this router's requests is others'."""
        self.told = {name: int(count) for name, count in _FIGURE.findall(header)}
        if "running" not in self.told or not self.requests:
            return
        foreign = self.told["running"] + self.told.get("waiting", 0) - self.requests
        self._foreign = max(0, foreign) * self.outstanding / self.requests
        self._told_at = now

    def work(self, now: float) -> float:
        """All that it has to do, others' requests included."""
        if not self._foreign:
            return self.outstanding
        halvings: float = (now - self._told_at) / FOREIGN_HALVED_S
        return self.outstanding + self._foreign * math.pow(0.5, halvings)

    def known_rate(self, now: float) -> float | None:
        """None if it was never measured, or not for long."""
        return self.rate if now - self._measured <= RATE_KEPT_S else None
