"""Reads what the router needs from a request's body: model, service class, prompt prefix. No I/O.

The body is passed on byte for byte. The prompt is skipped, not decoded: this runs on the event loop
and delays all other requests (2.5 ms per MiB of token ids; decoding them would take 26 ms).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from router.rules.responses import PATH as RESPONSES

BLOCK_BYTES = 256
MAX_BLOCKS = 256

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
    response that it continues; "" for none. `stored`: a server keeps the response, if it can."""

    model: str | None
    deferred: bool
    prompt: memoryview
    in_tgis_field: bool
    previous: str = ""
    stored: bool = True

    def is_repeatable(self, path: str) -> bool:
        """Whether it may be sent to a second server after a first one may have acted on it."""
        if path == RESPONSES:
            return not self.stored
        return _CHANGES_NOTHING.fullmatch(path) is not None


def parse_body(body: bytes | bytearray, named: str | None = None) -> RequestBody:
    """Reads a request body. `named`: the model from the path or a header, for bodies that name
    none.

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
    return RequestBody(fields.model or named, deferred, prompt, in_tgis_field, previous, stored)


def prefix_blocks(model: str, prompt: memoryview) -> Sequence[int]:
    """A hash per block of the prompt; each covers all blocks before it. Two prompts share one hash
    for each whole block of their common prefix (vLLM's scheme of prefix caching)."""
    text = bytes(prompt[: BLOCK_BYTES * MAX_BLOCKS])
    blocks, chained = [], hash(model)
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chained = hash((chained, text[start : start + BLOCK_BYTES]))
        blocks.append(chained)
    return blocks
