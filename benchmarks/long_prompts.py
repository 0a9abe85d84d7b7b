"""The time between tokens of requests that decode while long prompts arrive: orca and stall-free.

    python -m benchmarks.long_prompts                    # the embedded model, two minutes
    python -m benchmarks.long_prompts --model smollm2 --dtype auto --rounds 3
    python -m benchmarks.long_prompts --clock cpu        # seconds of one thread, on a busy machine
    python -m benchmarks.long_prompts --curve curve.png  # fixed token budgets, too, as a picture

Some requests decode; then long prompts arrive, all at once. Two figures of each side:

- the stall: p99 of the others' ITL from the prompts' arrival to the first token of the last one, as
  a multiple of the ITL of the same tokens where no prompts arrive;
- prompt and output tokens per second, until the last request ends.

The sides take turns in every round. `auto` has learnt its step time in a run that does not count.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.bare import BareRun, Job, run_bare
from benchmarks.harness.picture import plt, without_frame
from benchmarks.harness.picture import save as save_picture
from benchmarks.harness.report import file_name, machine, options, save, table
from benchmarks.harness.turns import Ratio, ratio, ratio_of
from benchmarks.prefix import CLOCKS
from client.experiment import Experiment
from model import DTYPES, LoadOptions, load_model
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.prediction.predictor import Predictor
from seams import Model, Policy

MOST_STALL, LEAST_THROUGHPUT = 3.0, 0.97  # what `auto` is built to reach
ALONE, AUTO = "alone", "stall-free, auto"
CURVE = 64, 96, 128, 192, 288, 512, 1024  # token budgets beside `auto`
OTHER_TOKENS = 32  # of the prompts of those that decode
UNDISTURBED = 64  # iterations before the prompts arrive
LEARNING_RUNS = 2
SMOOTHED = 31  # tokens
TINY_S = 1e-9
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Played:
    """One side in one round. The others receive a token in every iteration."""

    itl_s: Floats  # of the others
    disturbed: slice  # while prompts were computed
    ttft_s: float  # of the prompts, the mean
    tokens_per_s: float  # of prompts and output

    def stall(self, alone: Played) -> float:
        """p99 of the ITL, as a multiple of that of the same tokens without the prompts: it grows
        with their contexts, so it is smoothed over neighbours."""
        around = np.pad(alone.itl_s, SMOOTHED // 2, mode="edge")
        undisturbed_s = np.median(np.lib.stride_tricks.sliding_window_view(around, SMOOTHED), -1)
        return _p99(self.itl_s[self.disturbed] / undisturbed_s[self.disturbed])


METRICS: dict[str, Callable[[Played], float]] = {
    "tokens_per_s": lambda played: played.tokens_per_s,
    "p99_ms": lambda played: 1000 * _p99(played.itl_s[played.disturbed]),
    "ttft_ms": lambda played: 1000 * played.ttft_s,
}


def _p99(values: Floats) -> float:
    return float(np.quantile(values, 0.99, method="higher"))


def work_of(args: argparse.Namespace, vocab_size: int, arrival_s: float) -> list[Job]:
    """Those that decode first."""
    rng = np.random.default_rng(args.seed)

    def jobs(count: int, tokens: int, output: int, at_s: float) -> list[Job]:
        return [
            Job(rng.integers(0, vocab_size, tokens).tolist(), output, at_s) for _ in range(count)
        ]

    others = jobs(args.decodes, OTHER_TOKENS, args.decode_tokens, 0.0)
    return others + jobs(args.prompts, args.prompt_tokens, args.output_tokens, arrival_s)


def played(run: BareRun, decodes: int) -> Played:
    """Raises ValueError if the others did not decode beside all prompts."""
    others, prompts = run.inferences[:decodes], run.inferences[decodes:]
    records = run.tally.iterations
    itl_s = np.diff([record.start_s + record.duration_s for record in records])
    tokens = run.tokens + sum(inference.prompt_tokens for inference in run.inferences)
    first = [inference.first_token_s or math.inf for inference in prompts]
    if not prompts:
        return Played(itl_s, slice(0), 0.0, tokens / run.seconds)
    if max(first) > (ended_s := min(inference.last_token_s or 0.0 for inference in others)):
        missing_s = max(first) - ended_s
        raise ValueError(f"the others ended {missing_s:.3f} s too early: increase --decode-tokens")
    arrival_s = prompts[0].arrival_s
    ends_s = np.array([record.start_s + record.duration_s for record in records[1:]])
    disturbed = slice(*np.searchsorted(ends_s, [arrival_s, max(first) + TINY_S]).tolist())
    return Played(itl_s, disturbed, float(np.mean(first)) - arrival_s, tokens / run.seconds)


@dataclass(frozen=True, slots=True)
class Point:
    """A side: p99 ITL beside prompts to the undisturbed one, tokens per second to orca's."""

    stall: Ratio
    throughput: Ratio


def _error(ratio: Ratio) -> list[list[float]]:
    """As matplotlib takes it; one round has no interval."""
    low, high = ratio.low or ratio.value, ratio.high or ratio.value
    return [[ratio.value - low], [high - ratio.value]]


def draw(points: Mapping[str, Point], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    fixed = [point for name, point in points.items() if name.isdecimal()]
    axes.plot([p.stall.value for p in fixed], [p.throughput.value for p in fixed], color="#bbbbbb")
    for name, point in points.items():
        color = "#4c78a8" if name.isdecimal() else "#e45756"
        at = point.stall.value, point.throughput.value
        x_error, y_error = _error(point.stall), _error(point.throughput)
        axes.errorbar(*at, y_error, x_error, fmt="o", color=color, elinewidth=0.8)
        if name.isdecimal():
            axes.annotate(name, at, textcoords="offset points", xytext=(6, -12), color=color)
        else:  # above its interval: `auto` lies on the curve, close to a fixed budget
            top, short = (at[0], at[1] + y_error[1][0]), name.removeprefix("stall-free, ")
            axes.annotate(short, top, textcoords="offset points", xytext=(4, 4), color=color)
    axes.axvline(MOST_STALL, color="#999999", lw=1, ls="--")
    axes.axhline(LEAST_THROUGHPUT, color="#999999", lw=1, ls="--")
    axes.set_xscale("log")
    axes.set_xlabel("p99 ITL of the others while prompts are computed, to the undisturbed one")
    axes.set_ylabel("prompt and output tokens/s, to orca")
    without_frame(axes)
    save_picture(figure, path)


class Sides:
    """`alone` and the policies."""

    def __init__(self, model: Model, vocab_size: int, args: argparse.Namespace) -> None:
        self._model, self._args, self._limit = model, args, args.decodes + args.prompts
        self._predictor = Predictor()
        self._policies: dict[str, Policy] = {
            ALONE: Orca(),
            "orca": Orca(),
            AUTO: StallFree(predictor=self._predictor),
        }
        if args.curve is not None:
            budgets = [budget for budget in CURVE if budget > self._limit]
            self._policies |= {str(budget): StallFree(budget) for budget in budgets}
        self._work = work_of(args, vocab_size, 0.0)
        for _ in range(LEARNING_RUNS):
            self._run(AUTO)
        itl_s = self.play(ALONE).itl_s
        self._work = work_of(args, vocab_size, float(itl_s[:UNDISTURBED].sum()))

    @property
    def names(self) -> Collection[str]:
        return self._policies.keys()

    def play(self, name: str, _: int = 0) -> Played:
        return played(self._run(name), self._args.decodes)

    def _run(self, name: str) -> BareRun:
        work = self._work[: self._args.decodes] if name == ALONE else self._work
        return run_bare(
            self._model, self._policies[name], "dynamic", work, self._limit,
            clock=CLOCKS[self._args.clock], predictor=self._predictor if name == AUTO else None,
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(
        __doc__, rounds=5, model="embedded", dtype="float32", known_dtypes=("auto", *DTYPES)
    )
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--decodes", type=int, default=16, help="requests that decode")
    parser.add_argument("--decode-tokens", type=int, default=400, help="of each")
    parser.add_argument("--prompts", type=int, default=16, help="that arrive beside them")
    parser.add_argument("--prompt-tokens", type=int, default=700)
    parser.add_argument("--output-tokens", type=int, default=8, help="after each prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", type=Path, help="picture of all token budgets")
    args = parser.parse_args(argv)
    if args.clock == "cpu":
        torch.set_num_threads(1)

    limit = args.decodes + args.prompts
    model = load_model(LoadOptions("dynamic", args.model, "auto", args.dtype, 0, limit))
    model.warm_up()
    sides = Sides(model, model.vocab_size, args)
    turns = {name: partial(sides.play, name) for name in sides.names}
    found = Experiment(turns, METRICS, "orca").run(args.rounds, "long prompts")
    alone = found.turns[ALONE]
    points = {
        name: Point(
            ratio(
                [one.stall(beside) for one, beside in zip(rounds, alone, strict=True)],
                [1.0] * len(rounds),
            ),
            ratio_of(found, name),
        )
        for name, rounds in found.turns.items()
        if name != ALONE
    }
    rows = [
        (
            name,
            f"{point.stall:.2f}",
            *(f"{np.median(found.figures(name, of)):.1f}" for of in ("p99_ms", "ttft_ms")),
            f"{point.throughput:.3f}",
        )
        for name, point in points.items()
    ]
    columns = "| stall: | p99 ITL, ms: | mean TTFT, ms: | tokens/s to orca:"
    card = (
        f"{args.model}, {model.info.dtype}, on {machine()}, {args.clock} seconds\n\n"
        f"{args.prompts} prompts of {args.prompt_tokens} tokens beside {args.decodes} decodes; "
        f"stall: p99 ITL of these, to their ITL without the prompts\n\n{table(columns, rows)}"
    )
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "curve")}
    figures = {name: asdict(point) for name, point in points.items()}
    if args.curve is not None:
        draw(points, args.curve)
    save({**settings, "sides": figures}, card, args.out, f"long-prompts-{file_name(args.model)}")


if __name__ == "__main__":
    main()
