"""What models write before they answer, in chats, in `/v1/responses` and in TGI's API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from flask.testing import FlaskClient

from serving.config import Config
from tests.api.conftest import serving
from tests.api.openai.test_tools import CALL, PARIS, TOOLS, accumulated, calls_of
from tests.api.responses.test_responses import events, respond
from tests.support.openai_calls import Json, chat, chunks
from tests.support.scripted_model import ScriptedModel

# the parts of Qwen3's template that concern reasoning
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if tools %}<tool_call>{% endif %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
THOUGHT = "Is it <b>?\n\nIt is."
BEFORE = f"<think>\n{THOUGHT}\n</think>\n\n"


@pytest.fixture(scope="module")
def model() -> ScriptedModel:
    return ScriptedModel()


def reasoning(folder: Path, kind: Literal["apart", "text"] = "apart") -> Config:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Config(mode="dynamic", model=str(folder), served_model_name="embedded", reasoning=kind)


@pytest.fixture(scope="module")
def thinking(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlaskClient]:
    folder = tmp_path_factory.mktemp("thinking")
    with serving(reasoning(folder), lambda config: model) as client:
        yield client


@pytest.mark.parametrize(
    ("answer", "content", "calls"), [("Fine.", "Fine.", []), (CALL, None, [("weather", PARIS)])]
)
def test_reasoning_is_apart_from_the_answer_streamed_or_not(
    thinking: FlaskClient,
    model: ScriptedModel,
    answer: str,
    content: str | None,
    calls: list[tuple[str, str]],
) -> None:
    model.answer = BEFORE + answer
    whole = chat(thinking, tools=TOOLS, logprobs=True)
    (choice,) = whole["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, content)
    assert calls_of(message) == calls
    tokens = bytes(byte for token in choice["logprobs"]["content"] for byte in token["bytes"])
    assert tokens.decode().strip() == answer
    details = whole["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(BEFORE.rstrip())}
    deltas = [
        c["choices"][0]["delta"] for c in chunks(thinking, "/v1/chat/completions", tools=TOOLS)
    ]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
    assert accumulated(deltas)["content"] == (content or "")
    first = next(
        i for i, delta in enumerate(deltas) if delta.get("content") or "tool_calls" in delta
    )
    assert all("reasoning_content" not in delta for delta in deltas[first:])


def test_an_answer_without_reasoning_has_none(thinking: FlaskClient, model: ScriptedModel) -> None:
    model.answer = "<b>Fine.</b>"
    told = chat(thinking)
    assert told["choices"][0]["message"] == {
        "role": "assistant", "content": "<b>Fine.</b>", "refusal": None,
    }  # fmt: skip
    model.answer = BEFORE + "Fine."
    told = chat(thinking, chat_template_kwargs={"enable_thinking": False})
    assert told["choices"][0]["message"]["content"] == BEFORE + "Fine.", "the prompt has closed it"


def test_a_response_has_an_item_of_reasoning_which_may_be_sent_back(
    thinking: FlaskClient, model: ScriptedModel
) -> None:
    model.answer = BEFORE + CALL
    whole = respond(thinking, tools=[{"type": "function", **tool["function"]} for tool in TOOLS])
    assert [item["type"] for item in whole["output"]] == ["reasoning", "function_call"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    model.answer = BEFORE + "Fine."
    parts = events(thinking)
    last = parts[-1]["response"]
    assert [item["type"] for item in last["output"]] == ["reasoning", "message"]
    details = last["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": len(BEFORE.rstrip())}
    own = [event for event in parts if event.get("output_index") == 0]
    kinds = [event["type"].removeprefix("response.") for event in own]
    assert kinds[:2] == ["output_item.added", "content_part.added"]
    assert kinds[-3:] == ["reasoning_text.done", "content_part.done", "output_item.done"]
    assert set(kinds[2:-3]) == {"reasoning_text.delta"}
    assert "".join(event["delta"] for event in own[2:-3]) == own[-3]["text"] == THOUGHT
    assert own[-1]["item"] == last["output"][0]

    def counted(items: list[Json]) -> int:
        user = {"role": "user", "content": "x"}
        tokens: int = respond(thinking, input=[user, *items, user])["usage"]["input_tokens"]
        return tokens

    sent = last["output"]
    assert counted(sent) - counted(sent[1:]) == len(BEFORE)


def test_a_constraint_holds_behind_the_reasoning(
    thinking: FlaskClient, model: ScriptedModel
) -> None:
    """Its grammar is compiled; that it leaves the reasoning free is shown in tests/text."""
    model.answer = BEFORE + "true"
    told = chat(thinking, json_schema={"type": "boolean"}, max_tokens=200)
    assert told["choices"][0]["message"]["content"] == "true"


def test_where_it_is_asked_for_the_text_stays_as_it_is(
    model: ScriptedModel, tmp_path: Path, thinking: FlaskClient
) -> None:
    other = ScriptedModel()
    with serving(reasoning(tmp_path, "text"), lambda config: other) as client:
        for answer, calls in (("Fine.", []), (CALL, [("weather", PARIS)])):
            model.answer = other.answer = BEFORE + answer
            message = chat(client, tools=TOOLS)["choices"][0]["message"]
            assert "reasoning_content" not in message
            assert message["content"].strip() == (BEFORE if calls else BEFORE + answer).strip()
            assert calls_of(message) == calls
    parameters = {"max_new_tokens": 200}
    told = thinking.post("/generate", json={"inputs": "x", "parameters": parameters}).get_json()
    assert told["generated_text"] == model.answer, "in TGI's API, too"
