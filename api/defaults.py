"""How a model's authors would have it sampled: what `generation_config.json` says counts where a
client says nothing, as in vLLM.

Like vLLM, `do_sample` is not read. TGI's API takes nothing of this.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api import limits
from api.http.errors import explain
from models.fetch import locate
from models.names import EMBEDDED, RANDOM_PREFIX
from seams import LoadError, Sampling
from text.vocabulary import read_object

FILE = "generation_config.json"
TopK = Annotated[int, Field(ge=-1, le=limits.MOST)]
TOP_K = f"{limits.COUNT}; 0 or -1: no limit"


class SamplingDefaults(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    temperature: limits.Temperature = Field(default=1.0, description=limits.TEMPERATURE)
    top_k: TopK | None = Field(default=None, description=TOP_K)
    top_p: limits.Share = Field(default=1.0, description=limits.SHARE)
    min_p: limits.Share = Field(default=0.0, description=limits.SHARE)
    repetition_penalty: limits.Rate = Field(default=1.0, description=limits.RATE)
    max_new_tokens: limits.Count | None = Field(default=None, description=limits.COUNT)

    @property
    def stated(self) -> dict[str, float]:
        return self.model_dump(exclude_unset=True)

    def sampling(self, said: Mapping[str, Any], seed: int | None) -> Sampling:
        """With what a client has `said` in their place, and a fresh seed if it said none."""
        chosen = self.model_copy(update=said)
        return Sampling(
            seed=secrets.randbits(limits.FRESH_SEED_BITS) if seed is None else seed,
            temperature=chosen.temperature,
            top_k=None if chosen.top_k in (0, -1) else chosen.top_k,
            top_p=max(chosen.top_p, limits.LEAST_MASS),
            min_p=chosen.min_p,
            repetition_penalty=chosen.repetition_penalty,
        )


NAMES = set(SamplingDefaults.model_fields)


def load_sampling_defaults(model: str, revision: str | None = None) -> SamplingDefaults:
    """Of what `--model` names. Raises LoadError."""
    if model == EMBEDDED or model.startswith(RANDOM_PREFIX):
        return SamplingDefaults()
    path = locate(model, revision)
    if path.is_file():  # GGUF
        return SamplingDefaults()
    file = path / FILE
    said = {name: v for name, v in read_object(file).items() if name in NAMES and v is not None}
    try:
        return SamplingDefaults.model_validate(said)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise LoadError(
            f"{file}: {explain(found, SamplingDefaults)}; --generation-config false ignores it"
        ) from None
