"""Output tokens per second of the three modes, of the original's method and of `transformers`.

    python -m benchmarks.modes                       # fp32 and bf16, gpt2-medium's shape
    python -m benchmarks.modes --http                # also through the server, 64 streams
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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.bare import POLICY_OF, Job, offline_work, run_bare
from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.servers import server
from benchmarks.harness.turns import Ratio, in_turns, ratio
from benchmarks.http.streams import stream_all, text_work
from benchmarks.modes.original import run_original
from generate.modes import ModeName
from model import DTYPES, LoadOptions, load_model
from models.gpt2 import GPT
from models.weights.checkpoint import load_network, save_checkpoint
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.tgi import TGI
from scheduling.prediction.predictor import Predictor
from seams import Policy

NOBATCH_REQUESTS = 8
HTTP_LIMIT = 64
OVER_HTTP, BARE_TEXTS = "dynamic over HTTP, texts", "dynamic, bare, texts"
TRANSFORMERS_REQUESTS = 4
# on average a token takes the original's method 102 positions in the whole work, 93 in these
ORIGINAL_REQUESTS = 4
STALL_FREE = "dynamic, stall-free"
POLICIES: dict[str, Callable[[], Policy]] = {  # `dynamic` alone is orca
    "dynamic, tgi": TGI,
    "dynamic, shortest-first": ShortestFirst,
}


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


def measure_mode(
    method: str, args: argparse.Namespace, dtype: str, limit: int, work: Sequence[Job] | None = None
) -> Result:
    """The bare loop in a mode, which is the first word of the method."""
    mode = cast(ModeName, method.partition(",")[0])
    model = load_model(LoadOptions(mode, args.model, args.device, dtype, 0, limit))
    if work is None:
        work = offline_work(model.vocab_size)[: NOBATCH_REQUESTS if mode == "nobatch" else None]
    model.warm_up()
    if method == STALL_FREE:  # with the step time that it learns in a first run
        predictor = Predictor()
        policy: Policy = StallFree(predictor=predictor)
        run_bare(model, policy, mode, work, limit, predictor=predictor)
        run = run_bare(model, policy, mode, work, limit, predictor=predictor)
    else:
        run = run_bare(model, POLICIES.get(method, POLICY_OF[mode])(), mode, work, limit)
    return Result(dtype, method, limit, len(work), run.tokens, run.seconds)


def measure_http(args: argparse.Namespace, dtype: str) -> Result:
    with server(args.model, dtype, HTTP_LIMIT) as url:
        work = [(text, job.output_tokens) for text, job in text_work(args.model)]
        got = stream_all(url, args.model, work)
    return Result(dtype, OVER_HTTP, HTTP_LIMIT, got.streams, got.tokens, got.seconds)


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
    parser = options(__doc__, model="random:gpt2-medium", dtypes=["float32", "bfloat16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limits", nargs="+", type=int, default=[32, 64], help="batch limits")
    parser.add_argument("--http", action="store_true", help="also 64 streams through the server")
    parser.add_argument("--policies", action="store_true", help="also tgi and shortest-first")
    parser.add_argument("--without-peers", action="store_true", help="our modes only")
    args = parser.parse_args(argv)

    batching = ["static", "dynamic", STALL_FREE, *(POLICIES if args.policies else ())]
    results: list[Result] = []
    with ExitStack() as scratch:
        for dtype in args.dtypes:
            sides = [partial(measure_mode, "nobatch", args, dtype, 1)]
            sides += [
                partial(measure_mode, mode, args, dtype, limit)
                for limit in args.limits
                for mode in batching
            ]
            if args.http:
                texts = [job for _, job in text_work(args.model)]
                sides += [partial(measure_mode, BARE_TEXTS, args, dtype, HTTP_LIMIT, texts)]
                sides += [partial(measure_http, args, dtype)]
            if not args.without_peers:
                sides += peers(args.model, dtype, scratch)
            for rounds in in_turns(dict(enumerate(sides)), args.rounds, dtype).values():
                results += rounds
    report = {
        "model": args.model,
        "results": [{**asdict(r), "tokens_per_s": r.tokens_per_s} for r in results],
        "ratios": {
            dtype: {name: asdict(value) for name, value in pairs.items()}
            for dtype, pairs in ratios(results).items()
        },
    }
    save(report, card(args.model, results), args.out, "modes")


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
        pairs += [((STALL_FREE, n), ("static", n)) for n in (32, 64)]
        pairs += [(("dynamic", n), ("nobatch", 1)) for n in (32, 64)]
        policies = [STALL_FREE, *POLICIES]
        pairs += [((policy, n), ("dynamic", n)) for policy in policies for n in (32, 64)]
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


def card(model: str, results: Sequence[Result]) -> str:
    dtypes = list(dict.fromkeys(r.dtype for r in results))
    speeds = [
        (
            dtype, method, limit, len(rounds), rounds[0].requests, rounds[0].tokens,
            f"{sum(r.tokens for r in rounds) / sum(r.seconds for r in rounds):.1f}",
        )
        for dtype in dtypes
        for (method, limit), rounds in by_method(results, dtype).items()
    ]  # fmt: skip
    pairs = [(d, name, value) for d, own in ratios(results).items() for name, value in own.items()]
    columns = "dtype | method | batch limit | rounds | requests | tokens | output tokens/s"
    return (
        f"{model} on {machine()}\n\n{table(columns, speeds)}\n\n"
        f"{table('dtype | ratio | value (95 %)', pairs)}"
    )


if __name__ == "__main__":
    main()
