"""Texts as tokens, and back: TGI's `/tokenize` and `/chat_tokenize`, vLLM's `/tokenize` and
`/detokenize`. The two kinds of `/tokenize` are distinguished by their fields: TGI's has
`inputs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flask import Response, g, request
from msgspec import Raw
from msgspec.json import encode
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from api.http.body import of_schema, read_object
from api.limits import CountOrZero, No
from api.openai.errors import OpenAIError
from api.openai.fields.messages import Messages, TemplateNames
from api.openai.fields.schemas import ChatRequest
from api.openai.fields.tools import Tools, offer_of
from api.openai.generation import Generations
from api.openapi import BODY, Answer, documented, respond
from api.service import Service
from api.tgi.answers import TgiError, tgi_errors
from api.tgi.schemas import GenerateRequest, parse


class Piece(TypedDict):
    """A token with the characters that it covers, `start` to `stop` of the text: none where the
    token is no part of it."""

    id: int
    text: str
    start: int
    stop: int


class ChatPieces(TypedDict):
    tokenize_response: list[Piece]
    templated_text: str


class _OfModel(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str | None = Field(None, description="a string, see /v1/models")


class DetokenizeRequest(_OfModel):
    tokens: list[CountOrZero] = Field(fail_fast=True, description="an array of token ids")


class _TokenizeRequest(_OfModel):
    add_special_tokens: bool | None = Field(
        None, description="false leaves out the token that begins every prompt, if there is one"
    )
    return_token_strs: bool | None = Field(None, description="true or false")


class TokenizeText(_TokenizeRequest):
    prompt: str = Field(description="a string")


class TokenizeChat(_TokenizeRequest):
    messages: Messages
    tools: Tools = None
    add_generation_prompt: bool | None = Field(None, description="true or false")
    chat_template_kwargs: TemplateNames = None
    continue_final_message: No | None = Field(None, description="left out: it is not supported")


class Tokens(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Prompt(Answer):
    prompt: str


class TokenCalls:
    """The handlers. Raises ApiError."""

    def __init__(self, service: Service, generations: Generations) -> None:
        self._service, self._generations = service, generations
        self._tokenizer, self._most_bytes = service.tokenizer, service.config.max_body_bytes

    @documented(
        TgiError | OpenAIError,
        *(400, 404, 422, *BODY, 424, 500, 503),
        body=GenerateRequest | TokenizeText | TokenizeChat,
        whole=list[Piece] | Tokens,
    )
    def tokenize(self) -> Response:
        data = read_object(request, self._most_bytes)
        if "inputs" not in data and ("prompt" in data or "messages" in data):
            g.openai = True  # of errors from here on
            return self._tokens(data)
        text = parse(data, GenerateRequest).inputs
        (ids,) = self._service.encode("inputs", [text], fit=False)
        with self._service.turns.of(len(text)):
            return _written(_listed(pieces_of(ids, list(self._tokenizer.prompt_bytes(ids)))))

    def _tokens(self, data: dict[str, Any]) -> Response:
        service, tokenizer = self._service, self._tokenizer
        asked: _TokenizeRequest
        if "messages" in data:
            asked = chat = of_schema(data, TokenizeChat)
            ids = self._generations.conversation_ids(
                chat.messages,
                offer_of([tool.function for tool in chat.tools or ()], None),
                add_generation_prompt=chat.add_generation_prompt is not False,
                names=chat.chat_template_kwargs,
                fit=False,
            )
        else:
            asked = text = of_schema(data, TokenizeText)
            (ids,) = service.encode("prompt", [text.prompt], fit=False)
            if text.add_special_tokens is False and tokenizer.bos_id is not None:
                ids = ids[1:]
        service.require_served(asked.model)
        service.require_ready()
        with service.turns.of(len(ids)):
            strings = [tokenizer.token_bytes(token).decode(errors="replace") for token in ids]
            named = strings if asked.return_token_strs else None
            return _written(
                Tokens(count=len(ids), max_model_len=service.context, tokens=ids, token_strs=named)
            )

    @documented(
        TgiError | OpenAIError, 400, 404, *BODY, 424, 500, body=DetokenizeRequest, whole=Prompt
    )
    def detokenize(self) -> Response:
        asked = of_schema(read_object(request, self._most_bytes), DetokenizeRequest)
        self._service.require_served(asked.model)
        self._service.require_tokens(asked.tokens, "tokens")
        with self._service.turns.of(len(asked.tokens)):
            text = b"".join(self._tokenizer.prompt_bytes(asked.tokens)).decode(errors="replace")
        return respond(Prompt(prompt=text))

    @tgi_errors(404, 422, *BODY, body=ChatRequest, whole=ChatPieces)
    def chat_tokenize(self) -> Response:
        asked = of_schema(read_object(request, self._most_bytes), ChatRequest)
        self._service.require_served(asked.model)
        ids = self._generations.conversation_ids(
            asked.messages, asked.offer, names=asked.template_names, fit=False
        )
        with self._service.turns.of(len(ids)):
            pieces = list(map(self._tokenizer.token_bytes, ids))
            text = b"".join(pieces).decode(errors="replace")
            listed = _listed(pieces_of(ids, pieces))
            return _written({"tokenize_response": listed, "templated_text": text})


def _listed(pieces: Iterable[Piece]) -> Raw:
    """Written one by one: a call that writes all of them holds the interpreter's lock."""
    return Raw(b"[" + b",".join(map(encode, pieces)) + b"]")


def _written(body: object) -> Response:
    return Response(encode(body), mimetype="application/json")


def pieces_of(ids: Sequence[int], pieces: Sequence[bytes]) -> Iterator[Piece]:
    """Tokens with the characters they cover; one that holds a part of a character covers it."""
    text = b"".join(pieces).decode(errors="replace")
    of_byte = [i for i, character in enumerate(text) for _ in character.encode()]
    begin = 0
    for token, piece in zip(ids, pieces, strict=True):
        start = stop = of_byte[begin] if begin < len(of_byte) else len(text)
        if piece:
            stop = of_byte[begin + len(piece) - 1] + 1
        yield {"id": token, "text": text[start:stop], "start": start, "stop": stop}
        begin += len(piece)
