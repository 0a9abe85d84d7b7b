"""Reads a native target's `/stats` and what it says of the server."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import requests

from client.load.http.target import Target


def stats(target: Target) -> dict[str, Any] | None:
    """``/stats`` of a native target; None if there is none."""
    if not target.native:
        return None
    try:
        answer = target.ask("GET", "/stats", timeout=30)
        data = answer.json() if answer.status_code == 200 else None
    except (requests.RequestException, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def reset_stats(target: Target) -> None:
    """Begin a new window in ``/stats``; a target without one is left alone."""
    if target.native:
        with contextlib.suppress(requests.RequestException):
            target.ask("POST", "/stats/reset", timeout=30)


def settled_stats(target: Target, wait_s: float = 10.0) -> dict[str, Any] | None:
    """``/stats`` once no request waits or runs, so that a cut run does not affect the next."""
    give_up = time.monotonic() + wait_s
    while True:
        answer = stats(target)
        counts = (answer or {}).get("counts")
        busy = isinstance(counts, dict) and (counts.get("waiting") or counts.get("running"))
        if answer is None or not busy or time.monotonic() > give_up:
            return answer
        time.sleep(0.05)


def handled(stats: dict[str, Any] | None) -> int | None:
    """Tokens counted by the server; None if it does not say."""
    tokens = (stats or {}).get("total-tokens-handled")
    return tokens if type(tokens) is int else None


def described(stats: dict[str, Any] | None) -> str | None:
    """The server's description of itself: mode, policy, model with its note, hardware."""
    if not stats:
        return None
    model, machine = (_dict(stats, key) for key in ("model", "machine"))
    parts = [f"mode {stats['mode']}"] if "mode" in stats else []
    if (policy := stats.get("policy")) not in (None, stats.get("mode")):
        parts.append(f"policy {policy}")
    caches = _dict(stats, "options").get("prefix_caching")
    if stats.get("mode") == "dynamic" and caches is not None:
        parts.append(f"prefix caching {'on' if caches else 'off'}")
    if "name" in model:
        parts.append(f"model {model['name']}, {model.get('dtype', 'unknown')}")
        parts += [str(model["note"])] if model.get("note") else []
    if "cpu" in machine:
        parts.append(
            f"on {machine.get('gpu') or 'no GPU'}, {machine['cpu']}, {machine.get('cores')} cores"
        )
    return ", ".join(parts) or None


def note_of(stats: dict[str, Any] | None) -> str | None:
    """A model's remark at its start, such as that its weights are random."""
    model = _dict(stats or {}, "model")
    return f"Model {model.get('name')}: {model['note']}" if model.get("note") else None


def _dict(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}
