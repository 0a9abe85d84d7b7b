"""Asks a server's `/tokenize`, in TGI's form, which words are one token of its model."""

from __future__ import annotations

from typing import Any

import requests

from client.load.http.target import Target
from client.load.live import say
from client.workloads.words import Words, embedded_words

_ANSWER_S = 30.0


def served_words(target: Target) -> Words:
    """Words for prompts whose lengths are counted in the target's tokens; the embedded
    vocabulary's where it does not list them."""
    known = embedded_words()
    body = {"inputs": known.question()}
    try:
        answer = target.ask("POST", "/tokenize", json=body, timeout=_ANSWER_S)
    except requests.RequestException:
        return known  # the run reports the reason
    if (tokens := _spans(answer)) is not None:
        return known.kept(tokens)
    say(
        f"note: {target.name} does not list its tokens (/tokenize of TGI); prompts have the wanted "
        "lengths in tokens of the embedded vocabulary"
    )
    return known


def _spans(answer: requests.Response) -> dict[tuple[int, int], int] | None:
    """The characters that each token covers, and its id."""
    try:
        tokens: list[dict[str, Any]] = answer.json()
        return {(int(t["start"]), int(t["stop"])): int(t["id"]) for t in tokens}
    except (requests.RequestException, ValueError, TypeError, KeyError, RecursionError):
        return None
