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
from functools import partial
from pathlib import Path

import torch

from benchmarks.bare import GREEDY, BareRun, Job, run_bare
from benchmarks.harness.picture import plt, without_frame
from benchmarks.harness.picture import save as save_picture
from benchmarks.harness.report import machine, options, report
from benchmarks.harness.turns import ratio_of
from benchmarks.speculation.work import edits, random_texts
from client.experiment import Experiment, Found
from engine.speculation import Speculation
from model import LoadOptions, load_model
from requested import Sampling
from runtime.executor import Executor
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor

EDITING, RANDOM = "editing", "random text"
SAMPLINGS = {EDITING: GREEDY, RANDOM: Sampling(temperature=1)}
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


WITHOUT, WITH = "without", "with drafts"


def total(runs: Sequence[BareRun], of: str) -> int:
    """A count of all iterations."""
    return sum(getattr(record, of) for run in runs for record in run.tally.iterations)


METRICS: dict[str, Callable[[list[BareRun]], float]] = {
    "tokens_per_s": lambda runs: sum(r.tokens for r in runs) / sum(r.seconds for r in runs),
    "drafts": lambda runs: total(runs, "num_drafts"),
    "accepted": lambda runs: total(runs, "accepted_drafts"),
}


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

    def run(
        self, groups: Sequence[Sequence[Job]], limit: int, sampling: Sampling, _: int = 0
    ) -> list[BareRun]:
        """Groups of jobs, one group after the other."""
        return [
            run_bare(
                self.model, Orca(), "dynamic", group, limit, sampling, clock=self._clock,
                predictor=self._predictor, speculation=self._speculation,
            )
            for group in groups
        ]  # fmt: skip


def same_tokens(found: Found) -> bool:
    """Of both sides, round by round."""
    both = ([[run.outputs for run in turn] for turn in found.turns[s]] for s in (WITHOUT, WITH))
    return all(ours == theirs for ours, theirs in zip(*both, strict=True))


def draw(parts: Sequence[Found], path: Path, subtitle: str) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    ratios = [ratio_of(part, WITH).value for part in parts]
    axes.barh(range(len(parts)), ratios, color="#4c78a8")
    axes.axvline(1, color="#333333", lw=1)
    for place, (part, value) in enumerate(zip(parts, ratios, strict=True)):
        drafts, accepted = (sum(part.figures(WITH, of)) for of in ("drafts", "accepted"))
        share = f"{accepted / drafts:.0%} of drafts accepted" if drafts else "no drafts"
        axes.text(value, place, f" {value:.2f} x, {share}", va="center")
    axes.set_yticks(range(len(parts)), [str(part.experiment.of["work"]) for part in parts])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(ratios))
    axes.set_xlabel(f"tokens per second with speculation / without\n{subtitle}", fontsize=9)
    without_frame(axes, "x")
    save_picture(figure, path)


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
    sides = {WITHOUT: Side(args, 0), WITH: Side(args, args.speculate)}
    vocab_size, streams, tokens = sides[WITHOUT].model.vocab_size, args.streams, args.output_tokens
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
    found = [
        Experiment(
            {
                name: partial(side.run, groups, limit, SAMPLINGS[work])
                for name, side in sides.items()
            },
            METRICS,
            WITHOUT,
            of={"work": f"{work}, {limit} stream{'s' * (limit > 1)}"},
        ).run(args.rounds)
        for work, of in works.items()
        for groups, limit in of
    ]
    info = sides[WITH].model.info
    head = f"{args.model}, {info.dtype}, --speculate {args.speculate}, {args.clock} seconds"
    same = "the same" if all(map(same_tokens, found)) else "NOT THE SAME"
    name = f"speculation-{info.dtype}"
    report(found, head, args.out, name, f"Tokens with drafts: {same}.", same_tokens=same)
    if args.picture is not None:
        draw(found, args.picture, f"{head}\n{machine()}")


if __name__ == "__main__":
    main()
