"""The cost of drawing tokens: tokens per second of the bare loop, greedy and with sampling.

    python -m benchmarks.kernels.sampling             # the embedded model and gpt2-medium's shape
    python -m benchmarks.kernels.sampling --models embedded --dtypes float32 --rounds 5

Each model has 64 requests of the same lengths, all present at once, so that each step draws 64
tokens. Kinds of sampling take turns (see benchmarks/harness/turns.py); ratios are to greedy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from benchmarks.bare import Job, run_bare, threads_kept
from benchmarks.harness.report import options, save, table
from benchmarks.harness.turns import Ratio, in_turns, ratio
from model import LoadOptions, load_model
from requested import Sampling
from runtime.executor import Executor
from scheduling.policies.orca import Orca

ROWS = 64
PROMPT_TOKENS = 16
KINDS = {
    "greedy": Sampling(temperature=0),
    "temperature 0.8": Sampling(temperature=0.8),
    "top_p 0.9": Sampling(temperature=0.8, top_p=0.9),
    "top_k 50, top_p 0.9": Sampling(temperature=0.8, top_k=50, top_p=0.9),
    "min_p 0.1": Sampling(temperature=0.8, min_p=0.1),
    "penalties": Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.5),
}


@dataclass(frozen=True, slots=True)
class Result:
    model: str
    dtype: str
    kind: str
    tokens_per_s: list[float]  # by round
    to_greedy: Ratio


@threads_kept()
def measure(name: str, dtype: str, kinds: list[str], tokens: int, rounds: int) -> list[Result]:
    model = load_model(LoadOptions("dynamic", name, "cpu", dtype, 0, ROWS))
    model.warm_up()
    work = jobs(model.vocab_size, tokens)
    sides = {kind: partial(tokens_per_s, model, work, KINDS[kind]) for kind in kinds}
    run_bare(model, Orca(), "dynamic", jobs(model.vocab_size, 2), ROWS)  # first use
    found = in_turns(sides, rounds)
    return [
        Result(name, dtype, kind, speeds, ratio(speeds, found["greedy"]))
        for kind, speeds in found.items()
    ]


def jobs(vocab_size: int, tokens: int) -> list[Job]:
    rng = np.random.default_rng(0)
    return [Job(rng.integers(0, vocab_size, PROMPT_TOKENS).tolist(), tokens) for _ in range(ROWS)]


def tokens_per_s(model: Executor, work: list[Job], sampling: Sampling) -> float:
    return run_bare(model, Orca(), "dynamic", work, ROWS, sampling).tokens_per_s


def card(results: list[Result]) -> str:
    rows = [
        (r.model, r.dtype, r.kind, f"{float(np.median(r.tokens_per_s)):,.0f}", r.to_greedy)
        for r in results
    ]
    columns = "model | dtype | sampling | tokens/s | to greedy"
    return f"{ROWS} rows, tokens/s of the bare loop\n\n{table(columns, rows)}"


def main() -> None:
    parser = options(__doc__, dtypes=["float32", "bfloat16"])
    parser.add_argument("--models", nargs="+", default=["embedded", "random:gpt2-medium"])
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="compared with greedy"
    )
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each request (32)")
    args = parser.parse_args()
    kinds = list(dict.fromkeys(["greedy", *args.kinds]))
    results = [
        result
        for name in args.models
        for dtype in args.dtypes
        for result in measure(name, dtype, kinds, args.tokens, args.rounds)
    ]
    save({"results": [asdict(r) for r in results]}, card(results), args.out, "sampling")


if __name__ == "__main__":
    main()
