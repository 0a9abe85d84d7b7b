"""What a request asks for: its class of service, how its tokens are chosen, what text they must
form, and whose probabilities it wants. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ServiceClass = Literal["immediate", "deferred"]
ConstraintKind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the generated text must be: a JSON value of a schema, a match of a regular expression,
    or a text of a grammar in llguidance's dialect of Lark. `text`: the schema, as JSON, or the
    expression or grammar itself."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Noise is a function of (seed, position) alone, so a request's
    tokens depend neither on the rest of its batch nor on interruptions."""

    seed: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over all known tokens
    presence_penalty: float = 0.0  # over generated tokens, as is the next
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    min_tokens: int = 0  # generated tokens before which none of `end_ids` is drawn
    end_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # alternatives wanted beside each generated token's own
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    # one makes the next token depend on the newest, and may force several tokens in one iteration
    constraint: Constraint | None = None
    expected_ids: tuple[int, ...] = ()  # a guess of the answer, for drafts; it changes no token


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Under the model's own distribution, before temperature, penalties and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest (token id, logprob), best first
