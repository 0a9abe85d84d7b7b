"""What the router must know of a request's body: model, service class, prompt prefix. No I/O.

The body itself is passed on byte for byte. Its prompt is skipped, not decoded: this runs on the
event loop, where all other requests wait meanwhile (per MiB of token ids 2.5 ms, decoding 26).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

BLOCK_BYTES = 256
MAX_BLOCKS = 256

_NONE = msgspec.Raw(b"null")
_FLEX, _DEFERRED = msgspec.Raw(b'"flex"'), msgspec.Raw(b'"deferred"')


class _Fields(msgspec.Struct):
    """What is read of a body; `Raw` fields stay the bytes that they are."""

    model: str | None = None
    service_tier: msgspec.Raw = _NONE
    service_class: msgspec.Raw = msgspec.field(default=_NONE, name="class")
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    inputs: msgspec.Raw = _NONE


_DECODER = msgspec.json.Decoder(_Fields)


@dataclass(frozen=True, slots=True)
class Ask:
    """`model` is None where the request names none. `prompt`: the JSON of the conversation or
    prompt, as it came."""

    model: str | None
    deferred: bool
    prompt: memoryview


def read(body: bytes | bytearray, named: str | None = None) -> Ask:
    """Reads a request body; `named` is the model by other means, for bodies that name none.

    Raises ValueError, saying what is wrong, when it is not a JSON object or the model is not a
    string."""
    try:
        fields = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise ValueError("'model' must be a string.") from None
        raise ValueError("The body must be a JSON object.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The body is not valid JSON: {error}.") from None
    deferred = fields.service_tier == _FLEX or fields.service_class == _DEFERRED
    prompts = [memoryview(raw) for raw in (fields.messages, fields.prompt, fields.inputs)]
    return Ask(fields.model or named, deferred, max(prompts, key=len))


def prefix_blocks(model: str, prompt: memoryview) -> Sequence[int]:
    """A hash per block of the prompt, each covering all blocks before it: two prompts share as
    many as they have whole blocks in common from the start (vLLM's scheme of prefix caching)."""
    text = bytes(prompt[: BLOCK_BYTES * MAX_BLOCKS])
    blocks, chained = [], hash(model)
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chained = hash((chained, text[start : start + BLOCK_BYTES]))
        blocks.append(chained)
    return blocks
