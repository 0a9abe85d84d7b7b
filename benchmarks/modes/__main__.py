"""Output tokens per second of the three modes, of the original's method and of `transformers`.

    python -m benchmarks.modes                       # fp32 and bf16, gpt2-medium's shape
    python -m benchmarks.modes --http                # also through the server
    python -m benchmarks.modes --model random:gpt2 --dtypes bfloat16

Dynamic runs under two policies: `orca`, and `stall-free`, the default of the server. One process,
the same weights and the same work (see benchmarks/bare.py), in turns over three rounds. The ratios,
each taken within a round, are the result; absolute figures depend on the machine. Slow methods run
a stated part of the work: the first requests, complete.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.bare import POLICY_OF, Job, loaded, offline_work, run_bare
from benchmarks.harness.report import options, report, table
from benchmarks.harness.servers import server
from benchmarks.harness.turns import Ratio, ratio_of
from benchmarks.http.streams import stream_all
from benchmarks.modes.original import run_original
from client.experiment import Experiment, Found
from generate.modes import ModeName
from model import DTYPES
from models.gpt2 import GPT
from models.weights.loader import load_network, save_checkpoint
from scheduling.policies.stall_free import StallFree
from scheduling.prediction.predictor import Predictor
from seams import Policy
from text.vocabulary import load_tokenizer

NOBATCH_REQUESTS = 8
OVER_HTTP = "dynamic over HTTP"
TRANSFORMERS, TRANSFORMERS_REQUESTS = "transformers, one by one", 4
# on average a token takes the original's method 102 positions in the whole work, 93 in these
ORIGINAL, ORIGINAL_REQUESTS = "the original's method", 4
STALL_FREE = "dynamic, stall-free"


@dataclass(frozen=True, slots=True)
class Turn:
    requests: int
    tokens: int
    seconds: float


METRICS: dict[str, Callable[[Turn], float]] = {
    "tokens_per_s": lambda turn: turn.tokens / turn.seconds,
    "tokens": lambda turn: turn.tokens,
    "requests": lambda turn: turn.requests,
}


def measure_mode(method: str, limit: int, name: str, dtype: str, _: int) -> Turn:
    """The bare loop in a mode, which is the first word of the method."""
    mode = cast(ModeName, method.partition(",")[0])
    model = loaded(name, dtype, limit, mode, "auto")
    work = offline_work(model.vocab_size)[: NOBATCH_REQUESTS if mode == "nobatch" else None]
    if method == STALL_FREE:  # with the step time that it learns in a first run
        predictor = Predictor()
        policy: Policy = StallFree(predictor=predictor)
        run_bare(model, policy, mode, work, limit, predictor=predictor)
        run = run_bare(model, policy, mode, work, limit, predictor=predictor)
    else:
        run = run_bare(model, POLICY_OF[mode](), mode, work, limit)
    return Turn(len(work), run.tokens, run.seconds)


def measure_http(limit: int, name: str, dtype: str, _: int) -> Turn:
    work = offline_work(load_tokenizer(name).vocab_size)
    with server(name, dtype, limit) as url:
        got = stream_all(url, name, [(job.prompt, job.output_tokens) for job in work])
    return Turn(got.streams, got.tokens, got.seconds)


def measure_original(network: GPT, _: int) -> Turn:
    work = offline_work(network.config.vocab_size)[:ORIGINAL_REQUESTS]
    run_original(network, [Job(work[0].prompt, 1)])
    outputs, seconds = run_original(network, work)
    return Turn(len(work), sum(len(output) for output in outputs), seconds)


def measure_transformers(network: GPT, folder: Path, dtype: str, _: int) -> Turn:
    """`generate` with its KV cache, one request after the other."""
    from transformers import GPT2LMHeadModel

    save_checkpoint(network, folder, DTYPES[dtype])
    peer: Any = GPT2LMHeadModel.from_pretrained(folder, dtype=DTYPES[dtype])
    peer.train(mode=False)

    def generate(job: Job) -> int:
        ids = torch.tensor([job.prompt])
        out = peer.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=job.output_tokens,
            min_new_tokens=job.output_tokens, do_sample=False, use_cache=True, pad_token_id=0,
        )  # fmt: skip
        return int(out.shape[1]) - len(job.prompt)

    work = offline_work(network.config.vocab_size)[:TRANSFORMERS_REQUESTS]
    generate(Job(work[0].prompt, 4))
    start_s = time.perf_counter()
    tokens = sum(generate(job) for job in work)
    seconds = time.perf_counter() - start_s
    return Turn(len(work), tokens, seconds)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, model="random:gpt2-medium", dtypes=["float32", "bfloat16"])
    parser.add_argument("--limits", nargs="+", type=int, default=[32, 64], help="batch limits")
    parser.add_argument("--http", action="store_true", help="also 64 streams through the server")
    parser.add_argument("--without-peers", action="store_true", help="our modes only")
    args = parser.parse_args(argv)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in args.dtypes:
            sides = sides_of(args, dtype, Path(scratch) / dtype)
            experiment = Experiment(sides, METRICS, "nobatch at 1", of={"dtype": dtype})
            found.append(experiment.run(args.rounds, dtype))
    pairs = [(o.experiment.of["dtype"], *pair) for o in found for pair in ratios(o, args.limits)]
    also = table("dtype | ratio | value (95 %)", pairs)
    report(found, args.model, args.out, "modes", also, model=args.model)


def sides_of(
    args: argparse.Namespace, dtype: str, folder: Path
) -> dict[str, Callable[[int], Turn]]:
    """By method and batch limit."""
    kinds = [("nobatch", 1), *product(("static", "dynamic", STALL_FREE), args.limits)]
    sides: dict[str, Callable[[int], Turn]] = {
        f"{method} at {limit}": partial(measure_mode, method, limit, args.model, dtype)
        for method, limit in kinds
    }
    if args.http:
        sides[OVER_HTTP] = partial(measure_http, max(args.limits), args.model, dtype)
    if not args.without_peers:  # on separate weights that both use
        network = load_network(args.model, DTYPES[dtype])
        sides[ORIGINAL] = partial(measure_original, network)
        sides[TRANSFORMERS] = partial(measure_transformers, network, folder, dtype)
    return sides


def ratios(found: Found, limits: Sequence[int]) -> list[tuple[str, Ratio]]:
    """Of tokens/s, within this run: those of like with like."""
    pairs = [
        (f"{method} at {n}", f"{base} at {n}")
        for method, base in (("dynamic", "static"), (STALL_FREE, "static"), (STALL_FREE, "dynamic"))
        for n in limits
    ]
    pairs += [(f"dynamic at {n}", "nobatch at 1") for n in limits]
    pairs += [
        (f"dynamic at {max(limits)}", ORIGINAL), ("nobatch at 1", TRANSFORMERS),
        (OVER_HTTP, f"dynamic at {max(limits)}"),
    ]  # fmt: skip
    known = [(of, to) for of, to in pairs if {of, to} <= found.turns.keys()]
    return [(f"{of} / {to.removesuffix(' at 1')}", ratio_of(found, of, to)) for of, to in known]


if __name__ == "__main__":
    main()
