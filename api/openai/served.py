"""The served model, as calls refer to it: by name, in its tokens, with its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.http.errors import ApiError, show
from api.openai.fields.messages import Message, for_template
from api.openai.offer import Offer
from api.service import Service
from models.names import GGUF_SUFFIX, local_path
from serving.config import Config
from text.chat import ChatTemplate, ConversationError, characters
from text.reasoning import Place, place_of
from text.tokenizer import EncodingError
from text.tools.forms import CallForm

PLACEHOLDERS = ("tgi", "dummy")  # the models that TGI's clients name where it has only one
MARK_TOKENS = 16  # more than a mark and the blanks behind it have


def served_names(config: Config) -> list[str]:
    """The model's names for clients: `--served-model-name`, or else `--model` (of a path, its
    last part without .gguf). Responses carry the first."""
    if config.served_model_name is not None:
        return config.served_model_name.split(",")
    path = local_path(config.model)
    return [config.model if path is None else path.name.removesuffix(GGUF_SUFFIX)]


class ServedModel:
    """Raises ApiError for what the model does not have."""

    def __init__(self, service: Service, template: ChatTemplate) -> None:
        self.names = served_names(service.config)
        self.name = self.names[0]
        self._service = service
        self._template = template

    @property
    def call_form(self) -> CallForm:
        return self._template.form

    @property
    def context(self) -> int:
        """Of a model that is loaded."""
        assert self._service.manager.model is not None
        return self._service.manager.model.context

    def reasoning(self, prompt: Sequence[int]) -> Place:
        """Where that of an answer to a conversation is, if the model's family reasons."""
        if not self._template.reasons:
            return "none"
        end = b"".join(map(self._service.tokenizer.token_bytes, prompt[-MARK_TOKENS:]))
        return place_of(end.decode(errors="replace"))

    def require_named(self, name: str) -> None:
        if name not in self.names:
            raise ApiError(
                404,
                f"the model {show(name)} is not served here; allowed: "
                + ", ".join(map(show, self.names)),
                param="model",
                code="model_not_found",
            )

    def require_served(self, name: str | None) -> None:
        """As `require_named`, for a request, which need not name a model."""
        if name is not None and name not in PLACEHOLDERS:
            self.require_named(name)

    def require_tokens(self, tokens: Sequence[int], field: str) -> None:
        vocab_size = self._service.tokenizer.vocab_size
        if tokens and (token := max(tokens)) >= vocab_size:
            raise ApiError(
                400,
                f"field '{field}': there is no token {token}; allowed: 0 to {vocab_size - 1}",
                param=field,
            )

    def prompts_ids(self, prompts: list[str] | list[list[int]]) -> list[list[int]]:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if texts:
            return self._service.encode("prompt", texts)
        ids = [prompt for prompt in prompts if isinstance(prompt, list)]
        for prompt in ids:
            self.require_tokens(prompt, "prompt")
        return ids

    def expected_ids(self, text: str | None) -> list[int]:
        """Of the answer that a client expects, as far as one can be."""
        tokenizer = self._service.tokenizer
        kept = tokenizer.head(text or "", self.context)
        try:
            with self._service.turns.of(len(kept)):
                return tokenizer.encode(kept)[: self.context]
        except EncodingError as error:
            raise ApiError(400, f"field 'prediction': {error}", param="prediction") from error

    def conversation_ids(
        self,
        messages: Sequence[Message],
        offer: Offer | None = None,
        *,
        add_generation_prompt: bool = True,
        names: Mapping[str, Any] | None = None,
        fit: bool = True,
    ) -> list[int]:
        """As the model's chat template writes it. `names`: that it also gets. `fit`: it must fit
        into the context."""
        if reserved := (names or {}).keys() & self._template.reserved:
            raise ApiError(
                400,
                f"field 'chat_template_kwargs': {show(min(reserved))} is not the client's to set",
                param="chat_template_kwargs",
            )
        service, told = self._service, for_template(messages)
        tools = [] if offer is None else offer.for_template()
        try:
            with service.turns.of(characters(told, tools, names or {})):
                text = self._template.text(
                    told, tools, add_generation_prompt=add_generation_prompt, names=names
                )
                if fit:
                    service.require_fit("messages", text)
                return self._template.tokens(text)
        except (ConversationError, EncodingError) as error:
            raise ApiError(400, str(error), param="messages") from error
