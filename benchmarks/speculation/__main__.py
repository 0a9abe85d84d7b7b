"""Tokens per second with speculation and without it, and the share of drafts that is accepted.

    python -m benchmarks.speculation                    # smollm2, under 4 minutes
    python -m benchmarks.speculation --clock cpu        # seconds of one thread, on a busy machine

Four parts, each with `--speculate` and without it, in turns on the same work: texts that are edited
and random text, one stream and as many as the batch holds. Tokens must be the same on both sides.
Edits are greedy, and random text is drawn at temperature 1: greedy text repeats itself sooner or
later, and then drafts are right. Policy `orca`, without HTTP.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.bare import GREEDY, BareRun, Job, run_bare
from benchmarks.harness.picture import plt, without_frame
from benchmarks.harness.picture import save as save_picture
from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.turns import Ratio, in_turns, ratio
from benchmarks.speculation.work import edits, random_texts
from engine.speculation import Speculation
from model import LoadOptions, load_model
from requested import Sampling
from runtime.executor import Executor
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor

EDITING, RANDOM = "editing", "random text"
SAMPLINGS = {EDITING: GREEDY, RANDOM: Sampling(temperature=1)}
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens per second of each round. `accepted`: share of all drafts; None: there were none."""

    name: str
    streams: int
    without: Sequence[float]
    with_drafts: Sequence[float]
    ratio: Ratio
    drafts: int
    accepted: float | None
    same_tokens: bool


class Side:
    """A model, and what its server learnt from one run to the next."""

    def __init__(self, args: argparse.Namespace, speculate: int) -> None:
        self.model: Executor = load_model(
            LoadOptions(
                "dynamic", args.model, "cpu", args.dtype, 0, args.streams, speculate=speculate
            )
        )
        self.model.warm_up()
        self._clock = CLOCKS[args.clock]
        self._predictor = Predictor()
        self._speculation = Speculation(speculate, self._predictor) if speculate else None

    def run(self, groups: Sequence[Sequence[Job]], limit: int, sampling: Sampling) -> list[BareRun]:
        """Groups of jobs, one group after the other."""
        return [
            run_bare(
                self.model, Orca(), "dynamic", group, limit, sampling, clock=self._clock,
                predictor=self._predictor, speculation=self._speculation,
            )
            for group in groups
        ]  # fmt: skip


def measure(
    name: str, sides: dict[bool, Side], groups: Sequence[Sequence[Job]], limit: int, rounds: int
) -> Part:
    sampling = SAMPLINGS[name]
    found = in_turns(
        {k: partial(side.run, groups, limit, sampling) for k, side in sides.items()}, rounds
    )
    rates = {
        k: [sum(r.tokens for r in runs) / sum(r.seconds for r in runs) for runs in of]
        for k, of in found.items()
    }
    outputs = {k: [[r.outputs for r in runs] for runs in of] for k, of in found.items()}
    records = [i for runs in found[True] for run in runs for i in run.tally.iterations]
    accepted, drafts = (
        sum(getattr(i, of) for i in records) for of in ("accepted_drafts", "num_drafts")
    )
    return Part(
        name, max(map(len, groups)), rates[False], rates[True], ratio(rates[True], rates[False]),
        drafts, accepted / drafts if drafts else None, outputs[False] == outputs[True],
    )  # fmt: skip


def draw(parts: Sequence[Part], path: Path, subtitle: str) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    places = range(len(parts))
    axes.barh(places, [part.ratio.value for part in parts], color="#4c78a8")
    axes.axvline(1, color="#333333", lw=1)
    for place, part in zip(places, parts, strict=True):
        share = "no drafts" if part.accepted is None else f"{part.accepted:.0%} of drafts accepted"
        axes.text(part.ratio.value, place, f" {part.ratio.value:.2f} x, {share}", va="center")
    axes.set_yticks(places, [_label(part) for part in parts])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(part.ratio.value for part in parts))
    axes.set_xlabel(f"tokens per second with speculation / without\n{subtitle}", fontsize=9)
    without_frame(axes, "x")
    save_picture(figure, path)


def _label(part: Part) -> str:
    return f"{part.name}, {part.streams} stream{'s' if part.streams > 1 else ''}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, model="smollm2", dtype="auto", known_dtypes=("auto", "float32"))
    parser.add_argument("--speculate", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--streams", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--output-tokens", type=int, default=40, help="of each of many streams")
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--picture", type=Path, help="file for the picture")
    args = parser.parse_args(argv)
    if args.clock == "cpu":
        torch.set_num_threads(1)
    sides = {False: Side(args, 0), True: Side(args, args.speculate)}
    vocab_size, streams, tokens = sides[False].model.vocab_size, args.streams, args.output_tokens
    alone = [[job] for job in edits(args.model, 8)]
    works = {
        EDITING: [(alone, 1), ([edits(args.model, streams, tokens)], streams)],
        RANDOM: [
            ([[job] for job in random_texts(vocab_size, 2, 100, 1)], 1),
            ([random_texts(vocab_size, streams, tokens, 2)], streams),
        ],
    }
    for side in sides.values():
        side.run(alone[:2], 1, SAMPLINGS[EDITING])
    parts = [
        measure(name, sides, groups, limit, args.rounds)
        for name, of in works.items()
        for groups, limit in of
    ]
    rows = [
        (
            _label(part), f"{max(part.without):.1f}", f"{max(part.with_drafts):.1f}",
            format(part.ratio, ".2f"), part.drafts,
            "" if part.accepted is None else f"{part.accepted:.0%}",
        )
        for part in parts
    ]  # fmt: skip
    same = "the same" if all(part.same_tokens for part in parts) else "NOT THE SAME"
    info = sides[True].model.info
    head = f"{args.model}, {info.dtype}, --speculate {args.speculate}, {args.clock} seconds"
    columns = "tokens/s | without: | with drafts: | ratio: | drafts: | accepted:"
    card = f"{head}, on {machine()}\n\n{table(columns, rows)}\n\nTokens with drafts: {same}."
    report = {
        "model": args.model, "dtype": info.dtype, "clock": args.clock,
        "speculate": args.speculate, "parts": [asdict(part) for part in parts],
    }  # fmt: skip
    save(report, card, args.out, f"speculation-{info.dtype}")
    if args.picture is not None:
        draw(parts, args.picture, f"{head}\n{machine()}")


if __name__ == "__main__":
    main()
