"""What models write before they answer, in chats, in `/v1/responses` and in TGI's API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from serving.config import Config
from tests.api.conftest import Says, saying
from tests.api.openai.test_tools import CALL, PARIS, TOOLS
from tests.api.responses.test_responses import both as responded
from tests.api.responses.test_responses import events, respond
from tests.support.dialects import TGI, ask
from tests.support.openai_calls import CHAT, Json, both, calls_of, chat, chunks

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


def reasoning(folder: Path, kind: Literal["apart", "text"] = "apart") -> Config:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Config(mode="dynamic", model=str(folder), served_model_name="embedded", reasoning=kind)


@pytest.fixture(scope="module")
def thinks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Says]:
    with saying(reasoning(tmp_path_factory.mktemp("thinks"))) as says:
        yield says


@pytest.mark.parametrize(
    ("answer", "content", "calls"), [("Fine.", "Fine.", []), (CALL, None, [("weather", PARIS)])]
)
def test_reasoning_is_apart_from_the_answer_streamed_or_not(
    thinks: Says,
    answer: str,
    content: str | None,
    calls: list[tuple[str, str]],
) -> None:
    thinking = thinks(BEFORE + answer)
    whole = both(thinking, CHAT, tools=TOOLS, logprobs=True, seed=1)
    (choice,) = whole["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, content)
    assert calls_of(message) == calls
    tokens = bytes(byte for token in choice["logprobs"]["content"] for byte in token["bytes"])
    assert tokens.decode().strip() == answer
    details = whole["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(BEFORE.rstrip())}
    deltas = [part["choices"][0]["delta"] for part in chunks(thinking, CHAT, tools=TOOLS)]
    kinds = ["reasoning_content" in delta for delta in deltas if delta.get("role") is None]
    assert kinds == sorted(kinds, reverse=True), "all of it comes first"


def test_a_response_has_an_item_of_reasoning_which_may_be_sent_back(thinks: Says) -> None:
    thinking = thinks(BEFORE + CALL)
    whole = respond(thinking, tools=[{"type": "function", **tool["function"]} for tool in TOOLS])
    assert [item["type"] for item in whole["output"]] == ["reasoning", "function_call"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    last = responded(thinks(BEFORE + "Fine."), seed=1)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message"]
    details = last["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": len(BEFORE.rstrip())}
    parts = [e for e in events(thinking, seed=1) if e.get("output_index") == 0]
    kinds = [event["type"].removeprefix("response.") for event in parts]
    assert kinds[:2] == ["output_item.added", "content_part.added"]
    assert kinds[-3:] == ["reasoning_text.done", "content_part.done", "output_item.done"]
    assert set(kinds[2:-3]) == {"reasoning_text.delta"}

    def counted(items: list[Json]) -> int:
        user = {"role": "user", "content": "x"}
        tokens: int = respond(thinking, input=[user, *items, user])["usage"]["input_tokens"]
        return tokens

    sent = last["output"]
    assert counted(sent) - counted(sent[1:]) == len(BEFORE)


def test_where_it_is_asked_for_the_text_stays_as_it_is(thinks: Says, tmp_path: Path) -> None:
    with saying(reasoning(tmp_path, "text")) as says:
        for answer, calls in (("Fine.", []), (CALL, [("weather", PARIS)])):
            message = chat(says(BEFORE + answer), tools=TOOLS)["choices"][0]["message"]
            assert "reasoning_content" not in message
            assert message["content"].strip() == (BEFORE if calls else BEFORE + answer).strip()
            assert calls_of(message) == calls
    told = chat(thinks(BEFORE + "Fine."), chat_template_kwargs={"enable_thinking": False})
    assert told["choices"][0]["message"]["content"] == BEFORE + "Fine.", "the prompt has closed it"
    told = ask(thinks(BEFORE + CALL), TGI, tokens=200).get_json()
    assert told["generated_text"] == BEFORE + CALL, "in TGI's API, too"
