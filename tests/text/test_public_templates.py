"""Public chat templates, as a package of the Python registry carries them, render as `transformers`
renders them."""

from __future__ import annotations

import contextlib
import sys
import tarfile
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tests.models.test_published import CHAT
from tests.server.apis.test_clients import made
from tests.support.hash_app import byte_tokenizer
from tests.text.tools.test_conversation import MESSAGES, TOOL
from text.chat import ChatTemplate
from text.tokenizer import EncodingError
from text.tools.conversation import with_arguments_as_text

PACKAGE = "llama-cpp-python==0.3.36"  # its source has llama.cpp's collection
FOLDER = "/models/templates/"
TEMPLATES = 70
NAMES: Any = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
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
CONVERSATIONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]], set[str]]] = [
    (CHAT, [], set()),
    ([{"role": "system", "content": "Be brief."}, MESSAGES[0]], [], set()),
    (MESSAGES[:1], [TOOL], WITHOUT_TOOLS | WITHOUT_SYSTEM),
    (MESSAGES, [TOOL], WITHOUT_TOOLS),
]


@pytest.mark.long
def test_public_templates_render_as_transformers_renders_them() -> None:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command += ["--no-deps", "--no-binary", "llama-cpp-python", PACKAGE]
    (archive,) = made("templates", [PACKAGE], [command]).glob("*.tar.gz")
    sources = {}
    with tarfile.open(archive) as files:
        for member in files:
            _, inside, name = member.name.partition(FOLDER)
            if inside and name.endswith(".jinja") and (file := files.extractfile(member)):
                sources[name.removesuffix(".jinja")] = file.read().decode()
    assert len(sources) == TEMPLATES
    for messages, tools, others in CONVERSATIONS:
        different = set()
        for name, source in sources.items():
            ours: str | None = None  # it is refused
            theirs: str | None = None
            with contextlib.suppress(EncodingError):
                ours = ChatTemplate(source, byte_tokenizer(), NAMES).text(messages, tools)
            for asked in (with_arguments_as_text(messages), messages):
                with contextlib.suppress(Exception):  # a template may do anything
                    rendered: Any = render_jinja_template(
                        [asked],  # type: ignore[list-item]
                        tools=tools or None,  # type: ignore[arg-type]
                        chat_template=source, add_generation_prompt=True, **NAMES,
                    )  # fmt: skip
                    theirs = str(rendered[0][0])
            if ours != theirs:
                different.add(name)
        assert different == others
