"""The limits of what clients send: the same on every API, and no wider than the wire to a model
server (`model_server/wire/model.proto`) and the sampler's float32.

An API may exclude an end of a range, as TGI's does with a temperature of 0. What an option, the
model's context or its vocabulary limits further is checked later.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

MOST = 2**31 - 1  # of whole numbers
LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1  # signed as OpenAI's or unsigned as TGI's
FRESH_SEED_BITS = 32  # of a drawn seed, which any client's JSON represents exactly
COOLEST, HOTTEST = 1e-6, 1e6  # temperatures; logits divided by less would overflow
LEAST_RATE, MOST_RATE = 1e-6, 1e6  # repetition penalties, which divide logits, too
MOST_PENALTY = 2.0
MOST_BIAS = 100.0
MOST_TOP_LOGPROBS = 20
MOST_STOP_CHARACTERS = 1024  # of a stop string
MOST_TARGET_S = 86_400
MOST_PAIRS, MOST_KEY, MOST_VALUE = 16, 64, 512  # of metadata; characters
# of `top_p` and `typical_p` for the sampler, which leaves one token: as a float32, less may be 0,
# which no set of tokens has
LEAST_MASS = 1e-9

COUNT = f"a whole number from 1 to {MOST}"
PRIORITY = "a whole number from -2**31 to 2**31 - 1"
TARGET = f"seconds, above 0 and up to {MOST_TARGET_S}"
SEED = "a whole number from -2**63 to 2**64 - 1"
TEMPERATURE = f"0 (greedy) or a number from {COOLEST} to {HOTTEST:.0f}"
SHARE = "a number from 0 to 1"
RATE = f"a number from {LEAST_RATE} to {MOST_RATE:.0f}"
PENALTY = f"a number from -{MOST_PENALTY:.0f} to {MOST_PENALTY:.0f}"
METADATA = (
    f"an object of up to {MOST_PAIRS} strings of up to {MOST_VALUE} characters, "
    f"with keys of up to {MOST_KEY}"
)
TOP_LOGPROBS = f"a whole number from 0 to {MOST_TOP_LOGPROBS}"


Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Target = Annotated[float, Field(gt=0, le=MOST_TARGET_S)]
Seed = Annotated[int, Field(ge=LEAST_SEED, le=MOST_SEED)]
Temperature = Annotated[float, Field(ge=0, le=0)] | Annotated[float, Field(ge=COOLEST, le=HOTTEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
Penalty = Annotated[float, Field(ge=-MOST_PENALTY, le=MOST_PENALTY)]
Bias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]
TopLogprobs = Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)]


def _boolean(value: Any) -> Any:
    """Python, and so a Literal, takes 0 for False and 1 for True; JSON does not."""
    if not isinstance(value, bool):
        raise ValueError("no boolean")
    return value


No = Annotated[Literal[False], BeforeValidator(_boolean)]
Yes = Annotated[Literal[True], BeforeValidator(_boolean)]


def at_most(entries: int) -> BeforeValidator:
    """Counts the entries of an array or object before any is checked: pydantic reports each wrong
    entry of an object, however many there are, and holds the interpreter's lock meanwhile."""

    def few(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > entries:
            raise ValueError("too many entries")
        return value

    return BeforeValidator(few)


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=MOST_KEY)], Annotated[str, Field(max_length=MOST_VALUE)]],
    Field(max_length=MOST_PAIRS),
    at_most(MOST_PAIRS),
]
