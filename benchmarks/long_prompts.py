"""The time between tokens of requests that decode while long prompts arrive: orca and stall-free.

    python -m benchmarks.long_prompts                    # the embedded model, two minutes
    python -m benchmarks.long_prompts --model smollm2 --dtype auto --rounds 3

Some requests decode; then long prompts arrive, all at once. Two figures of each side:

- the stall: p99 of the others' ITL from the prompts' arrival to the first token of the last one, as
  a multiple of the ITL of the same tokens where no prompts arrive;
- prompt and output tokens per second, until the last request ends.

The sides take turns in every round. `auto` has learnt its step time in a run that does not count.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.bare import BareRun, Job, jobs, loaded, run_bare
from benchmarks.harness.report import file_name, options, report
from client.experiment import Experiment
from model import DTYPES
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.prediction.predictor import Predictor
from seams import Policy

AUTO = "stall-free, auto"
OTHER_TOKENS = 32  # of the prompts of those that decode
UNDISTURBED = 64  # iterations before the prompts arrive
LEARNING_RUNS = 2
SMOOTHED = 31  # tokens
TINY_S = 1e-9
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LongPromptsRun:
    """One side in one round. The others receive a token in every iteration."""

    itl_s: Floats  # of the others
    disturbed: slice  # while prompts were computed
    ttft_s: float  # of the prompts, the mean
    tokens_per_s: float  # of prompts and output
    alone_s: Floats  # the others' ITL in this round without the prompts

    def stall(self) -> float:
        """p99 of the ITL, as a multiple of that of the same tokens without the prompts: it grows
        with their contexts, so it is smoothed over neighbours."""
        around = np.pad(self.alone_s, SMOOTHED // 2, mode="edge")
        undisturbed_s = np.median(np.lib.stride_tricks.sliding_window_view(around, SMOOTHED), -1)
        return _p99(self.itl_s[self.disturbed] / undisturbed_s[self.disturbed])


METRICS: dict[str, Callable[[LongPromptsRun], float]] = {
    "tokens_per_s": lambda played: played.tokens_per_s,
    "stall": LongPromptsRun.stall,
    "p99_ms": lambda played: 1000 * _p99(played.itl_s[played.disturbed]),
    "ttft_ms": lambda played: 1000 * played.ttft_s,
}


def _p99(values: Floats) -> float:
    return float(np.quantile(values, 0.99, method="higher"))


def work_of(args: argparse.Namespace, vocab_size: int, arrival_s: float) -> list[Job]:
    """Those that decode first."""
    rng, n = np.random.default_rng(args.seed), args.prompts
    others = [OTHER_TOKENS] * args.decodes, [args.decode_tokens] * args.decodes
    prompts = [args.prompt_tokens] * n, [args.output_tokens] * n, [arrival_s] * n
    return jobs(rng, vocab_size, *others) + jobs(rng, vocab_size, *prompts)


def itl_of(run: BareRun) -> Floats:
    """Of the requests that decode from the first iteration on."""
    ends_s = [record.start_s + record.duration_s for record in run.tally.iterations]
    return np.diff(ends_s)


def played(run: BareRun, decodes: int, alone_s: Floats) -> LongPromptsRun:
    """Raises ValueError if the others did not decode beside all prompts."""
    others, prompts = run.inferences[:decodes], run.inferences[decodes:]
    tokens = run.tokens + sum(inference.prompt_tokens for inference in run.inferences)
    first = [inference.first_token_s or math.inf for inference in prompts]
    if max(first) > (ended_s := min(inference.last_token_s or 0.0 for inference in others)):
        missing_s = max(first) - ended_s
        raise ValueError(f"the others ended {missing_s:.3f} s too early: increase --decode-tokens")
    arrival_s = prompts[0].arrival_s
    ends_s = np.array([r.start_s + r.duration_s for r in run.tally.iterations[1:]])
    disturbed = slice(*np.searchsorted(ends_s, [arrival_s, max(first) + TINY_S]).tolist())
    ttft_s = float(np.mean(first)) - arrival_s
    return LongPromptsRun(itl_of(run), disturbed, ttft_s, tokens / run.seconds, alone_s)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(
        __doc__, rounds=5, model="embedded", dtype="float32", known_dtypes=("auto", *DTYPES)
    )
    parser.add_argument("--decodes", type=int, default=16, help="requests that decode")
    parser.add_argument("--decode-tokens", type=int, default=400, help="of each")
    parser.add_argument("--prompts", type=int, default=16, help="that arrive beside them")
    parser.add_argument("--prompt-tokens", type=int, default=700)
    parser.add_argument("--output-tokens", type=int, default=8, help="after each prompt")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    limit = args.decodes + args.prompts
    model = loaded(args.model, args.dtype, limit, device="auto")
    predictor = Predictor()
    policies: dict[str, Policy] = {"orca": Orca(), AUTO: StallFree(predictor=predictor)}

    def run(name: str, work: Sequence[Job]) -> BareRun:
        learning = predictor if name == AUTO else None
        return run_bare(model, policies[name], "dynamic", work, limit, predictor=learning)

    work = work_of(args, model.vocab_size, 0.0)
    for _ in range(LEARNING_RUNS):
        run(AUTO, work)

    def alone(_: int) -> Floats:
        """The ITL of those that decode, without the prompts."""
        return itl_of(run("orca", work[: args.decodes]))

    work = work_of(args, model.vocab_size, float(alone(0)[:UNDISTURBED].sum()))

    def turn(name: str, alone_s: Floats) -> LongPromptsRun:
        return played(run(name, work), args.decodes, alone_s)

    sides = {name: partial(turn, name) for name in policies}
    found = Experiment(sides, METRICS, "orca", alone).run(args.rounds, "long prompts")
    title = (
        f"{args.model}, {model.info.dtype}: {args.prompts} prompts of {args.prompt_tokens} tokens "
        f"beside {args.decodes} decodes"
    )
    also = "stall: p99 ITL of the decodes, to their ITL without the prompts"
    report([found], title, args.out, f"long-prompts-{file_name(args.model)}", also)


if __name__ == "__main__":
    main()
