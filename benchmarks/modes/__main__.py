"""Output tokens per second of the three modes, of the original's method and of `transformers`.

    python -m benchmarks.modes                       # fp32 and bf16, gpt2-medium's shape
    python -m benchmarks.modes --http                # also through the server, 64 streams
    python -m benchmarks.modes --model random:gpt2 --dtypes bfloat16

One process, the same weights and the same work (see benchmarks/common.py), in turns over three
rounds. The ratios, each taken within a round, are the result; absolute figures depend on the
machine. Slow methods run a stated part of the work: the first requests, complete.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from benchmarks.alternate import ROUNDS, Ratio, in_turns, ratio
from benchmarks.common import Job, machine, offline_work, run_bare, save
from benchmarks.http.__main__ import run_http, text_work
from benchmarks.modes.original import run_original
from generate.modes import ModeName
from model import DTYPES, LoadOptions, load_model
from models.gpt2 import GPT
from models.weights.checkpoint import load_network, save_checkpoint
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from scheduling.policies.tgi import TGI
from seams import Policy

NOBATCH_REQUESTS = 8
HTTP_LIMIT = 64
OVER_HTTP, BARE_TEXTS = "dynamic over HTTP, texts", "dynamic, bare, texts"
TRANSFORMERS_REQUESTS = 4
# on average a token takes the original's method 102 positions in the whole work, 93 in these
ORIGINAL_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Result:
    """A method in one round."""

    dtype: str
    method: str
    limit: int
    requests: int
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


MODES: dict[ModeName, Callable[[], Policy]] = {
    "nobatch": NoBatch,
    "static": lambda: Static(max_wait_s=0.0),
    "dynamic": Orca,
}
POLICIES: dict[str, Callable[[], Policy]] = {
    "dynamic, tgi": TGI,
    "dynamic, stall-free": StallFree,
    "dynamic, shortest-first": ShortestFirst,
}


def measure_mode(mode: str, args: argparse.Namespace, dtype: str, limit: int) -> Result:
    kind = cast(ModeName, mode.partition(",")[0])
    make_policy = POLICIES.get(mode, MODES[kind])
    model = load_model(LoadOptions(kind, args.model, args.device, dtype, 0, limit))
    work = offline_work(model.vocab_size)
    if mode == "nobatch":
        work = work[:NOBATCH_REQUESTS]
    model.warm_up()
    run = run_bare(model, make_policy(), kind, work, limit)
    tokens = sum(record.generated for record in run.tally.requests)
    return Result(dtype, mode, limit, len(work), tokens, run.seconds)


def measure_bare_texts(args: argparse.Namespace, dtype: str) -> Result:
    """The bare loop on the prompts that are sent over HTTP."""
    work = [job for _, job in text_work(args.model)]
    model = load_model(LoadOptions("dynamic", args.model, args.device, dtype, 0, HTTP_LIMIT))
    model.warm_up()
    run = run_bare(model, Orca(), "dynamic", work, HTTP_LIMIT)
    tokens = sum(record.generated for record in run.tally.requests)
    return Result(dtype, BARE_TEXTS, HTTP_LIMIT, len(work), tokens, run.seconds)


def measure_http(args: argparse.Namespace, dtype: str) -> Result:
    tokens, seconds = run_http(args.model, dtype, HTTP_LIMIT)
    return Result(dtype, OVER_HTTP, HTTP_LIMIT, 64, tokens, seconds)


def measure_original(network: GPT, dtype: str) -> Result:
    work = offline_work(network.config.vocab_size)[:ORIGINAL_REQUESTS]
    run_original(network, [Job(work[0].prompt, 1)])
    outputs, seconds = run_original(network, work)
    tokens = sum(len(output) for output in outputs)
    return Result(dtype, "the original's method", len(work), len(work), tokens, seconds)


def measure_transformers(network: GPT, folder: Path, dtype: str) -> Result:
    """`generate` with its KV cache, one request after the other."""
    from transformers import GPT2LMHeadModel

    save_checkpoint(network, folder, DTYPES[dtype])
    peer: Any = GPT2LMHeadModel.from_pretrained(folder, dtype=DTYPES[dtype])
    peer.train(mode=False)

    def generate(job: Job) -> int:
        ids = torch.tensor([job.prompt])
        out = peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=job.output_tokens,
            min_new_tokens=job.output_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )
        return int(out.shape[1]) - len(job.prompt)

    work = offline_work(network.config.vocab_size)[:TRANSFORMERS_REQUESTS]
    generate(Job(work[0].prompt, 4))
    start_s = time.perf_counter()
    tokens = sum(generate(job) for job in work)
    seconds = time.perf_counter() - start_s
    return Result(dtype, "transformers, one by one", 1, len(work), tokens, seconds)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="random:gpt2-medium", help="default: %(default)s")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=DTYPES)
    parser.add_argument("--limits", nargs="+", type=int, default=[32, 64], help="batch limits")
    parser.add_argument("--http", action="store_true", help="also 64 streams through the server")
    parser.add_argument("--policies", action="store_true", help="also dynamic's other policies")
    parser.add_argument("--without-peers", action="store_true", help="our modes only")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and Markdown")
    args = parser.parse_args(argv)

    results: list[Result] = []
    batching = ["static", "dynamic", *(POLICIES if args.policies else ())]
    per_dtype = 1 + len(batching) * len(args.limits) + 2 * (not args.without_peers) + 2 * args.http
    steps = args.rounds * len(args.dtypes) * per_dtype
    with tqdm(total=steps, desc="benchmark", file=sys.stderr) as bar, ExitStack() as scratch:

        def shown(measure: Callable[[], Result]) -> Callable[[], Result]:
            def turn() -> Result:
                result = measure()
                said = f"{result.method} {result.dtype} {result.tokens_per_s:.0f} tok/s"
                bar.set_postfix_str(said)
                bar.update()
                gc.collect()  # frees a model before the next one is loaded
                return result

            return turn

        for dtype in args.dtypes:
            sides = [partial(measure_mode, "nobatch", args, dtype, 1)]
            sides += [
                partial(measure_mode, mode, args, dtype, limit)
                for limit in args.limits
                for mode in batching
            ]
            if args.http:
                sides += [partial(measure_bare_texts, args, dtype)]
                sides += [partial(measure_http, args, dtype)]
            if not args.without_peers:
                sides += peers(args.model, dtype, scratch)
            turns = {number: shown(side) for number, side in enumerate(sides)}
            for rounds in in_turns(turns, args.rounds).values():
                results += rounds
    report = {
        "model": args.model,
        "results": [{**asdict(r), "tokens_per_s": r.tokens_per_s} for r in results],
        "ratios": {
            dtype: {name: asdict(value) for name, value in pairs.items()}
            for dtype, pairs in ratios(results).items()
        },
    }
    save(report, table(args.model, results), args.out, "modes")


def peers(model: str, dtype: str, scratch: ExitStack) -> list[partial[Result]]:
    """The original's method and `transformers`, on separate weights that both use."""
    network = load_network(model, torch.device("cpu"), DTYPES[dtype], 0)
    folder = Path(scratch.enter_context(tempfile.TemporaryDirectory()))
    return [
        partial(measure_original, network, dtype),
        partial(measure_transformers, network, folder, dtype),
    ]


def by_method(results: Sequence[Result], dtype: str) -> dict[tuple[str, int], list[Result]]:
    """Each method's rounds at a limit, in order."""
    found: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        if result.dtype == dtype:
            found.setdefault((result.method, result.limit), []).append(result)
    return found


def ratios(results: Sequence[Result]) -> dict[str, dict[str, Ratio]]:
    """Of tokens/s, within this run."""
    found: dict[str, dict[str, Ratio]] = {}
    for dtype in dict.fromkeys(r.dtype for r in results):
        speed = {
            at: [r.tokens_per_s for r in rounds] for at, rounds in by_method(results, dtype).items()
        }
        pairs = [(("dynamic", n), ("static", n)) for n in (32, 64)]
        pairs += [(("dynamic", n), ("nobatch", 1)) for n in (32, 64)]
        pairs += [((policy, n), ("dynamic", n)) for policy in POLICIES for n in (32, 64)]
        pairs += [
            (("dynamic", 64), ("the original's method", ORIGINAL_REQUESTS)),
            (("nobatch", 1), ("transformers, one by one", 1)),
            ((OVER_HTTP, HTTP_LIMIT), (BARE_TEXTS, HTTP_LIMIT)),
        ]
        found[dtype] = {
            f"{a[0]} at {a[1]} / {b[0]}": ratio(speed[a], speed[b])
            for a, b in pairs
            if a in speed and b in speed
        }
    return found


def table(model: str, results: Sequence[Result]) -> str:
    where = machine()
    lines = [
        f"{model} on {where.cpu}, {where.cores} cores, torch {where.torch}",
        "",
        "| dtype | method | batch limit | rounds | requests | tokens | output tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype in dict.fromkeys(r.dtype for r in results):
        for (method, limit), rounds in by_method(results, dtype).items():
            r, speed = rounds[0], sum(r.tokens for r in rounds) / sum(r.seconds for r in rounds)
            lines.append(
                f"| {dtype} | {method} | {limit} | {len(rounds)} | {r.requests} | {r.tokens} "
                f"| {speed:.1f} |"
            )
    lines += ["", "| dtype | ratio | value (95 %) |", "|---|---|---|"]
    lines += [
        f"| {dtype} | {name} | {value} |"
        for dtype, pairs in ratios(results).items()
        for name, value in pairs.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
