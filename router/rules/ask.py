"""What the router must know of a request's body: model, service class, prompt prefix. No I/O.

The body itself is passed on byte for byte; nothing else in it is looked at.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BLOCK_CHARS = 256
MAX_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """`model` is None where the request names none. `prompt` is the conversation or prompt, whole,
    in a canonical form."""

    model: str | None
    deferred: bool
    prompt: Any


def read(body: bytes, named: str | None = None) -> Ask:
    """Reads a request body; `named` is the model by other means, for bodies that name none.

    Raises ValueError, saying what is wrong, when it is no JSON object or the model is no string."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise ValueError("The body must be a JSON object.")
    model = parsed.get("model")
    if model is None or model == "":
        model = named
    if model is not None and not isinstance(model, str):
        raise ValueError("'model' must be a string.")
    deferred = parsed.get("service_tier") == "flex" or parsed.get("class") == "deferred"
    prompt = parsed.get("messages") or parsed.get("prompt") or parsed.get("inputs")
    return Ask(model, deferred, prompt)


def prefix_blocks(model: str, prompt: Any) -> Sequence[int]:
    """A hash per block of the prompt, each covering all blocks before it: two prompts share as
    many as they have whole blocks in common from the start (vLLM's scheme of prefix caching)."""
    text = json.dumps(prompt)[: BLOCK_CHARS * MAX_BLOCKS]
    blocks, chained = [], hash(model)
    for start in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
        chained = hash((chained, text[start : start + BLOCK_CHARS]))
        blocks.append(chained)
    return blocks
