"""KV blocks over a run in which prompts begin alike: the picture of docs/memory.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.bare import BareRun, Job, loaded, run_bare
from benchmarks.harness.report import cpu_name
from benchmarks.pictures import save
from engine.blocks import Ledger
from records import IterationRecord
from scheduling.policies.orca import Orca

SYSTEMS, SYSTEM_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 4, 256, (16, 48), 24
REQUESTS, RATE = 32, 4.0
LIMIT, BLOCKS = 4, 160
KINDS = {"used": "#4c78a8", "cached": "#9ecae9", "free": "#eeeeee"}


def play(prefix_caching: bool) -> BareRun:
    model, rng = loaded("embedded", "float32", LIMIT), np.random.default_rng(0)
    systems = rng.integers(0, model.vocab_size, (SYSTEMS, SYSTEM_TOKENS)).tolist()
    at_s = np.cumsum(rng.exponential(1 / RATE, REQUESTS)).tolist()
    work = [
        Job(
            systems[rng.integers(SYSTEMS)]
            + rng.integers(0, model.vocab_size, rng.integers(*OWN_TOKENS)).tolist(),
            OUTPUT_TOKENS,
            arrival_s,
        )
        for arrival_s in at_s
    ]
    ledger = Ledger(BLOCKS, model.block_tokens, prefix_caching=prefix_caching)
    return run_bare(model, Orca(), "dynamic", work, LIMIT, ledger=ledger)


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
        ttft_ms = 1000 * sorted(played.ttft_s())[REQUESTS // 2]
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
