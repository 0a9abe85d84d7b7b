"""A conversation as the text that its model was trained to continue.

It uses the checkpoint's own template if there is one, and otherwise a plain one. A client's text
never becomes a special token. A template ends within a time and a length, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.fetch import locate
from models.names import EMBEDDED, GGUF_SUFFIX, RANDOM_PREFIX
from models.weights.gguf_header import read_header
from seams import LoadError
from text.reasoning import CLOSING
from text.sandbox import SandboxedTemplate, to_json
from text.tokenizer import EncodingError, Tokenizer
from text.tools import conversation
from text.tools.conversation import Message, Tool
from text.tools.forms import HERMES, form_of
from text.vocabulary import read_names, read_settings

PLAIN = """\
{% for message in messages %}
{{ message.role | capitalize }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}
Assistant:
{%- endif %}
"""
TEMPLATE_FILE = "chat_template.jinja"
TOOL_USE = "tool_use"  # the name of a template for conversations with tools
TOOL_FILE = f"additional_chat_templates/{TOOL_USE}.jinja"
GGUF_KEY = "tokenizer.chat_template"
NAMED_TOKENS = {  # as templates name them -> as GGUF files do
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
RESERVED = "messages", "tools", "documents", "add_generation_prompt"  # set by the other fields
LEAST_CHARACTERS = 2**18  # that any conversation may become,
MOST_PER_CHARACTER = 8  # and more where messages are long


class ChatTemplate:
    """`of_tools`: the template for conversations with tools, where the model has one apart.
    `is_plain`: the model has none of its own. `reserved`: names that clients cannot set. `form`:
    how the model writes calls. `reasons`: it writes reasoning before its answers. `unreadable`: why
    there are no chats; None: there are."""

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        names: Mapping[str, str],
        of_tools: str | None = None,
    ) -> None:
        self.unreadable: str | None = None
        try:
            self._template = self._of_tools = SandboxedTemplate(source)
            if of_tools is not None:
                self._of_tools = SandboxedTemplate(of_tools)
        except Exception as error:  # a template may be anything
            self.unreadable = f"the model's chat template cannot be read: {error}"
            self._template = self._of_tools = SandboxedTemplate(PLAIN)
        self.is_plain = source == PLAIN
        self._tokenizer = tokenizer
        self._names = names
        self.reserved = frozenset((*RESERVED, *names))
        self._knows_tools = "tools" in self._of_tools.variables
        self.form = form_of(of_tools or source) if self._knows_tools else HERMES
        self.reasons = CLOSING in (of_tools or source)
        self._arguments_are_text = self._knows_tools and self._expects_text()

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), **options: Any
    ) -> list[int]:
        """As `text`, in tokens. Raises EncodingError."""
        return self.tokens(self.text(messages, tools, **options))

    def tokens(self, text: str) -> list[int]:
        """Of a `text`; a plain one begins as every prompt does. Raises EncodingError."""
        ids = self._tokenizer.encode_template(text)
        return self._tokenizer.begun(ids) if self.is_plain else ids

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
        names: Mapping[str, Any] | None = None,
    ) -> str:
        """`add_generation_prompt`: it ends with the beginning of the assistant's answer. `names`:
        that the template reads, as a client sets them; none of `reserved`. Raises
        EncodingError."""
        if self.unreadable is not None:
            raise EncodingError(self.unreadable)
        template = self._template
        if tools or any(m["role"] == "tool" or m.get("tool_calls") for m in messages):
            template = self._of_tools
            if not self._knows_tools:
                messages, tools = conversation.as_text(messages, tools), ()
            elif self._arguments_are_text:
                messages = conversation.with_arguments_as_text(messages)
        try:
            return self._render(template, messages, tools, names or {}, add_generation_prompt)
        except Exception as error:  # a template may do anything with what it is given
            raise EncodingError(
                f"the model's chat template does not accept these messages: {error}"
            ) from error

    def _render(
        self,
        template: SandboxedTemplate,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        own: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> str:
        shield = self._tokenizer.shield
        names = {
            **_mapped(own, shield),
            **self._names,
            "add_generation_prompt": add_generation_prompt,
            "messages": _mapped(messages, shield),
            "tools": _mapped(tools, shield) or None,
            "documents": None,  # as `transformers` passes what is left out
        }
        most = max(LEAST_CHARACTERS, MOST_PER_CHARACTER * characters(messages, tools, own))
        return template.render(names, most)

    def _expects_text(self) -> bool:
        """Whether the template expects the arguments of calls as JSON texts and not as objects."""

        def shows(messages: Sequence[Message]) -> bool:
            try:
                text = self._render(self._of_tools, messages, [conversation.EXAMPLE_TOOL], {}, True)
            except Exception:  # as in `encode`
                return False
            return conversation.shows_arguments(text)

        example = conversation.EXAMPLE
        return not shows(example) and shows(conversation.with_arguments_as_text(example))


def characters(messages: Sequence[Message], tools: Sequence[Tool], names: Mapping[str, Any]) -> int:
    """Of a conversation. Raises EncodingError."""
    try:
        return len(to_json([messages, tools, names]))
    except RecursionError as error:
        raise EncodingError("they are nested too deeply") from error


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value


def load_chat_template(
    model: str, tokenizer: Tokenizer, revision: str | None = None
) -> ChatTemplate:
    """The template of the model that `--model` names. Raises LoadError."""
    if model == EMBEDDED or model.startswith(RANDOM_PREFIX):
        return ChatTemplate(PLAIN, tokenizer, {})
    path = locate(model, revision)
    if path.suffix == GGUF_SUFFIX:
        return _from_gguf(path, tokenizer)
    names = read_names(path, tokenizer.special_ids)
    try:
        templates = templates_of(path)
    except LoadError as error:
        template = ChatTemplate(PLAIN, tokenizer, names)
        template.unreadable = str(error)
        return template
    return ChatTemplate(templates["default"], tokenizer, names, templates.get(TOOL_USE))


def templates_of(folder: Path) -> dict[str, str]:
    """By name; there is always a default. Raises LoadError."""
    files = {"default": TEMPLATE_FILE, TOOL_USE: TOOL_FILE}
    try:
        declared = read_settings(folder).get("chat_template")
        templates = {"default": PLAIN if declared is None else str(declared)}
        if isinstance(declared, list):  # several, with names
            templates = {entry["name"]: str(entry["template"]) for entry in declared}
        for name, file in files.items():
            if (path := folder / file).exists():
                templates[name] = path.read_text(encoding="utf-8")
        return {"default": templates.pop("default"), **templates}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LoadError(f"{folder}: the chat template cannot be read: {error}") from error


def _from_gguf(path: Path, tokenizer: Tokenizer) -> ChatTemplate:
    metadata = read_header(path).metadata
    names = {}
    for name, key in NAMED_TOKENS.items():
        token = metadata.get(f"tokenizer.ggml.{key}")
        if token is None:
            continue
        if type(token) is not int:
            raise LoadError(f"{path}: tokenizer.ggml.{key} is {token!r}; allowed: an id")
        names[name] = tokenizer.token_bytes(token).decode(errors="replace")
    source = str(metadata.get(GGUF_KEY, PLAIN))
    of_tools = metadata.get(f"{GGUF_KEY}.{TOOL_USE}")
    return ChatTemplate(source, tokenizer, names, None if of_tools is None else str(of_tools))
