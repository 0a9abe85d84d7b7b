"""From a recipe (shapes, sizes, classes, seed) to a workload. Pure: the same recipe, the same file.

Arrivals, prompt lengths, output lengths, texts and classes draw from independent streams of the
seed, so changing one of them does not change the others; the rate only scales the path.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from client.workloads.arrivals import Arrivals, closed, horizon, parse_arrivals
from client.workloads.lengths import draw, parse_sizes
from client.workloads.prompts import (
    Prompts,
    Words,
    block_prompts,
    embedded_words,
    lengths_are_chosen,
    plain_prompts,
    shared_prompts,
    words_of,
)
from client.workloads.spec import SpecError
from client.workloads.traces import ROW, LoadTrace, read_trace
from client.workloads.workload_file import Request, Workload, seal

_STREAMS = ("arrivals", "prompt lengths", "output lengths", "texts", "classes", "seeds", "think")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a workload is made from; the file's header contains it.

    ``rate`` is in requests a second; None keeps a trace's own rate. A trace has its own lengths.
    ``exact_duration`` stretches the path so that the last of n arrivals comes at n/rate, as vLLM
    does: runs of one rate then offer exactly the same load.
    """

    requests: int | None = 100
    rate: float | None = 1.0
    arrivals: str = "poisson"
    output_tokens: str = "normal:100,50,1,200"
    prompt_tokens: str = "uniform:4,64"
    prompts: str = "words"
    deferred_share: float = 0.0
    deadline_s: float | None = None
    exact_duration: bool = False
    seed: int = 0


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
    recorded = recipe.arrivals.startswith("trace:")
    process = None if recorded else parse_arrivals(recipe.arrivals)
    if users is not None:
        process = closed(users)
    if recorded or process is None:
        trace = _recorded(recipe, process)
        generator["trace"] = trace.note
    else:
        trace = _drawn(recipe, process)
    users = None if process is None else process.users
    rows, n = trace.rows, trace.rows.size
    texts, known = _prompts(recipe, words, trace)
    lengths: list[int] | list[None] = known or [None] * n
    deferred = _rng(recipe, "classes").random(n) < recipe.deferred_share
    seeds = _rng(recipe, "seeds").integers(2**31, size=n)
    think_s = np.zeros(n)
    if process is not None and process.think:
        think_s = _rng(recipe, "think").exponential(process.think, n).round(6)
    columns = rows["at_s"], rows["output_tokens"], deferred, seeds, think_s
    requests = [
        Request(
            at_s=round(at_s, 6) if users is None else None,
            prompt=text,
            prompt_tokens=tokens,
            output_tokens=out,
            service="deferred" if later else "immediate",
            deadline_s=recipe.deadline_s if later else None,
            seed=seed,
            think_s=think,
        )
        for text, tokens, at_s, out, later, seed, think in zip(
            texts, lengths, *(column.tolist() for column in columns), strict=True
        )
    ]
    steady = process is not None and process.steady
    duration_s = trace.duration_s if users is None else 0.0
    return seal(generator, requests, duration_s, steady=steady, users=users)


def _recorded(recipe: Recipe, process: Arrivals | None) -> LoadTrace:
    """A trace at the recipe's rate, or its own; in a closed loop its requests alone."""
    trace = read_trace(
        recipe.arrivals, _seed(recipe, "arrivals"), recipe.requests, resample=process is not None
    )
    if recipe.rate is None or process is not None:
        return trace
    if trace.duration_s <= 0:
        raise SpecError("a trace without duration cannot be scaled to a rate")
    scale = trace.rows.size / trace.duration_s / recipe.rate
    trace.rows["at_s"] *= scale
    return replace(trace, duration_s=trace.duration_s * scale)


def _drawn(recipe: Recipe, process: Arrivals) -> LoadTrace:
    """As if it were recorded."""
    if recipe.requests is None or (recipe.rate is None and process.users is None):
        raise SpecError("the number of requests and the rate can be left open with a trace only")
    rows = np.zeros(recipe.requests, dtype=ROW)
    for column in ("prompt_tokens", "output_tokens"):
        law, stream = parse_sizes(getattr(recipe, column)), column.replace("_tokens", " lengths")
        rows[column] = draw(law, rows.size, _rng(recipe, stream))
    try:
        times = process.unit_times(rows.size, _seed(recipe, "arrivals"))
    except ValueError as error:
        raise SpecError(f"arrivals {recipe.arrivals!r}: {error}") from None
    end, rate = horizon(process, times), recipe.rate or 1.0
    if recipe.exact_duration and end > 0:
        times, end = times * (rows.size / end), rows.size
    rows["at_s"] = times / rate
    return LoadTrace(rows, end / rate, "drawn")


def _prompts(recipe: Recipe, words: Words | None, trace: LoadTrace) -> Prompts:
    rng, lengths = _rng(recipe, "texts"), trace.rows["prompt_tokens"]
    if words is None or not lengths_are_chosen(recipe.prompts):
        return plain_prompts(recipe.prompts, lengths.size, rng)
    if recipe.prompts.startswith("shared"):
        return shared_prompts(recipe.prompts, lengths, rng, words)
    if trace.blocks is not None:
        blocks = [trace.blocks[line] for line in trace.rows["line"].tolist()]
        return block_prompts(blocks, lengths, _seed(recipe, "texts"), words)
    return words_of(lengths, rng, words)


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
