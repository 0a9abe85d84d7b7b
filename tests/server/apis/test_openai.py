"""OpenAI's API over real sockets, by its official client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from openai import OpenAI

from serving.config import MODES
from tests.hashed import reference
from tests.server.hash_app import END_ID, FAIL_ON, HURRY, LOAD_GATE, STEP_S, byte_tokenizer
from tests.server.process import PATIENCE_S, Server, clients, closed_at_end, serving, starting
from tests.server.wire import send
from text.tokenizer import Detokenizer
from text.vocabulary import load_tokenizer

USER: Any = [{"role": "user", "content": "x"}]


def official(server: Server, **options: Any) -> OpenAI:
    fields = {"api_key": "none", "max_retries": 0, "timeout": PATIENCE_S, **options}
    return closed_at_end(OpenAI(base_url=f"{server.url}/v1", **fields))


def text_of(tokens: list[int]) -> str:
    detokenizer = Detokenizer(byte_tokenizer())
    return detokenizer.push(tokens) + detokenizer.finish()


def joined(stream: Any) -> str:
    return "".join(chunk.choices[0].text for chunk in stream)


@pytest.fixture(scope="module", params=MODES)
def any_mode(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("openai")
    with serving(folder, request.param, {STEP_S: 0.002}, max_batch_size=8, max_wait_ms=5) as server:
        yield server


def test_the_client_learns_how_much_of_its_prompt_was_known(any_mode: Server) -> None:
    client = official(any_mode)
    prompt = "a beginning that no other test sends"
    for times in range(2):
        usage = client.completions.create(model="embedded", prompt=prompt, max_tokens=2).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        # all but the last token, whose logits are wanted; a rectangle shares nothing
        known = len(prompt) - 1 if times and any_mode.config.mode == "dynamic" else 0
        assert usage.prompt_tokens_details.cached_tokens == known


def test_in_every_mode_answers_are_those_of_requests_alone(any_mode: Server) -> None:
    """Many at once, streamed and not, with stop strings that cross tokens, all different."""
    client = official(any_mode)

    def ask(number: int) -> tuple[str, str]:
        fields: Any = {
            "model": "embedded",
            "prompt": f"request {number}",
            "seed": number,
            "max_tokens": 40,
            "stop": stops[number],
        }
        if number % 2:
            return joined(client.completions.create(stream=True, **fields)), ""
        (choice,) = client.completions.create(**fields).choices
        return choice.text, choice.finish_reason

    texts, stops = [], []
    for number in range(12):
        tokens = reference(list(f"request {number}".encode()), 40, number)
        text = text_of(tokens[: tokens.index(END_ID)] if END_ID in tokens else tokens)
        stops.append(text[20 : 20 + number % 4] or None)
        texts.append(text[: text.index(stops[-1])] if stops[-1] else text)
    with clients(12) as call:
        answers = [call(ask, number) for number in range(12)]
        assert [answer.result()[0] for answer in answers] == texts
    any_mode.reaches(waiting=0, running=0)


def test_a_stop_string_ends_its_request_within_an_iteration(tmp_path: Path) -> None:
    # long iterations: the thread that finds the string may be late on a busy machine
    with serving(tmp_path, hash_model={STEP_S: 0.2}) as server:
        text = text_of(reference([ord("x")], 8, 3))
        stop = text[2:4]
        streamed: list[dict[str, Any]] = [{}, {"stream": True}]
        for fields in streamed:
            before = server.stats()["total-tokens-handled"]
            answer: Any = official(server).completions.create(
                model="embedded", prompt="x", seed=3, max_tokens=1000, stop=[stop], **fields
            )
            got = joined(answer) if fields else answer.choices[0].text
            assert got == text[: text.index(stop)]
            server.reaches(running=0)
            assert server.stats()["total-tokens-handled"] - before <= 10


def test_chat_streams_and_answers_at_once_alike(server: Server) -> None:
    client = official(server)
    fields: Any = {"model": "embedded", "messages": USER, "seed": 4, "max_tokens": 20}
    whole = client.chat.completions.create(n=2, **fields)
    texts = ["", ""]
    reasons: list[str | None] = [None, None]
    stream = client.chat.completions.create(
        n=2, stream=True, stream_options={"include_usage": True}, **fields
    )
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage is not None
    assert whole.usage is not None
    assert usage.total_tokens == whole.usage.total_tokens
    assert usage.completion_tokens == whole.usage.completion_tokens
    prompt = "User: x\nAssistant:"
    tokens = reference(list(prompt.encode()), 20, 4)
    assert texts[0] == text_of(tokens[: tokens.index(END_ID)] if END_ID in tokens else tokens)


def test_models_are_listed(server: Server) -> None:
    client = official(server)
    assert [model.id for model in client.models.list()] == ["embedded"]
    assert client.models.retrieve("embedded").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_errors_are_the_clients_own_exceptions_streamed_or_not(server: Server) -> None:
    client = official(server)
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError, match="gpt-9") as unknown:
            client.completions.create(model="gpt-9", prompt="x", stream=stream)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError, match="context length is 1024") as long:
            client.completions.create(model="embedded", prompt="x" * 2000, stream=stream)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="'tools'") as tools:
            client.chat.completions.create(
                model="embedded",
                messages=USER,
                stream=stream,
                tools=[{"type": "function", "function": {"name": "a name"}}],
            )
        assert tools.value.type == "invalid_request_error"


def test_a_request_without_a_key_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, api_key="mine,yours") as server:
        for key in ("mine", "yours"):
            official(server, api_key=key).models.list()
        with pytest.raises(openai.AuthenticationError) as refused:
            official(server, api_key="other").models.list()
        assert refused.value.code == "invalid_api_key"
        assert requests.get(f"{server.url}/stats", timeout=PATIENCE_S).status_code == 401


def test_one_choice_beyond_the_queue_refuses_them_all(tmp_path: Path) -> None:
    hurry = tmp_path / "hurry"
    steps: dict[str, object] = {STEP_S: 0.02, HURRY: hurry}
    with (
        serving(tmp_path, hash_model=steps, max_batch_size=1, max_waiting=2) as server,
        clients(2) as call,
    ):
        client = official(server)
        fields: Any = {"model": "embedded", "prompt": "x", "extra_body": {"ignore_eos": True}}
        answers = [call(client.completions.create, max_tokens=1000, **fields)]
        server.reaches(running=1)
        answers.append(call(client.completions.create, max_tokens=5, **fields))
        server.reaches(running=1, waiting=1)
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="--max-waiting") as refused:
                client.completions.create(n=2, stream=stream, **fields)
            assert int(refused.value.response.headers["Retry-After"]) >= 1
            server.reaches(running=1, waiting=1)
        with pytest.raises(openai.BadRequestError, match="--max-waiting"):
            client.completions.create(n=3, **fields)
        hurry.touch()
        assert [len(answer.result().choices) for answer in answers] == [1, 1]


def test_while_the_model_is_loaded_the_answer_is_503(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with starting(tmp_path, hash_model={LOAD_GATE: gate}) as server:
        while server.health() is None:
            assert server.process.poll() is None
        for path, body in (
            ("completions", {"prompt": "x"}),
            ("chat/completions", {"messages": USER, "stream": True}),
        ):
            answer = requests.post(f"{server.url}/v1/{path}", json=body, timeout=PATIENCE_S)
            assert answer.status_code == 503
            assert answer.json()["error"]["type"] == "server_error"
            assert "Retry-After" in answer.headers
        gate.write_bytes(b"go")


def test_a_failure_before_the_first_token_has_its_status(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={FAIL_ON: "1,2"}) as server:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="fails on request"):
                official(server).completions.create(model="embedded", prompt="x", stream=stream)
        server.reaches(running=0, waiting=0)
        assert official(server).completions.create(model="embedded", prompt="x").choices


def test_a_stream_that_fails_later_ends_with_an_error_and_without_done(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={FAIL_ON: "3,6"}) as server:
        stream = official(server).completions.create(
            model="embedded", prompt="x", stream=True, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.APIError, match="iteration 3 fails"):
            joined(stream)
        answer = requests.post(
            f"{server.url}/v1/chat/completions",
            json={"messages": USER, "stream": True, "ignore_eos": True},
            timeout=PATIENCE_S,
        )
        assert answer.status_code == 200
        assert b"iteration 6 fails" in answer.content
        assert b"[DONE]" not in answer.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_all_its_choices(server: Server, stream: bool) -> None:
    server.reaches(running=0, waiting=0)
    before = server.counts()["cancelled"]
    fields: dict[str, Any] = {"max_tokens": 1000, "ignore_eos": True, "stream": stream}
    with send(server, "/v1/completions", prompt=["a", "b"], n=2, **fields):
        server.reaches(running=4)
    server.reaches(running=0, cancelled=before + 4)


def test_a_stream_that_is_closed_by_the_client_frees_its_place(server: Server) -> None:
    server.reaches(running=0, waiting=0)
    before = server.counts()["cancelled"]
    stream = official(server).completions.create(
        model="embedded",
        prompt="x",
        max_tokens=1000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    server.reaches(running=0, cancelled=before + 1)


# --- the embedded model: real weights -------------------------------------------------------

VOCABULARY = load_tokenizer("embedded")


def id_of(token: str) -> int:
    (number,) = VOCABULARY.encode(token)
    return number


def test_greedy_tokens_are_the_likeliest_and_their_logprobs_add_up(embedded: Server) -> None:
    client = official(embedded)
    prompt = "def add(a, b):\n    return"
    greedy = client.completions.create(
        model="embedded", prompt=prompt, temperature=0, max_tokens=12, logprobs=3
    ).choices[0]
    told = greedy.logprobs
    assert told is not None
    assert told.tokens
    assert told.token_logprobs
    assert told.top_logprobs
    for token, logprob, top in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert top[token] == logprob == max(top.values())
    assert "".join(told.tokens) == greedy.text
    # the same tokens as a prompt have the same logprobs
    echoed = client.completions.create(
        model="embedded",
        prompt=[*VOCABULARY.encode(prompt), *map(id_of, told.tokens)],
        max_tokens=0,
        echo=True,
        logprobs=0,
    ).choices[0]
    assert echoed.text == prompt + greedy.text
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    assert echoed.logprobs.token_logprobs[0] is None
    scored = echoed.logprobs.token_logprobs[-len(told.tokens) :]
    assert scored == pytest.approx(told.token_logprobs, abs=1e-3)


def test_a_bias_forces_a_token_and_forbids_another(embedded: Server) -> None:
    client = official(embedded)
    fields: Any = {"model": "embedded", "prompt": "x =", "temperature": 0, "logprobs": 0}
    free = client.completions.create(max_tokens=1, **fields).choices[0]
    forced = client.completions.create(max_tokens=3, logit_bias={"65": 100}, **fields).choices[0]
    assert forced.logprobs is not None
    assert forced.logprobs.tokens is not None
    assert len(set(forced.logprobs.tokens)) == 1
    bias = {str(id_of(free.text)): -100}
    banned = client.completions.create(max_tokens=1, logit_bias=bias, **fields)
    assert banned.choices[0].text != free.text


def test_penalties_make_tokens_rarer(embedded: Server) -> None:
    client = official(embedded)
    fields: Any = {
        "model": "embedded",
        "prompt": "a a a a a a a a",
        "temperature": 0,
        "max_tokens": 40,
        "logprobs": 0,
        "extra_body": {"ignore_eos": True},
    }

    def distinct(**penalties: float) -> int:
        told = client.completions.create(**{**fields, **penalties}).choices[0].logprobs
        assert told is not None
        assert told.tokens is not None
        return len(set(told.tokens))

    assert distinct(frequency_penalty=2, presence_penalty=2) > distinct()


def test_min_p_of_one_leaves_the_likeliest_token_alone(embedded: Server) -> None:
    fields: Any = {"model": "embedded", "prompt": "def add(a", "max_tokens": 12, "seed": 5}
    client = official(embedded)
    greedy = client.completions.create(temperature=0, **fields).choices[0].text
    drawn = client.completions.create(temperature=2, **fields).choices[0].text
    kept = client.completions.create(temperature=2, extra_body={"min_p": 1}, **fields)
    assert kept.choices[0].text == greedy != drawn


def test_neither_stop_tokens_nor_stop_strings_end_an_answer_before_min_tokens(
    embedded: Server,
) -> None:
    client = official(embedded)
    fields: Any = {"model": "embedded", "prompt": "a a a a a", "max_tokens": 12, "temperature": 0}
    free = client.completions.create(logprobs=0, **fields).choices[0]
    assert free.logprobs is not None
    assert free.logprobs.tokens is not None
    first = free.logprobs.tokens[0]

    def used(stop: str | None = None, **extra: Any) -> int:
        answer = client.completions.create(stop=stop, extra_body=extra, **fields)
        assert answer.usage is not None
        return answer.usage.completion_tokens

    stop: Any = {"stop_token_ids": [id_of(first)], "ignore_eos": True}
    assert used(**stop) == 1
    assert used(min_tokens=5, **stop) > 5
    assert used(stop=first, ignore_eos=True) == 1
    assert used(stop=first, ignore_eos=True, min_tokens=5) > 5
    with pytest.raises(openai.BadRequestError, match="must be at most 'max_tokens'") as wrong:
        used(min_tokens=13)
    assert wrong.value.param == "min_tokens"


def test_a_chat_with_the_embedded_model_streams_what_it_answers(embedded: Server) -> None:
    client = official(embedded)
    fields: Any = {
        "model": "embedded",
        "messages": [
            {"role": "system", "content": "You write Python."},
            {"role": "user", "content": [{"type": "text", "text": "Sort a list."}]},
        ],
        "max_completion_tokens": 24,
        "seed": 11,
        "temperature": 0.8,
        "top_p": 0.95,
        "stop": ["\n\n\n"],
        "service_tier": "flex",
    }
    whole = client.chat.completions.create(**fields)
    assert whole.service_tier == "flex"
    content = whole.choices[0].message.content
    assert content
    stream = client.chat.completions.create(stream=True, **fields)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == content
