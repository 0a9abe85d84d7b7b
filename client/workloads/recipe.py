"""From a recipe (shapes, sizes, classes, seed) to a workload. Pure: the same recipe, the same file.

Arrivals, prompt lengths, output lengths, texts and classes draw from independent streams of the
seed, so changing one of them does not change the others; the rate only scales the path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from client.workloads.arrivals import Closed, horizon, is_steady, parse_arrivals
from client.workloads.lengths import Sizes, draw, parse_sizes
from client.workloads.prompts import (
    Conversation,
    block_prompts,
    conversation_times,
    lengths_are_chosen,
    parse_prefixed,
    plain_prompts,
    prefixed_prompts,
    words_of,
)
from client.workloads.spec import SpecError
from client.workloads.traces import LoadTrace, read_trace
from client.workloads.words import Words, embedded_words
from client.workloads.workload_file import Request, Workload, seal

_SIZES = (
    "fixed:N | uniform:LOW,HIGH | normal:MEAN,SD,LOW,HIGH | lognormal:MEDIAN,SIGMA,LOW,HIGH | "
    "zipf:A,LOW,HIGH | choice:1/25/100"
)
_STREAMS = ("arrivals", "prompt lengths", "output lengths", "texts", "classes", "seeds", "think")


def _option(default: Any, told: str) -> Any:
    """A field that is an option of all commands, with its help."""
    return field(default=default, metadata={"help": told})


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a workload is made from; the file's header contains it.

    ``rate`` is in requests a second; None keeps a trace's own rate. A trace has its own lengths.
    ``exact_duration`` stretches the path so that the last of n arrivals comes at n/rate, as vLLM
    does: runs of one rate then offer exactly the same load.
    """

    requests: int | None = 100
    rate: float | None = 1.0
    arrivals: str = _option(
        "poisson",
        "constant | poisson | gamma:cv=2 (or gamma:burstiness=0.25, vLLM's name for 1/cv^2) | "
        "weibull:cv=2 | mmpp:peak=4,share=0.1,cycle=200 | ramp:start=0.2 | burst (all at once) | "
        "closed:users=8,think=0.5 | plan:low | plan:medium | plan:high | "
        "plan:outer=zipf,a1=1.2,inner=uniform,bins=100,cv_rate=0.8 | trace:csv,path=FILE (also "
        "azure, burstgpt, mooncake, servegen; with resample=true each seed plays other parts of "
        "it, as always in comparisons and searches for capacity)",
    )
    output_tokens: str = _option("normal:100,50,1,200", _SIZES)
    prompt_tokens: str = _option("uniform:4,64", _SIZES)
    prompts: str = _option(
        "words",
        "words (each one token of the server's vocabulary) | request ('Request i') | "
        "shared:prefixes=4,tokens=128 (each begins with one of four texts) | "
        "conversation:turns=4,gap=10 (each turn contains those before it) | sharegpt:FILE | "
        "lines:FILE",
    )
    deferred_share: float = _option(0.0, "share of deferred requests, 0..1")
    deadline_s: float | None = _option(None, "deadline of a deferred request in seconds")
    exact_duration: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests is not None and self.requests < 1:
            raise SpecError(f"the number of requests must be at least 1, not {self.requests}")
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            raise SpecError(f"the rate must be a number of requests a second > 0, not {self.rate}")
        if not 0 <= self.deferred_share <= 1:
            raise SpecError(f"the deferred share must be in 0..1, not {self.deferred_share}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise SpecError(f"the deadline must be a number of seconds > 0, not {self.deadline_s}")
        if self.seed < 0:
            raise SpecError(f"the seed must be a whole number >= 0, not {self.seed}")


def used(recipe: Recipe) -> dict[str, Any]:
    """What of it has an effect."""
    trace, open_loop = recipe.arrivals.startswith("trace:"), has_rate(recipe.arrivals)
    without = {
        "prompt_tokens": trace or not lengths_are_chosen(recipe.prompts),
        "output_tokens": trace,
        "rate": not open_loop,
        "exact_duration": trace or not open_loop,
        "deadline_s": not recipe.deferred_share,
    }
    return {name: value for name, value in asdict(recipe).items() if not without.get(name)}


def make(recipe: Recipe, words: Words | None = None, *, users: int | None = None) -> Workload:
    """Make the workload, with prompts of these words, by default the embedded vocabulary's.
    ``users``: the same kind of requests in a closed loop of so many, whatever the arrivals.

    SpecError where the recipe asks for something impossible."""
    generator = {**used(recipe), "numpy": np.__version__}
    if lengths_are_chosen(recipe.prompts):
        words = words or embedded_words()
        generator["vocabulary_sha256"] = words.sha256
    if recipe.arrivals.startswith("trace:"):
        closed, seed = users is not None, _seed(recipe, "arrivals")
        trace = read_trace(recipe.arrivals, seed, recipe.requests, resample=closed)
        generator["trace"] = trace.note
        requests, duration = _fill(recipe, words, trace)
        if closed:
            return _closed(generator, requests, users)
        return seal(generator, requests, duration, steady=False)
    if recipe.requests is None or (
        recipe.rate is None and not recipe.arrivals.startswith("closed")
    ):
        raise SpecError("the number of requests and the rate can be left open with a trace only")
    n = recipe.requests
    process = parse_arrivals(recipe.arrivals) if users is None else Closed(users)
    prompt_lengths = draw(parse_sizes(recipe.prompt_tokens), n, _rng(recipe, "prompt lengths"))
    output_lengths = draw(parse_sizes(recipe.output_tokens), n, _rng(recipe, "output lengths"))
    if isinstance(process, Closed):
        requests = _requests(recipe, words, np.zeros(n), prompt_lengths, output_lengths)
        if process.think:
            pauses = _rng(recipe, "think").exponential(process.think, n).round(6).tolist()
            requests = [replace(r, think_s=t) for r, t in zip(requests, pauses, strict=True)]
        return _closed(generator, requests, process.users)
    assert recipe.rate is not None  # refused above
    kind = parse_prefixed(recipe.prompts)
    turns = kind.turns if isinstance(kind, Conversation) else 1
    try:
        times = process.unit_times(math.ceil(n / turns), _seed(recipe, "arrivals"))
    except ValueError as error:
        raise SpecError(f"arrivals {recipe.arrivals!r}: {error}") from None
    end = horizon(process, times)
    if isinstance(kind, Conversation):
        starts = times * turns / recipe.rate
        times = conversation_times(kind, starts, n, _rng(recipe, "think")) * recipe.rate
        end = float(times.max())
    if recipe.exact_duration and end > 0:
        times, end = times * (n / end), n
    requests = _requests(recipe, words, times / recipe.rate, prompt_lengths, output_lengths)
    if isinstance(kind, Conversation):
        requests.sort(key=lambda r: r.at_s or 0.0)
    steady = is_steady(process) and not isinstance(kind, Conversation)
    return seal(generator, requests, end / recipe.rate, steady=steady)


def _closed(generator: dict[str, Any], requests: list[Request], users: int | None) -> Workload:
    untimed = [replace(r, at_s=None) for r in requests]
    return seal(generator, untimed, 0.0, steady=True, users=users)


def _fill(recipe: Recipe, words: Words | None, trace: LoadTrace) -> tuple[list[Request], float]:
    """The trace's requests at the recipe's rate, and how long they are sent."""
    times, duration = trace.rows["at_s"], trace.duration_s
    if recipe.rate is not None:
        if duration <= 0:
            raise SpecError("a trace without duration cannot be scaled to a rate")
        scale = times.size / duration / recipe.rate
        times, duration = times * scale, duration * scale
    if isinstance(parse_prefixed(recipe.prompts), Conversation):
        raise SpecError(
            "--prompts conversation cannot be combined with a trace, which has its own times"
        )
    prompt, output = trace.rows["prompt_tokens"], trace.rows["output_tokens"]
    blocks = trace.blocks and [trace.blocks[line] for line in trace.rows["line"].tolist()]
    return _requests(recipe, words, times, prompt, output, blocks), duration


def _requests(
    recipe: Recipe,
    words: Words | None,
    times: np.ndarray[tuple[int], np.dtype[np.float64]],
    prompt: Sizes,
    output: Sizes,
    blocks: Sequence[tuple[int, ...]] | None = None,
) -> list[Request]:
    n = times.size
    kind = parse_prefixed(recipe.prompts)
    rng = _rng(recipe, "texts")
    if words is None:
        prompts = plain_prompts(recipe.prompts, n, rng)
    elif kind is not None:
        prompts = prefixed_prompts(kind, prompt, output, rng, words)
    elif blocks is not None:
        prompts = block_prompts(blocks, prompt, _seed(recipe, "texts"), words)
    else:
        prompts = words_of(prompt, rng, words)
    lengths: Sequence[int | None] = prompts.tokens or [None] * n
    deferred = _rng(recipe, "classes").random(n) < recipe.deferred_share
    seeds = _rng(recipe, "seeds").integers(2**31, size=n)
    return [
        Request(
            at_s=round(at, 6),
            prompt=text,
            prompt_tokens=tokens,
            output_tokens=out,
            service="deferred" if later else "immediate",
            deadline_s=recipe.deadline_s if later else None,
            seed=seed,
        )
        for at, text, tokens, out, later, seed in zip(
            times.tolist(),
            prompts.texts,
            lengths,
            output.tolist(),
            deferred.tolist(),
            seeds.tolist(),
            strict=True,
        )
    ]


def _seed(recipe: Recipe, stream: str) -> np.random.SeedSequence:
    return np.random.SeedSequence(recipe.seed, spawn_key=(_STREAMS.index(stream),))


def _rng(recipe: Recipe, stream: str) -> np.random.Generator:
    return np.random.default_rng(_seed(recipe, stream))


def has_rate(arrivals: str) -> bool:
    """Whether a rate means anything: it does not for a closed loop and for all at once."""
    return not arrivals.startswith(("closed", "burst"))


def varied(recipe: Recipe) -> Recipe:
    """With requests that differ from seed to seed: of a trace, unless it says otherwise, others."""
    if not recipe.arrivals.startswith("trace:") or "resample=" in recipe.arrivals:
        return recipe
    return replace(recipe, arrivals=f"{recipe.arrivals},resample=true")
