"""Reads what the router needs from a request's body: model, service class, the beginning of its
prompt, the limit of its output. No I/O.

The body is passed on byte for byte. The prompt is skipped, not decoded: this runs on the event loop
and delays all other requests (2.5 ms per MiB of token ids; decoding them would take 26 ms).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from router.rules.responses import PATH as RESPONSES

# The beginnings of a prompt that are told apart: two in each power of two.
PREFIX_BYTES = tuple(256 * n * 2**i // 2 for i in range(9) for n in (2, 3))

_NONE = msgspec.Raw(b"null")
_FALSE = msgspec.Raw(b"false")
_FLEX, _DEFERRED = msgspec.Raw(b'"flex"'), msgspec.Raw(b'"deferred"')


class _Fields(msgspec.Struct):
    """The fields that are read from a body. `Raw` fields stay bytes."""

    model: str | None = None
    service_tier: msgspec.Raw = _NONE
    service_class: msgspec.Raw = msgspec.field(default=_NONE, name="class")
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    inputs: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    previous_response_id: msgspec.Raw = _NONE
    store: msgspec.Raw = _NONE
    max_completion_tokens: msgspec.Raw = _NONE
    max_output_tokens: msgspec.Raw = _NONE
    max_tokens: msgspec.Raw = _NONE
    parameters: msgspec.Raw = _NONE
    n: msgspec.Raw = _NONE
    prompt_cache_key: msgspec.Raw = _NONE
    user: msgspec.Raw = _NONE
    priority: msgspec.Raw = _NONE


_MAX_NEW_TOKENS = re.compile(rb'"max_new_tokens"\s*:\s*(\d{1,9})\b')  # TGI's
_COUNT = re.compile(rb"\d{1,9}")
_PRIORITY = re.compile(rb"[+-]?\d{1,10}")
# These change nothing on a server: completions, embeddings, tokens. So do responses that are not
# stored.
_CHANGES_NOTHING = re.compile(
    r"/v1/((engines/.+/|chat/)?completions|embeddings|responses/input_tokens)"
    r"|/|/inference|/generate|/generate_stream"
)
_DECODER = msgspec.json.Decoder(_Fields)


@dataclass(frozen=True, slots=True)
class RequestBody:
    """`model`: None if the request names none. `prompt`: the JSON of the conversation or prompt,
    unchanged. `in_tgis_field`: it is, as far as there is one. `previous`: the id of the stored
    response that it continues; "" for none. `stored`: a server keeps the response, if it can.
    `max_tokens`: of all choices together; None if it sets no limit. `session`: what it shares with
    other requests of a conversation or user, as JSON; empty if it says nothing. `user`: the same.
    `priority`: None if it names none."""

    model: str | None
    deferred: bool
    prompt: memoryview
    in_tgis_field: bool
    previous: str = ""
    stored: bool = True
    max_tokens: int | None = None
    session: bytes = b""
    user: str = ""
    priority: int | None = None

    def is_repeatable(self, path: str) -> bool:
        """Whether it may be sent to a second server after a first one may have acted on it."""
        if path == RESPONSES:
            return not self.stored
        return _CHANGES_NOTHING.fullmatch(path) is not None


def parse_body(body: bytes | bytearray) -> RequestBody:
    """Reads a request body.

    Raises ValueError, which says what is wrong, if the body is not a JSON object or the model is
    not a string."""
    try:
        fields = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise ValueError("'model' must be a string.") from None
        raise ValueError("The body must be a JSON object.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The body is not valid JSON: {error}.") from None
    deferred = fields.service_tier == _FLEX or fields.service_class == _DEFERRED
    given = (fields.messages, fields.prompt, fields.inputs, fields.input)
    prompt = max([memoryview(raw) for raw in given], key=len)
    previous = bytes(fields.previous_response_id).decode()
    previous = previous.strip('"') if previous.startswith('"') else ""
    in_tgis_field = fields.inputs != _NONE or fields.messages == fields.prompt == _NONE
    stored = fields.store != _FALSE
    keys = (fields.prompt_cache_key, fields.user)
    return RequestBody(
        fields.model or None,
        deferred,
        prompt,
        in_tgis_field,
        previous,
        stored,
        _max_tokens(fields),
        next((bytes(key) for key in keys if key != _NONE), b""),
        bytes(fields.user).decode(errors="replace") if fields.user != _NONE else "",
        priority_in(bytes(fields.priority)),
    )


def priority_in(text: bytes) -> int | None:
    """None if it is no number that a server accepts."""
    return int(text) if _PRIORITY.fullmatch(text) else None


def renamed(body: bytes | bytearray, model: str) -> bytearray:
    """The body of a request that names a model, with another one; all else stays as it is."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if "model" in fields:
        fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return bytearray(msgspec.json.encode(fields))


def _max_tokens(fields: _Fields) -> int | None:
    limits = (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens)
    found = [_COUNT.fullmatch(limit) for limit in limits]
    found.append(_MAX_NEW_TOKENS.search(fields.parameters))
    limit = next((match[match.lastindex or 0] for match in found if match), None)
    choices = _COUNT.fullmatch(fields.n)
    return None if limit is None else int(limit) * (int(choices[0]) if choices else 1)


def prefixes(session: bytes, prompt: memoryview) -> Sequence[int]:
    """A hash of the session, if there is one, then one of each beginning of the prompt as long as
    `PREFIX_BYTES` says. They are the same in every process."""
    hashed, found = hashlib.blake2b(digest_size=8), []
    if session:
        found.append(_number(hashlib.blake2b(session, digest_size=8, key=b"session")))
    for start, end in pairwise((0, *PREFIX_BYTES)):
        if end > len(prompt):
            break
        hashed.update(prompt[start:end])
        found.append(_number(hashed))
    return found


def _number(hashed: hashlib.blake2b) -> int:
    return int.from_bytes(hashed.digest(), "big")
