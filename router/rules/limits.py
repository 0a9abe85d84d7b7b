"""How many requests and tokens a client may have in a minute. Pure.

Two leaky buckets per client: what it used runs off evenly, within a minute if they are full. A
request counts with the tokens that are expected of it, and with the difference when it has ended.
Names and form are OpenAI's: <https://platform.openai.com/docs/guides/rate-limits>
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

MINUTE_S = 60.0
MOST_MINUTES = 2  # however much more than expected requests cost, no client waits longer


@dataclass(slots=True)
class _Used:
    requests: float = 0.0
    tokens: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class OverLimit:
    """`kind`: "requests" or "tokens". `again_s`: when it would be accepted; None: never."""

    kind: str
    limit: int
    used: int
    asked: int
    again_s: float | None


class MinuteLimits:
    """`requests` and `tokens` in a minute, for each client; 0: any number."""

    def __init__(self, requests: int, tokens: int) -> None:
        self._limits = {"requests": requests, "tokens": tokens}
        self._clients: OrderedDict[str, _Used] = OrderedDict()  # the longest idle first

    def admit(self, client: str, tokens: float, now: float) -> OverLimit | None:
        """Counts a request, unless it is over a limit."""
        if not any(self._limits.values()):
            return None
        used, costs = self._used(client, now), {"requests": 1.0, "tokens": tokens}
        for kind, limit in self._limits.items():
            have, cost = getattr(used, kind), costs[kind]
            if limit and have + cost > limit:
                again_s = (have + cost - limit) * MINUTE_S / limit if cost <= limit else None
                return OverLimit(kind, limit, math.ceil(have), math.ceil(cost), again_s)
        used.requests += 1
        used.tokens += tokens
        return None

    def correct(self, client: str, tokens: float, now: float) -> None:
        """An admitted request cost so many tokens more than was counted."""
        if self._limits["tokens"]:
            used = self._used(client, now)
            most = MOST_MINUTES * self._limits["tokens"]
            used.tokens = min(most, max(0.0, used.tokens + tokens))

    def headers(self, client: str, now: float) -> dict[str, str]:
        """What a client is told of its limits."""
        if not any(self._limits.values()):
            return {}
        shown = {}
        used = self._used(client, now)
        for kind, limit in self._limits.items():
            if limit:
                have = getattr(used, kind)
                shown[f"x-ratelimit-limit-{kind}"] = str(limit)
                shown[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(limit - have)))
                shown[f"x-ratelimit-reset-{kind}"] = duration(have * MINUTE_S / limit)
        return shown

    def _used(self, client: str, now: float) -> _Used:
        """As of now."""
        used = self._clients.setdefault(client, _Used(at=now))
        for kind, limit in self._limits.items():
            ran_off = limit * (now - used.at) / MINUTE_S
            setattr(used, kind, max(0.0, getattr(used, kind) - ran_off))
        used.at = now
        self._clients.move_to_end(client)
        oldest = next(iter(self._clients))
        if now - self._clients[oldest].at > MOST_MINUTES * MINUTE_S:  # nothing of it is left
            del self._clients[oldest]
        return used


def duration(seconds: float) -> str:
    """As OpenAI writes it: 0s, 17ms, 1.5s, 6m0s."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"
