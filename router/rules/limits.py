"""How many requests and tokens a client may have in a minute. Pure.

Two leaky buckets per client: what it used runs off evenly, within a minute if they are full. A
request counts with the tokens that are expected of it, and with the difference when it has ended.
Names and form are OpenAI's: <https://platform.openai.com/docs/guides/rate-limits>
"""

import math
from dataclasses import dataclass

MINUTE_S = 60.0
MOST_MINUTES = 2  # however much more than expected requests cost, no client waits longer


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
        limits = {"requests": requests, "tokens": tokens}
        self._limits = {kind: limit for kind, limit in limits.items() if limit}
        # what each has used, and as of when; the longest idle first
        self._clients: dict[str, tuple[dict[str, float], float]] = {}

    def admit(self, client: str, tokens: float, now: float) -> OverLimit | None:
        """Counts a request, unless it is over a limit."""
        if not self._limits:
            return None
        used, costs = self._used(client, now), {"requests": 1.0, "tokens": tokens}
        for kind, limit in self._limits.items():
            have, cost = used[kind], costs[kind]
            if have + cost > limit:
                again_s = (have + cost - limit) * MINUTE_S / limit if cost <= limit else None
                return OverLimit(kind, limit, math.ceil(have), math.ceil(cost), again_s)
        for kind in used:
            used[kind] += costs[kind]
        return None

    def correct(self, client: str, tokens: float, now: float) -> None:
        """An admitted request cost so many tokens more than was counted."""
        if limit := self._limits.get("tokens"):
            used = self._used(client, now)
            used["tokens"] = min(MOST_MINUTES * limit, max(0.0, used["tokens"] + tokens))

    def headers(self, client: str, now: float) -> dict[str, str]:
        """What a client is told of its limits."""
        shown: dict[str, str] = {}
        if not self._limits:
            return shown
        used = self._used(client, now)
        for kind, limit in self._limits.items():
            left = max(0, math.floor(limit - used[kind]))
            shown[f"x-ratelimit-limit-{kind}"] = str(limit)
            shown[f"x-ratelimit-remaining-{kind}"] = str(left)
            shown[f"x-ratelimit-reset-{kind}"] = duration(used[kind] * MINUTE_S / limit)
        return shown

    def _used(self, client: str, now: float) -> dict[str, float]:
        """As of now."""
        before, at = self._clients.pop(client, ({}, now))
        used = {
            kind: max(0.0, before.get(kind, 0.0) - limit * (now - at) / MINUTE_S)
            for kind, limit in self._limits.items()
        }
        self._clients[client] = used, now
        oldest, (_, at) = next(iter(self._clients.items()))
        if now - at > MOST_MINUTES * MINUTE_S:  # nothing of it is left
            del self._clients[oldest]
        return used


def duration(seconds: float) -> str:
    """As OpenAI writes it: 0s, 17ms, 1.5s, 6m0s."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"
