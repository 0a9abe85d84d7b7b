"""Finds out what a server can do: whether it streams, which extras it accepts, and which words are
one token of its model."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import requests

from client.load.http.dialects import EXTRAS, OpenAI
from client.load.http.target import Target
from client.load.live import say
from client.load.servers.processes import ServerError, cause, unreachable
from client.workloads.prompts import Words, embedded_words, lengths_are_chosen
from client.workloads.workload_file import Request

FIRST_ANSWER_S = 120.0  # a model's first answer may be slow
_TOKENS_S = 30.0


def adapted(target: Target, timeout_s: float = FIRST_ANSWER_S, *, stream: bool = True) -> Target:
    """The target, if wanted with streaming, and with responses of the requested length, counted
    token by token, if the server can. Raises ServerError if it does not respond, so that a long
    load is not sent in vain."""
    if stream and target.native:
        return replace(target, stream=streams(target, timeout_s))
    silence = unreachable(target)
    if silence is not None:
        raise ServerError(silence)
    return replace(with_extras(target, timeout_s), stream=stream)


def streams(target: Target, timeout_s: float) -> bool:
    """Whether a native target can stream: it refuses the field by name otherwise.

    Raises ServerError if it does not respond, or not like this project's servers.
    """
    body = {"prompt": "a", "num_tokens": 1, "stream": True, "temperature": 0}
    try:
        with target.ask("POST", "/inference", json=body, timeout=timeout_s, stream=True) as answer:
            kind = answer.headers.get("Content-Type", "nothing").partition(";")[0]
            if answer.status_code == 200 and kind == "text/event-stream":
                return True
            text = answer.raw.read(300, decode_content=True).decode(errors="replace")
            refused = answer.status_code in (400, 422) and re.search(r"\bstream\b", text)
            if kind == "application/json" and (refused or answer.status_code == 200):
                return False
    except (requests.RequestException, OSError) as error:
        raise ServerError(f"{target.url} does not respond: {cause(error)}") from None
    raise ServerError(
        f"{target.url}/inference responded to the first request with HTTP {answer.status_code} and "
        f"{kind}, instead of tokens: {' '.join(text.split())}"
    )


def with_extras(target: Target, timeout_s: float) -> Target:
    """An OpenAI target with the extras that it accepts, tried one at a time."""
    if not isinstance(target.dialect, OpenAI):
        return target
    one = Request(0.0, "a", 1, 1, "immediate", None, 0)
    known = []
    for extra in EXTRAS:
        dialect = replace(target.dialect, extras=(extra,))
        try:
            body = dialect.body(one, stream=True)
            answer = target.ask("POST", dialect.path(stream=True), json=body, timeout=timeout_s)
        except (requests.RequestException, OSError) as error:
            raise ServerError(f"{target.url} does not respond: {cause(error)}") from None
        known += [extra] if answer.status_code == 200 and "error" not in answer.text else []
    return replace(target, dialect=replace(target.dialect, extras=tuple(known)))


def served_words(target: Target, prompts: str) -> Words | None:
    """Words for such prompts, whose lengths are counted in the target's tokens, as its `/tokenize`
    (in TGI's form) lists them; the embedded vocabulary's where it does not. None for prompts that
    have the lengths that they have."""
    if not lengths_are_chosen(prompts):
        return None
    known = embedded_words()
    body = {"inputs": known.question()}
    try:
        answer = target.ask("POST", "/tokenize", json=body, timeout=_TOKENS_S)
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
