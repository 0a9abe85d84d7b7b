"""A conversation as the text that its model was trained to continue.

It uses the checkpoint's own template if there is one, in Jinja's sandbox and with the names that
`transformers` gives templates, and otherwise a plain one. A client's text never becomes a special
token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.names import local_path
from text.tokenizer import Tokenizer, VocabularyError

PLAIN = """\
{% for message in messages %}
{{ message.role | capitalize }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}
Assistant:
{%- endif %}
"""
TEMPLATE_FILE, SETTINGS_FILE = "chat_template.jinja", "tokenizer_config.json"


class ConversationError(ValueError):
    """The template does not accept these messages."""


class ChatTemplate:
    """Raises VocabularyError for a source that is not a template."""

    def __init__(self, source: str, tokenizer: Tokenizer, names: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise VocabularyError(f"the model's chat template cannot be read: {error}") from error
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
            text = self._template.render(
                messages=shielded, add_generation_prompt=add_generation_prompt, **self._names
            )
        except Exception as error:  # a template may do anything with what it is given
            raise ConversationError(
                f"the model's chat template does not accept these messages: {error}"
            ) from error
        return self._tokenizer.encode_template(text)


def load_chat_template(model: str, tokenizer: Tokenizer) -> ChatTemplate:
    """The template of the model that `--model` names. Raises VocabularyError."""
    folder = local_path(model)
    if folder is None:
        return ChatTemplate(PLAIN, tokenizer, {})
    try:
        settings = _settings(folder)
        if (path := folder / TEMPLATE_FILE).exists():
            source = path.read_text(encoding="utf-8")
        else:
            source = _default(settings.get("chat_template"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise VocabularyError(f"{folder}: the chat template cannot be read: {error}") from error
    names = {
        name: _content(settings[name])
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if settings.get(name) is not None
    }
    return ChatTemplate(source, tokenizer, names)


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
