"""What masks cost, as recorded: docs/img/masks.png."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.harness.picture import plt, save, without_frame
from benchmarks.masks import ROWS

RECORDED = Path("results/reference-masks/masks.json")


def draw(folder: Path) -> None:
    report = json.loads(RECORDED.read_text())
    models = list(dict.fromkeys(result["model"] for result in report["results"]))
    figure, axes = plt.subplots(1, len(models), figsize=(9, 3.4), layout="constrained")
    for axis, model in zip(np.atleast_1d(axes), models, strict=True):
        results = [result for result in report["results"] if result["model"] == model]
        places = range(len(results))
        free = float(np.median(results[0]["tokens_per_s"]))
        drawn = [float(np.median(result["drawn_per_s"])) / free for result in results]
        given = [float(np.median(result["tokens_per_s"])) / free for result in results]
        axis.bar(places, given, color="#f2b701", label="forced")
        axis.bar(places, drawn, color="#4c78a8", label="drawn")
        axis.set_xticks(places, [result["side"].replace(" of ", "\nof ") for result in results])
        axis.set_title(f"{model}, {results[0]['vocab_size']:,} tokens", loc="left", fontsize=10)
        axis.set_xlabel(f"constraint, of {ROWS} rows")
        without_frame(axis, "y")
    np.atleast_1d(axes)[0].set_ylabel("tokens/s, to no constraint")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=2, loc="outside upper right")
    save(figure, folder / "masks.png")
