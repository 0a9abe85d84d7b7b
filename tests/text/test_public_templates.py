"""Public chat templates, as a package of the Python registry carries them, render as `transformers`
renders them."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tests.server.apis.test_clients import made
from tests.support.hash_app import byte_tokenizer
from tests.text.tools.test_conversation import MESSAGES, TOOL
from text.chat import ChatTemplate, ConversationError
from text.tools.conversation import with_arguments_as_text

PACKAGE = "llama-cpp-python==0.3.36"  # its source has llama.cpp's collection
FOLDER = "/models/templates/"
TEMPLATES = 70
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
Messages = list[dict[str, Any]]
CONVERSATIONS: Mapping[str, tuple[Messages, list[dict[str, Any]]]] = {
    "turns": (
        [
            {"role": "user", "content": " the  first\nquestion "},
            {"role": "assistant", "content": "<think>hm</think>\nthe answer"},
            {"role": "user", "content": "and then?"},
        ],
        [],
    ),
    "system": ([{"role": "system", "content": "Be brief."}, MESSAGES[0]], []),
    "tools": (MESSAGES[:1], [TOOL]),
    "calls": (MESSAGES, [TOOL]),
}
# Without a word of tools in them, they get tools as text; `transformers` leaves tools out.
WITHOUT_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B",  # reads them under other names
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
WITHOUT_SYSTEM = {"google-gemma-2-2b-it"}  # it refuses the message that describes the tools


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    """Name -> source."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command += ["--no-deps", "--no-binary", "llama-cpp-python", PACKAGE]
    (archive,) = made("templates", [PACKAGE], [command]).glob("*.tar.gz")
    found = {}
    with tarfile.open(archive) as files:
        for member in files:
            _, inside, name = member.name.partition(FOLDER)
            if inside and name.endswith(".jinja") and (file := files.extractfile(member)):
                found[name.removesuffix(".jinja")] = file.read().decode()
    return found


def of_transformers(source: str, messages: Messages, tools: list[dict[str, Any]]) -> str | None:
    """None: it refuses them, with arguments as objects and as texts."""
    names: dict[str, Any] = dict(NAMES)
    for asked in (messages, with_arguments_as_text(messages)):
        try:
            rendered: Any = render_jinja_template(
                [asked],  # type: ignore[list-item]
                tools=tools or None,  # type: ignore[arg-type]
                chat_template=source,
                add_generation_prompt=True,
                **names,
            )
        except Exception:  # a template may do anything
            continue
        return str(rendered[0][0])
    return None


def of_ours(source: str, messages: Messages, tools: list[dict[str, Any]]) -> str | None:
    try:
        return ChatTemplate(source, byte_tokenizer(), NAMES).text(messages, tools)
    except ConversationError:
        return None


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("turns", set()),
        ("system", set()),
        ("tools", WITHOUT_TOOLS | WITHOUT_SYSTEM),
        ("calls", WITHOUT_TOOLS),
    ],
)
def test_public_templates_render_as_transformers_renders_them(
    kind: str, others: set[str], templates: dict[str, str]
) -> None:
    assert len(templates) == TEMPLATES
    messages, tools = CONVERSATIONS[kind]
    different = {
        name
        for name, source in templates.items()
        if of_ours(source, messages, tools) != of_transformers(source, messages, tools)
    }
    assert different == others
