"""The savings of prefix caching if prompts begin alike, and its cost if none do.

    python -m benchmarks.prefix --dtype bfloat16       # gpt2-medium's shape, some minutes
    python -m benchmarks.prefix --model embedded

Two parts, each with prefix caching and without it, in turns on the same work: TTFT of a prompt of
which 90 % were sent before, and whether its tokens are the same; and tokens per second where no two
prompts begin alike.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.bare import BareRun, Job, loaded, offline_work, run_bare
from benchmarks.harness.report import options, report
from client.experiment import Experiment, Found
from engine.blocks import Ledger
from scheduling.policies.orca import Orca
from seams import Model

SHARED_SHARE = 0.9
OUTPUT_TOKENS = 8
WITHOUT, WITH = "without", "with"
CACHES = {WITHOUT: False, WITH: True}


def play(model: Model, works: Sequence[list[Job]], limit: int, side: str) -> BareRun:
    """The last of the works, after the others over the same ledger."""
    ledger = Ledger(model.num_blocks, model.block_tokens, prefix_caching=CACHES[side])
    runs = [run_bare(model, Orca(), "dynamic", work, limit, ledger=ledger) for work in works]
    return runs[-1]


def ttft(model: Model, args: Namespace, vocab_size: int) -> Found:
    rng = np.random.default_rng(args.seed)
    shared = int(args.prompt_tokens * SHARED_SHARE)

    def pair(_: int) -> tuple[list[Job], list[Job]]:
        """Of prompts that begin alike."""
        first, second = rng.integers(0, vocab_size, (2, args.prompt_tokens)).tolist()
        return [Job(first, OUTPUT_TOKENS)], [Job(first[:shared] + second[shared:], OUTPUT_TOKENS)]

    sides = {
        WITHOUT: lambda pair: play(model, pair[1:], 1, WITHOUT),
        WITH: lambda pair: play(model, pair, 1, WITH),
    }
    metrics: dict[str, Callable[[BareRun], float]] = {"s": lambda run: run.ttft_s()[0]}
    of = {"what": f"TTFT, {args.prompt_tokens} tokens, 90 % sent before"}
    return Experiment(sides, metrics, WITHOUT, pair, of).run(args.rounds)


def overhead(model: Model, args: Namespace, vocab_size: int) -> Found:
    """Seconds of work in which nothing is shared; the better of two runs each."""

    def side(name: str) -> Callable[[list[Job]], float]:
        return lambda work: min(play(model, [work], args.limit, name).seconds for _ in range(2))

    def work(number: int) -> list[Job]:
        return offline_work(vocab_size, args.requests, args.seed + number)

    sides, of = {name: side(name) for name in CACHES}, {"what": "work that shares nothing"}
    return Experiment(sides, {"s": float}, WITHOUT, work, of).run(args.rounds)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, model="random:gpt2-medium", dtype="float32")
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="of the first part")
    parser.add_argument("--requests", type=int, default=32, help="of the second part")
    parser.add_argument("--limit", type=int, default=16, help="batch limit of the second part")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    model = loaded(args.model, args.dtype, args.limit)
    found = [measure(model, args, model.vocab_size) for measure in (ttft, overhead)]
    outputs = [[run.outputs for run in runs] for runs in found[0].turns.values()]
    same = "the same" if outputs[0] == outputs[1] else "NOT THE SAME"
    also = f"Tokens with shared blocks: {same}."
    title = f"{args.model}, {args.dtype}"
    report(found, title, args.out, f"prefix-{args.dtype}", also, same_tokens=same)


if __name__ == "__main__":
    main()
