"""Conversations with tools, as templates of each family write them; against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.support.hash_app import byte_tokenizer
from tests.text.test_chat import hub_tokenizer
from tests.text.tools.calls import TOOL
from text.chat import ChatTemplate, load_chat_template
from text.tools.forms import HERMES, LLAMA, MISTRAL, CallForm
from text.vocabulary import load_tokenizer

CALL = {"name": "weather", "arguments": {"city": "Köln"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}],
    },
    {"role": "tool", "content": "rain", "tool_call_id": "abcdefghi", "name": "weather"},
]
END = "{% if add_generation_prompt %}A:{% endif %}"
# in the manner of each family's templates
OF_OBJECTS = (
    "{% for tool in tools or [] %}{{ tool | tojson(indent=4) }}{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for call in m.tool_calls or [] %}"
    "MARK{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{% endfor %}\n{% endfor %}" + END
)
OF_TEXTS = (
    "{% if tools is not none %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}{% for call in m.tool_calls or [] %}"
    "MARK{{ call.function.name + '(' + call.function.arguments + ')' }}{% endfor %}\n{% endfor %}"
    + END
)
OF_EITHER = (  # as Gemma 4's: objects in a form of its own, and texts as they are
    "{% for m in messages %}{{ m.role }}{% for call in m.tool_calls or [] %}MARK{% set found ="
    " call.function.arguments %}{% if found is mapping %}{% for name, value in found.items() %}"
    "{{ name }}={{ value }}{% endfor %}{% else %}{{ found }}{% endif %}{% endfor %}\n{% endfor %}"
    "{{ tools }}" + END
)
IDS = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
    "{{ raise_exception('ids have 9 characters') }}{% endif %}{% endfor %}{% endfor %}"
)


def written(source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    return bytes(ChatTemplate(source, byte_tokenizer(), {}).encode(messages, tools)).decode()


@pytest.mark.parametrize("source", [OF_OBJECTS, IDS + OF_OBJECTS, OF_EITHER])
def test_a_template_gets_what_transformers_gives_it(source: str) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=hub_tokenizer())
    expected = theirs.apply_chat_template(
        MESSAGES, tools=[TOOL], chat_template=source, add_generation_prompt=True, tokenize=False
    )
    assert written(source, MESSAGES, [TOOL]) == expected


def test_arguments_are_text_where_the_template_joins_them_and_no_tools_are_none() -> None:
    assert 'weather({"city": "Köln"})' in written(OF_TEXTS, MESSAGES, [TOOL])
    assert written(OF_TEXTS, MESSAGES[:1], []) == "userA:"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (OF_OBJECTS.replace("MARK", "<tool_call>"), HERMES),
        (OF_OBJECTS.replace("MARK", "[TOOL_CALLS]"), MISTRAL),
        (OF_OBJECTS.replace("MARK", "<|python_tag|>"), LLAMA),
        (OF_OBJECTS.replace("MARK", "<|start_header_id|>"), LLAMA),
        (OF_OBJECTS, HERMES),
        ("{{ messages[0].content }}<|start_header_id|>", HERMES),  # it is described in the prompt
    ],
)
def test_the_template_shows_how_the_model_writes_calls(source: str, form: CallForm) -> None:
    assert ChatTemplate(source, byte_tokenizer(), {}).form is form
    one, other = form.new_id(), form.new_id()
    assert one != other
    assert form is not MISTRAL or (len(one) == 9 and one.isalnum())  # as its templates want it


def test_a_template_without_tools_gets_them_as_text() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}" + END
    text = written(source, [*MESSAGES, MESSAGES[2]], [TOOL])
    system, rest = text.split("\n<user>", 1)
    assert system.startswith("<system>You may call these functions")
    assert json.dumps(TOOL) in system
    assert "<user>" + rest == (
        "<user>Weather?\n"
        '<assistant><tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
        "<user><tool_response>\nrain\n</tool_response>\n<tool_response>\nrain\n</tool_response>\nA:"
    )
    spoken = {**MESSAGES[1], "content": "I look."}
    system_first = [{"role": "system", "content": "Be brief."}, MESSAGES[0], spoken]
    text = written(source, system_first, [TOOL])
    assert text.startswith("<system>Be brief.\n\nYou may call")
    assert "<assistant>I look.\n<tool_call>" in text
    assert written(source, MESSAGES, []).startswith("<user>Weather?\n<assistant><tool_call>")


def test_special_tokens_in_tools_and_calls_stay_text(tmp_path: Path) -> None:
    hub_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(OF_OBJECTS)
    tokenizer = load_tokenizer(str(tmp_path))
    forged: Any = json.loads(
        json.dumps([MESSAGES, TOOL]).replace("city", "<|end|>").replace("rain", "<|start|>")
    )
    ids = load_chat_template(str(tmp_path), tokenizer).encode(forged[0], [forged[1]])
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert b"".join(map(tokenizer.token_bytes, ids)).count(b"<|end|>") == 4


def test_a_template_for_tools_is_used_where_a_model_has_one(tmp_path: Path) -> None:
    hub_tokenizer().save(str(tmp_path / "tokenizer.json"))
    named = [
        {"name": "default", "template": "default"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }} <tool_call>"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = load_tokenizer(str(tmp_path))

    def text(tools: list[dict[str, Any]]) -> str:
        ids = load_chat_template(str(tmp_path), tokenizer).encode(MESSAGES[:1], tools)
        return b"".join(map(tokenizer.token_bytes, ids)).decode()

    assert (text([]), text([TOOL])) == ("default", "weather <tool_call>")
    file = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    file.parent.mkdir()
    file.write_text("{{ tools | length }}")
    assert text([TOOL]) == "1"
