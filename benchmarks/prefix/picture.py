"""KV blocks over a run in which prompts begin alike: the picture of docs/memory.md.

python -m benchmarks.prefix.picture
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.common import cpu_name
from benchmarks.pictures.page import command, save
from benchmarks.prefix.__main__ import Prefixes
from benchmarks.prefix.play import Loop, Played
from model import LoadOptions, load_model

SYSTEMS, SYSTEM_TOKENS, REQUESTS, LIMIT, BLOCKS, RATE = 4, 256, 32, 4, 160, 4.0
KINDS = {"used": "#4c78a8", "cached": "#9ecae9", "free": "#eeeeee"}


def play(prefix_caching: bool) -> Played:
    model = load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, LIMIT))
    prefixes = Prefixes(model.vocab_size, 0)
    systems = [prefixes.tokens(SYSTEM_TOKENS) for _ in range(SYSTEMS)]
    work = [replace(job, output_tokens=24) for job in prefixes.behind(systems, REQUESTS)]
    arrivals_s = [at / RATE for at in accumulate(prefixes.gaps_s(REQUESTS))]
    loop = Loop(model, LIMIT, prefix_caching=prefix_caching, clock="cpu", blocks=BLOCKS)
    return loop.play(work, arrivals_s)


def draw(path: Path) -> None:
    figure, rows = plt.subplots(
        2, 1, figsize=(9, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    for axes, prefix_caching in zip(rows, (False, True), strict=True):
        played = play(prefix_caching)
        at_s = [i.start_s for i in played.iterations]
        counts = [[getattr(i, kind) for i in played.iterations] for kind in KINDS]
        axes.stackplot(
            at_s, counts, labels=list(KINDS), colors=list(KINDS.values()), step="post", lw=0
        )
        computed = sum(i.num_tokens for i in played.iterations)
        ttft_ms = 1000 * sorted(played.ttft_s)[REQUESTS // 2]
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
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(folder / "memory.png"))


if __name__ == "__main__":
    main()
