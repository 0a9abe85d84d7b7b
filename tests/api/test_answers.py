"""Answers of every API against the hash model's reference: texts, counts and logprobs, whole and in
pieces, with drafts and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from tests.api.conftest import speculating
from tests.api.responses.test_responses import both as both_responses
from tests.api.responses.test_responses import text_of
from tests.examples import examples
from tests.support.dialects import NATIVE, OPENAI, PATHS, RESPONSES, TGI, Json, ask, events
from tests.support.hash_app import END_ID, byte_tokenizer, generated, spelled
from tests.support.hashed import reference, reference_logprob
from tests.support.openai_calls import both, counted
from text.tokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer says, whole and streamed. `scores`: of its tokens, or of those of its text."""

    text: str
    tokens: int
    finish: str
    scores: Sequence[float] = ()
    tops: Sequence[int] = ()  # how many alternatives each has


def native(client: FlaskClient, prompt: str, n: int, fields: Json) -> Told:
    whole = ask(client, NATIVE, prompt, n, **fields).get_json()
    assert whole["completion"] == prompt + whole["generated"]
    assert fields.get("seed", whole["seed"]) == whole["seed"]
    streamed = ask(client, NATIVE, prompt, n, stream=True, **fields)
    *pieces, last = events(streamed)
    assert "".join(piece["text"] for piece in pieces) == last["generated"]
    assert sum(piece["tokens"] for piece in pieces) == n
    assert last["timing"].keys() == whole.pop("timing").keys()
    whole["seed"] = fields.get("seed", last["seed"])
    assert {**last, **whole, "done": True} == last
    return Told(whole["generated"], whole["num_tokens"], "length")


def completion(client: FlaskClient, prompt: str, n: int, fields: Json) -> Told:
    if "top" in fields:
        fields["logprobs"] = fields.pop("top")
    answer = both(client, prompt=prompt, max_tokens=n, **fields)
    (choice,) = answer["choices"]
    usage, known = answer["usage"], len(prompt.encode())
    tokens = usage["completion_tokens"]
    assert counted(usage) == {
        "prompt_tokens": known, "completion_tokens": tokens, "total_tokens": known + tokens,
    }  # fmt: skip
    told = choice["logprobs"] or {"token_logprobs": [], "top_logprobs": []}
    echoed = fields["echo"] * known
    scores, tops = told["token_logprobs"], told["top_logprobs"] or []
    if choice["logprobs"] is not None:
        assert len(told["tokens"]) == len(scores) == tokens + echoed
        assert (told["top_logprobs"] is None) == (fields["logprobs"] == 0)
        if echoed:
            sent = prompt.encode()
            of_prompt = [reference_logprob(sent[:i], sent[i]) for i in range(1, known)]
            assert scores[:known] == [None, *of_prompt]
        ids = [*prompt.encode(), *reference(prompt.encode(), tokens, fields.get("seed"))]
        detokenizer, offsets = Detokenizer(byte_tokenizer()), [0]
        for token in ids[known - echoed :]:
            offsets.append(offsets[-1] + len(detokenizer.push([token])))
        assert told["text_offset"] == offsets[:-1]
    if fields["echo"]:
        assert choice["text"].startswith(prompt)
    text = choice["text"][len(prompt) * fields["echo"] :]
    # the token itself is among the alternatives, or comes with them
    short = [len(top) - (len(top) > fields["logprobs"]) for top in tops[echoed:]]
    return Told(text, tokens, choice["finish_reason"], scores[echoed:], short)


def chat(client: FlaskClient, prompt: str, n: int, fields: Json) -> Told:
    if "top" in fields:
        fields |= {"logprobs": True, "top_logprobs": fields.pop("top")}
    messages = [{"role": "user", "content": prompt}]
    answer = both(client, OPENAI[1], messages=messages, max_tokens=n, **fields)
    (choice,) = answer["choices"]
    entries = (choice["logprobs"] or {"content": []})["content"]
    return Told(
        choice["message"]["content"],
        answer["usage"]["completion_tokens"],
        choice["finish_reason"],
        *scored(entries, choice["message"]["content"], fields["stop"]),
    )


def response(client: FlaskClient, prompt: str, n: int, fields: Json) -> Told:
    if "top" in fields:
        fields |= {"include": ["message.output_text.logprobs"], "top_logprobs": fields.pop("top")}
    answer = both_responses(client, input=prompt, max_output_tokens=n, **fields)
    (item,) = answer["output"]
    limited = answer["status"] == item["status"] == "incomplete"
    assert limited or answer["status"] == item["status"] == "completed"
    assert answer["incomplete_details"] == ({"reason": "max_output_tokens"} if limited else None)
    finish = "length" if limited else "stop"
    entries, text = item["content"][0]["logprobs"], text_of(answer)
    return Told(
        text, answer["usage"]["output_tokens"], finish, *scored(entries, text, fields["stop"])
    )


def scored(entries: list[Json], text: str, stop: str | None) -> tuple[list[float], list[int]]:
    """Of a chat's logprobs, whose bytes are those of the text. A stop string may begin within
    what became text together."""
    held = bytes(byte for entry in entries for byte in entry["bytes"]).decode(errors="replace")
    assert not entries or held == text or (stop and held.startswith(text))
    return [one["logprob"] for one in entries], [len(one["top_logprobs"]) for one in entries]


def tgi(client: FlaskClient, prompt: str, n: int, fields: Json) -> Told:
    asked: Json = {"details": True, "do_sample": "seed" in fields, "stop": []}
    asked |= {"top_n_tokens": fields["top"]} if fields.get("top") else {}
    asked |= {"stop": [fields["stop"]]} if fields["stop"] else {}
    asked |= {"seed": fields["seed"]} if "seed" in fields else {}
    whole = ask(client, TGI, prompt, n, **asked).get_json()
    details = whole["details"]
    parts = events(ask(client, TGI, prompt, n, stream=True, **asked))
    assert [part["token"] for part in parts] == details["tokens"]
    assert [part["index"] for part in parts] == list(range(1, len(parts) + 1))
    assert parts[-1]["generated_text"] == whole["generated_text"]
    last = {name: details[name] for name in ("finish_reason", "generated_tokens", "seed")}
    assert parts[-1]["details"] == {**last, "input_length": len(prompt.encode())}
    assert details["seed"] == fields.get("seed")
    for token in details["tokens"]:
        assert token["special"] == (token["id"] == END_ID)
    if "top_n_tokens" in asked:
        assert [part["top_tokens"] for part in parts] == details["top_tokens"]
    reasons = {"eos_token": "stop", "stop_sequence": "stop", "length": "length"}
    # as TGI says, the last token that was asked for ends by its number, be it the end token
    ended = details["finish_reason"] == "eos_token", details["generated_tokens"] == n
    assert ended in ((details["tokens"][-1]["special"], False), (False, True))
    return Told(
        whole["generated_text"],
        details["generated_tokens"],
        reasons[details["finish_reason"]],
        [token["logprob"] for token in details["tokens"]],
        [len(top) for top in details.get("top_tokens") or ()],
    )


ANSWERED = dict(zip(PATHS, (native, completion, chat, response, tgi), strict=True))


def expected(
    prompt: bytes, n: int, seed: int | None, stop: str | None = None, *, included: bool = False
) -> tuple[str, int, str]:
    """Text, tokens and finish_reason of a request that is alone, token by token."""
    detokenizer, text, number = Detokenizer(byte_tokenizer()), "", 0
    tokens = generated(prompt, n, seed)
    while number < len(tokens) and not (stop and stop in text):
        text += detokenizer.push([t for t in tokens[number : number + 1] if t != END_ID])
        number += 1
    text += detokenizer.finish()
    if stop and stop in text:
        return text[: text.index(stop)] + stop * included, number, "stop"
    return text, number, "stop" if tokens[-1] == END_ID else "length"


@pytest.fixture(scope="module", params=["as it is", "with drafts"])
def either(request: pytest.FixtureRequest, client: FlaskClient) -> Iterator[FlaskClient]:
    if request.param == "as it is":
        yield client
    else:
        with speculating() as other:
            yield other


@pytest.mark.parametrize("path", PATHS)
@examples(25, 200)
@given(
    prompt=st.text(min_size=1, max_size=20),
    n=st.integers(1, 60),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop_at=st.none() | st.tuples(st.integers(0, 40), st.integers(1, 4)),
    echo=st.booleans(),
    included=st.booleans(),
    top=st.none() | st.integers(0, 3),
)
def test_an_answer_is_the_references_up_to_the_stop_string_streamed_or_not(
    either: FlaskClient, path: str, prompt: str, n: int, seed: int | None,
    stop_at: tuple[int, int] | None, echo: bool, included: bool, top: int | None,
) -> None:  # fmt: skip
    """The stop string is cut from the text itself, where it crosses borders of tokens at will."""
    in_chat = path in (OPENAI[1], RESPONSES)
    known = f"User: {prompt}\nAssistant:".encode() if in_chat else prompt.encode()
    fields: Json = {} if seed is not None else {} if path == TGI else {"temperature": 0}
    fields |= {} if seed is None else {"seed": seed}
    stop = None
    if path != NATIVE:
        # of a longer answer: at the end of this one the stop string may have begun
        plain, _, _ = expected(known, n + 5, seed)
        stop = None if stop_at is None else plain[stop_at[0] : sum(stop_at)] or None
        fields |= {"stop": stop} | ({} if top is None else {"top": top})
    if path != NATIVE and path != TGI:
        fields["include_stop_str_in_output"] = included
    if path == OPENAI[0]:
        fields["echo"] = echo
    told = ANSWERED[path](either, prompt, n, dict(fields))
    text, tokens, finish = expected(known, n, seed, stop, included=included)
    if path == NATIVE:  # no token ends its answers
        text, tokens, finish = spelled(reference(known, n, seed), ends=True), n, "length"
    elif path == TGI:  # whose texts end with the token that completes a stop string
        text = spelled(generated(known, n, seed)[:tokens])
        if tokens == n and told.finish == "length":  # one that only the end completes is none
            finish = "length"
    assert (told.text, told.tokens, told.finish) == (text, tokens, finish)
    ids = [*known, *reference(known, n, seed)]
    for place, score in enumerate(told.scores, len(known)):
        assert score == pytest.approx(reference_logprob(ids[:place], ids[place]))
    if path == TGI or (path != NATIVE and top is not None):
        assert len(told.scores) == tokens or (in_chat and len(told.scores) <= tokens)
    assert not top or set(told.tops) <= {top}
