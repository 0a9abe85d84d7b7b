"""OpenAI's API: what is refused, by name and in OpenAI's shape, and what is taken all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from hypothesis import strategies as st

from api.limits import MOST_STOP_CHARACTERS
from api.openai.fields.shared import MOST_STOPS
from options import OptionError
from serving.config import Config
from tests.api.conftest import serving
from tests.support.openai_calls import (
    CONTEXT,
    PATHS,
    ask,
    chat,
    chunks,
    complete,
    is_error,
)

WRONG: list[tuple[str, object]] = [
    ("n", 0), ("n", 129), ("n", 1.5), ("n", "2"), ("n", True),
    ("stop", ""), ("stop", ["a", ""]), ("stop", 3), ("stop", ["s"] * (MOST_STOPS + 1)),
    ("stop", ["s" * (MOST_STOP_CHARACTERS + 1)]),
    ("temperature", -0.1), ("temperature", 1e7), ("temperature", 1e-9), ("temperature", "1"),
    ("top_p", -0.1), ("top_p", 1.1), ("top_k", -2), ("top_k", 1.0), ("top_k", 2**32),
    ("seed", 2**64), ("seed", 0.5), ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
    ("repetition_penalty", 0), ("repetition_penalty", 1e-46), ("max_tokens", 2**32),
    ("logit_bias", {"a": 1}), ("logit_bias", {"5": 101}),
    ("logit_bias", {"257": 1}), ("logit_bias", [1]), ("stream", 1), ("stream", "yes"),
    ("stream_options", 1), ("stream_options", {"include_usage": True}),
    ("service_tier", "priority"), ("ignore_eos", 1), ("model", 5), ("max_tokens", -1),
    ("max_tokens", 1.5), ("guided_json", 7), ("guided_regex", "(a"), ("guided_choice", []),
    ("guided_choice", "a"), ("guided_grammar", "start: missing"), ("structured_outputs", {}),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}), ("structured_outputs", {"no": 1}),
    ("guided_json", {"type": "strin"}), ("guided_json", "{"), ("min_p", -0.1), ("min_p", 1.5),
    ("min_tokens", -1), ("min_tokens", 1.5), ("min_tokens", CONTEXT), ("stop_token_ids", [-1]),
    ("stop_token_ids", [257]), ("stop_token_ids", 1), ("stop_token_ids", [1] * 257),
    ("allowed_token_ids", [1]), ("bad_words", ["x"]), ("use_beam_search", True), ("mirostat", 2),
    ("typical_p", 0.5), ("continue_final_message", True), ("chat_template", "{{ 1 }}"),
    ("grammar", "start: missing"), ("json_schema", {"type": "strin"}), ("regex", "("), ("ebnf", 1),
    ("include_stop_str_in_output", "no"), ("n_predict", 3), ("truncate_prompt_tokens", -1),
]  # fmt: skip
WRONG_COMPLETION: list[tuple[str, object]] = [
    ("prompt", ""), ("prompt", []), ("prompt", None), ("prompt", [""]), ("prompt", ["a", 1]),
    ("prompt", [-1]), ("prompt", [257]), ("prompt", [[]]), ("prompt", [[1], "a"]), ("prompt", 5),
    ("prompt", [True]), ("best_of", 2), ("logprobs", -1), ("logprobs", 21), ("logprobs", True),
    ("echo", 1), ("suffix", "end"), ("max_tokens", CONTEXT), ("prompt", "x" * CONTEXT),
]  # fmt: skip
WRONG_CHAT: list[tuple[str, object]] = [
    ("messages", []), ("messages", None), ("messages", "x"), ("messages", [{"role": "user"}]),
    ("messages", [{"role": "tool", "content": "x"}]), ("messages", [{"content": "x"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ("messages", [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
    ("max_tokens", 0), ("max_completion_tokens", 0), ("top_logprobs", 2), ("logprobs", 1),
    ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("functions", [{}]),
    ("function_call", {"name": "f"}), ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}), ("response_format", {"type": "regex"}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}),
    ("response_format", {"type": "json_schema", "json_schema": {"strict": True, "schema": {
        "type": "object", "additionalProperties": {"type": "null"}}}}),
    ("audio", {"voice": "a"}),
    ("modalities", ["audio"]), ("prediction", {}), ("prediction", "x"),
    ("prediction", {"type": "content", "content": [{}] * 4097}),
    ("web_search_options", {}), ("verbosity", "none"), ("chat_template_kwargs", "x"),
    ("chat_template_kwargs", {"messages": []}), ("chat_template_kwargs", {"x": "y" * 2**14}),
    ("add_generation_prompt", "no"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [(path, *wrong) for path in PATHS for wrong in WRONG]
    + [("/v1/completions", *wrong) for wrong in WRONG_COMPLETION]
    + [("/v1/chat/completions", *wrong) for wrong in WRONG_CHAT],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_or_not_offered_field_is_named(
    client: FlaskClient, path: str, field: str, value: object, stream: bool
) -> None:
    if field == "stream_options" and stream and isinstance(value, dict):
        return  # it is right there
    answer = ask(client, path, **{"stream": stream, field: value})
    if value == "x" * CONTEXT or (field, value) == ("max_tokens", CONTEXT):
        message = is_error(answer, 400, "prompt")
        assert answer.get_json()["error"]["code"] == "context_length_exceeded"
        assert f"This model's maximum context length is {CONTEXT} tokens. However, " in message
    else:
        message = is_error(answer, 400, field)
        assert f"'{field}'" in message
    assert answer.get_json()["error"]["type"] == "invalid_request_error"
    assert len(message) < 500


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("user", "me"),
        ("metadata", {"a": "b"}),
        ("bad_words", []),
        ("typical_p", 1),
        ("use_beam_search", False),
        ("reasoning_effort", "low"),
        ("verbosity", "low"),
        ("chat_template_kwargs", {"enable_thinking": False}),
    ],
)
def test_options_that_change_nothing_are_accepted(
    client: FlaskClient, field: str, value: object
) -> None:
    assert chat(client, max_tokens=1, **{field: value})["choices"]


def test_an_unknown_field_is_ignored_and_logged_once(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "api.openai.routes"):
        for _ in range(3):
            complete(client, **{"quite\nunknown": 5})
    assert [record.getMessage() for record in caplog.records] == [
        'the field "quite\\nunknown": unknown on /v1 and ignored'
    ]


@pytest.mark.parametrize("path", PATHS)
def test_an_unknown_model_is_a_404(client: FlaskClient, path: str) -> None:
    for answer in (
        ask(client, path, model="gpt-9"),
        ask(client, path, model="gpt-9", stream=True),
        client.get("/v1/models/gpt-9"),
        client.get("/v1/models/org/gpt-9"),
    ):
        assert '"embedded"' in is_error(answer, 404, "model")
        assert answer.get_json()["error"]["code"] == "model_not_found"


def test_the_model_is_listed(client: FlaskClient) -> None:
    (card,) = client.get("/v1/models").get_json()["data"]
    assert client.get(f"/v1/models/{card['id']}").get_json() == card
    assert (card["id"], card["max_model_len"]) == ("embedded", CONTEXT)


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = str(tmp_path_factory.mktemp("renamed"))
    with serving(Config(mode="dynamic", data_dir=folder, served_model_name="a/b,c")) as client:
        yield client


def test_the_model_answers_to_each_of_its_names(renamed: FlaskClient) -> None:
    cards = renamed.get("/v1/models").get_json()["data"]
    assert [card["id"] for card in cards] == ["a/b", "c"]
    for card in cards:
        assert renamed.get(f"/v1/models/{card['id']}").get_json() == card
        assert complete(renamed, model=card["id"])["model"] == "a/b"
    assert renamed.get("/info").get_json()["model_id"] == "a/b"
    assert '"a/b", "c"' in is_error(ask(renamed, model="embedded"), 404, "model")


@pytest.mark.parametrize("placeholder", ["tgi", "dummy"])
def test_the_model_name_of_tgis_clients_is_accepted(client: FlaskClient, placeholder: str) -> None:
    assert chat(client, model=placeholder, max_tokens=1)["model"] == "embedded"
    for part in chunks(client, "/v1/chat/completions", model=placeholder, max_tokens=3):
        (choice,) = part["choices"]
        if placeholder == "tgi":  # whose client requires both in every delta
            assert choice["delta"].keys() >= {"role", "tool_calls"}
    is_error(client.get(f"/v1/models/{placeholder}"), 404, "model")


@pytest.mark.parametrize("wrong", ["", ",", "a,", "a b", "a,,b"])
def test_a_name_that_no_client_could_mean_is_refused_at_start(wrong: str) -> None:
    with pytest.raises(OptionError, match="--served-model-name"):
        Config(mode="dynamic", served_model_name=wrong)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(-9, 9)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = sorted({field for field, _ in WRONG + WRONG_COMPLETION + WRONG_CHAT} - {"messages"})
