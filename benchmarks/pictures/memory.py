"""KV blocks over a run in which prompts begin alike: the picture of docs/memory.md."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from benchmarks.bare import BareRun
from benchmarks.harness.picture import plt, save
from benchmarks.harness.report import cpu_name
from benchmarks.prefix import Loop, Prefixes, arriving, ttft_s
from model import LoadOptions, load_model
from records import IterationRecord

SYSTEMS, SYSTEM_TOKENS, REQUESTS, LIMIT, BLOCKS, RATE = 4, 256, 32, 4, 160, 4.0
KINDS = {"used": "#4c78a8", "cached": "#9ecae9", "free": "#eeeeee"}


def play(prefix_caching: bool) -> BareRun:
    model = load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, LIMIT))
    prefixes = Prefixes(model.vocab_size, 0)
    systems = [prefixes.tokens(SYSTEM_TOKENS) for _ in range(SYSTEMS)]
    work = [replace(job, output_tokens=24) for job in prefixes.behind(systems, REQUESTS)]
    arrivals_s = [at / RATE for at in accumulate(prefixes.gaps_s(REQUESTS))]
    loop = Loop(model, LIMIT, prefix_caching=prefix_caching, clock="cpu", blocks=BLOCKS)
    return loop.play(arriving(work, arrivals_s))


def draw(folder: Path) -> None:
    figure, rows = plt.subplots(
        2, 1, figsize=(9, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    for axes, prefix_caching in zip(rows, (False, True), strict=True):
        played = play(prefix_caching)
        iterations = [event for event in played.events if isinstance(event, IterationRecord)]
        start_s = played.inferences[0].arrival_s
        at_s = [i.start_s - start_s for i in iterations]
        counts = [[getattr(i, f"{kind}_blocks") for i in iterations] for kind in KINDS]
        axes.stackplot(
            at_s, counts, labels=list(KINDS), colors=list(KINDS.values()), step="post", lw=0
        )
        computed = sum(i.num_tokens for i in iterations)
        ttft_ms = 1000 * sorted(ttft_s(played))[REQUESTS // 2]
        axes.set_title(
            f"prefix caching {'on' if prefix_caching else 'off'}: {computed} tokens computed, "
            f"median TTFT {ttft_ms:.0f} ms",
            loc="left",
            fontsize=10,
        )
        axes.set_ylabel(f"blocks, {BLOCKS} in all")
        axes.margins(0)
    rows[1].set_xlabel(f"seconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    figure.legend(
        *rows[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    save(figure, folder / "memory.png")
