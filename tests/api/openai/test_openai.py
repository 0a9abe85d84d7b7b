"""OpenAI's API: answers against the hash model's reference, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st

from api.openai.fields.shared import seed_of_choice
from tests.api.conftest import speculating
from tests.examples import examples
from tests.support.hash_app import END_ID, byte_tokenizer, generated, spelled
from tests.support.hashed import reference, reference_logprob
from tests.support.openai_calls import CHAT, CONTEXT, Json, both, chat, complete, counted
from text.tokenizer import Detokenizer


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


@examples(40)
@given(
    prompt=st.text(min_size=1, max_size=20),
    n=st.integers(1, 60),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop_at=st.tuples(st.integers(0, 40), st.integers(1, 4)),
    echo=st.booleans(),
    included=st.booleans(),
)
def test_text_is_the_references_up_to_the_stop_string_streamed_or_not(
    either: FlaskClient,
    prompt: str,
    n: int,
    seed: int | None,
    stop_at: tuple[int, int],
    echo: bool,
    included: bool,
) -> None:
    """The stop string is cut from the text itself, where it crosses borders of tokens at will."""
    # of a longer answer: at the end of this one the stop string may have begun
    plain, _, _ = expected(prompt.encode(), n + 5, seed)
    stop = plain[stop_at[0] : sum(stop_at)] or None
    text, tokens, finish = expected(prompt.encode(), n, seed, stop, included=included)
    fields: Json = {"prompt": prompt, "max_tokens": n, "stop": stop, "echo": echo}
    fields["include_stop_str_in_output"] = included
    fields |= {"temperature": 0} if seed is None else {"seed": seed}
    whole = both(either, **fields)
    (choice,) = whole["choices"]
    assert choice["text"] == (prompt if echo else "") + text
    assert choice["finish_reason"] == finish
    assert counted(whole["usage"]) == {
        "prompt_tokens": len(prompt.encode()),
        "completion_tokens": tokens,
        "total_tokens": len(prompt.encode()) + tokens,
    }


@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 999),
    alternatives=st.integers(0, 3),
    echo=st.booleans(),
    stop=st.none() | st.sampled_from("abcdefgh\ufffd"),
)
def test_every_token_that_is_counted_has_its_logprob_streamed_or_not(
    client: FlaskClient, n: int, seed: int, alternatives: int, echo: bool, stop: str | None
) -> None:
    prompt = "hé"
    fields: Json = {"prompt": prompt, "max_tokens": n, "seed": seed, "logprobs": alternatives}
    answer = both(client, **fields, echo=echo, stop=stop)
    told = answer["choices"][0]["logprobs"]
    ids = list(prompt.encode()) + reference(list(prompt.encode()), n, seed)
    first = 0 if echo else len(prompt.encode())
    assert len(told["tokens"]) == answer["usage"]["completion_tokens"] + len(prompt.encode()) * echo
    for place, logprob in enumerate(told["token_logprobs"], start=first):
        if place == 0:
            assert logprob is None
        else:
            assert logprob == pytest.approx(reference_logprob(ids[:place], ids[place]))
    detokenizer, offsets = Detokenizer(byte_tokenizer()), [0]
    for token in ids[first:]:
        offsets.append(offsets[-1] + len(detokenizer.push([token])))
    assert told["text_offset"] == offsets[: len(told["tokens"])]
    if alternatives == 0:
        assert told["top_logprobs"] is None
    else:
        numbers = (alternatives, alternatives + 1)
        assert all(top is None or len(top) in numbers for top in told["top_logprobs"])


@given(n=st.integers(1, 30), seed=st.integers(0, 999), top=st.none() | st.integers(0, 3))
def test_chat_logprobs_have_the_bytes_of_the_text(
    client: FlaskClient, n: int, seed: int, top: int | None
) -> None:
    fields: Json = {"max_tokens": n, "seed": seed, "logprobs": True, "top_logprobs": top}
    (choice,) = both(client, CHAT, **fields)["choices"]
    content = choice["logprobs"]["content"]
    held = bytes(byte for token in content for byte in token["bytes"])
    assert held.decode(errors="replace") == choice["message"]["content"]
    assert all(len(token["top_logprobs"]) == (top or 0) for token in content)


@given(seed=st.integers(-(2**63), 2**64 - 1), n=st.integers(1, 5))
def test_choice_0_is_the_request_alone_and_the_others_have_their_own_seeds(
    client: FlaskClient, seed: int, n: int
) -> None:
    several = both(client, seed=seed, n=n, best_of=n)
    assert several["choices"][0] == complete(client, seed=seed)["choices"][0]
    seeds = [seed_of_choice(seed, index) for index in range(n)]
    assert len(set(seeds)) == n
    assert all(0 <= derived < 2**63 for derived in seeds[1:])
    texts = [expected(b"x", 16, own)[0] for own in seeds]
    assert [choice["text"] for choice in several["choices"]] == texts
    assert several["usage"]["prompt_tokens"] == 1


def test_several_prompts_of_text_or_token_ids_are_answered_in_order_each_as_if_alone(
    client: FlaskClient,
) -> None:
    asked: list[Any] = [["ab"], ["a", "bc", "d"], [[97, 98]], [[97], [98, 99]]]
    for prompts in asked:
        answer = complete(client, prompt=prompts, n=2, seed=3)
        texts = [choice["text"] for choice in answer["choices"]]
        for number, prompt in enumerate(prompts):
            alone = complete(client, prompt=prompt, n=2, seed=3)
            assert texts[2 * number : 2 * number + 2] == [c["text"] for c in alone["choices"]]
            own = prompt.encode() if isinstance(prompt, str) else bytes(prompt)
            assert texts[2 * number] == expected(own, 16, 3)[0]
        assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


@given(st.text(min_size=1, max_size=20))
@example("x" * CONTEXT)
def test_no_tokens_but_echo_and_logprobs_is_the_prompts_score(
    client: FlaskClient, prompt: str
) -> None:
    answer = complete(client, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    ids = list(prompt.encode())
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert others == [reference_logprob(ids[:i], ids[i]) for i in range(1, len(ids))]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids), 0)


def test_a_completion_has_16_tokens_and_a_chat_the_rest_of_the_context(
    client: FlaskClient,
) -> None:
    assert complete(client, ignore_eos=True)["usage"]["completion_tokens"] == 16
    assert chat(client, ignore_eos=True)["usage"]["total_tokens"] == CONTEXT
    for name in ("max_tokens", "max_completion_tokens"):
        assert chat(client, ignore_eos=True, **{name: 3})["usage"]["completion_tokens"] == 3


@given(seed=st.integers(0, 999), number=st.integers(0, 9), ignore_eos=st.booleans())
def test_a_stop_token_ends_the_answer_as_the_end_token_does(
    client: FlaskClient, seed: int, number: int, ignore_eos: bool
) -> None:
    tokens = reference([ord("x")], 10, seed)
    stop = tokens[number]
    first = next(i for i, t in enumerate(tokens) if t == stop or (t == END_ID and not ignore_eos))
    fields: Json = {"seed": seed, "max_tokens": 20, "ignore_eos": ignore_eos}
    answer = complete(client, stop_token_ids=[stop], **fields)
    detokenizer = Detokenizer(byte_tokenizer())
    text = detokenizer.push(tokens[:first]) + detokenizer.finish()  # an ignored end token is text
    assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == first + 1


def test_stop_strings_count_from_min_tokens_on(client: FlaskClient) -> None:
    first = spelled(reference([ord("x")], 1, 3))
    asked: Json = {"seed": 3, "max_tokens": 40, "ignore_eos": True, "stop": first}
    assert complete(client, **asked)["usage"]["completion_tokens"] == 1
    assert complete(client, **asked, min_tokens=5)["usage"]["completion_tokens"] > 5


def test_flex_is_the_deferred_class_and_is_returned(client: FlaskClient) -> None:
    assert complete(client, service_tier="flex")["service_tier"] == "flex"
    assert complete(client, service_tier="auto")["service_tier"] == "default"
    assert "service_tier" not in complete(client)
