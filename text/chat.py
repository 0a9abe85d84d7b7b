"""A conversation as the text that its model was trained to continue.

It uses the checkpoint's own template if there is one, in Jinja's sandbox and with the names that
`transformers` gives templates, and otherwise a plain one. A client's text never becomes a special
token. A template ends within a time and a length, whatever it contains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.names import EMBEDDED, GGUF_SUFFIX, GPT2_NAMES
from seams import RANDOM_PREFIX
from text.tokenizer import Tokenizer, VocabularyError
from text.vocabulary import locate_files, read_metadata

PLAIN = """\
{% for message in messages %}
{{ message.role | capitalize }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}
Assistant:
{%- endif %}
"""
TEMPLATE_FILE, SETTINGS_FILE = "chat_template.jinja", "tokenizer_config.json"
NAMED_TOKENS = {  # as templates name them -> as GGUF files do
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
MOST_CPU_S = 2.0  # for one conversation
LEAST_CHARACTERS = 2**18  # that any conversation may become,
MOST_PER_CHARACTER = 8  # and more where messages are long
_TICK = "_within_limits"


class ConversationError(ValueError):
    """The template does not accept these messages."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Repeating a text is an operation that a loop's limit cannot bound."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise SecurityError(f"operator {operator} is for numbers only")
        if operator == "**" and (abs(left) > 2**16 or abs(right) > 16):
            raise SecurityError("operator ** is for small numbers only")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """`is_plain`: the model has none of its own. Raises VocabularyError for a source that is not a
    template."""

    def __init__(self, source: str, tokenizer: Tokenizer, names: Mapping[str, str]) -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            tree = environment.parse(source)
            loops, macros = tree.find_all(nodes.For), tree.find_all(nodes.Macro)
            for body in [*(loop.body for loop in loops), *(macro.body for macro in macros)]:
                body.insert(0, _tick())
            code = environment.compile(tree)
            self._template = Template.from_code(environment, code, environment.make_globals(None))
        except TemplateError as error:
            raise VocabularyError(f"the model's chat template cannot be read: {error}") from error
        self.is_plain = source == PLAIN
        self._tokenizer = tokenizer
        self._names = names

    def encode(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """`add_generation_prompt`: the text ends with the beginning of the assistant's answer.
        Raises ConversationError, and EncodingError."""
        shielded = [
            {key: self._tokenizer.shield(text) for key, text in message.items()}
            for message in messages
        ]
        try:
            text = self._render(shielded, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # a template may do anything with what it is given
            raise ConversationError(
                f"the model's chat template does not accept these messages: {error}"
            ) from error
        return self._tokenizer.encode_template(text)

    def _render(self, messages: list[dict[str, str]], **switches: bool) -> str:
        given = sum(len(text) for message in messages for text in message.values())
        most = max(LEAST_CHARACTERS, MOST_PER_CHARACTER * given)
        tick = _clock(MOST_CPU_S)
        names = {**self._names, **switches, "messages": messages, _TICK: tick}
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(names):
            tick()
            length += len(piece)
            if length > most:
                raise TemplateError(f"its text has more than {most} characters")
            pieces.append(piece)
        return "".join(pieces)


def _tick() -> nodes.Node:
    """A statement that calls the clock."""
    name = nodes.Name(_TICK, "load", lineno=1)
    return nodes.ExprStmt(nodes.Call(name, [], [], None, None, lineno=1), lineno=1)


def _clock(most_cpu_s: float) -> Callable[[], str]:
    """Raises TemplateError when this thread has computed for so long since now."""
    end = time.thread_time() + most_cpu_s

    def tick() -> str:
        if time.thread_time() > end:
            raise TemplateError(f"it takes more than {most_cpu_s:g} s")
        return ""

    return tick


def load_chat_template(
    model: str, tokenizer: Tokenizer, revision: str | None = None
) -> ChatTemplate:
    """The template of the model that `--model` names. Raises VocabularyError."""
    if model in (EMBEDDED, *GPT2_NAMES) or model.startswith(RANDOM_PREFIX):
        return ChatTemplate(PLAIN, tokenizer, {})
    path = locate_files(model, revision)
    if path.suffix == GGUF_SUFFIX:
        return _from_gguf(path, tokenizer)
    source, settings = template_of(path), _settings(path)
    names = {
        name: _content(settings[name]) for name in NAMED_TOKENS if settings.get(name) is not None
    }
    return ChatTemplate(source, tokenizer, names)


def template_of(folder: Path) -> str:
    """Raises VocabularyError."""
    try:
        declared = _settings(folder).get("chat_template")
        if (file := folder / TEMPLATE_FILE).exists():
            return file.read_text(encoding="utf-8")
        return _default(declared)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise VocabularyError(f"{folder}: the chat template cannot be read: {error}") from error


def _from_gguf(path: Path, tokenizer: Tokenizer) -> ChatTemplate:
    metadata = read_metadata(path)
    names = {}
    for name, key in NAMED_TOKENS.items():
        token = metadata.get(f"tokenizer.ggml.{key}")
        if token is None:
            continue
        if type(token) is not int:
            raise VocabularyError(f"{path}: tokenizer.ggml.{key} is {token!r}; allowed: an id")
        names[name] = tokenizer.token_bytes(token).decode(errors="replace")
    return ChatTemplate(str(metadata.get("tokenizer.chat_template", PLAIN)), tokenizer, names)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS_FILE
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not isinstance(settings, dict):
        raise TypeError(f"{SETTINGS_FILE} is not an object")
    return settings


def _default(declared: Any) -> str:
    """A template, or several with names."""
    if declared is None:
        return PLAIN
    if isinstance(declared, list):
        return str({entry["name"]: entry["template"] for entry in declared}["default"])
    return str(declared)


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
