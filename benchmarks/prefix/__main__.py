"""The savings of prefix caching if prompts begin alike, and its cost if none do.

    python -m benchmarks.prefix --dtype bfloat16       # gpt2-medium's shape, 13 minutes
    python -m benchmarks.prefix --model embedded       # a minute
    python -m benchmarks.prefix --only ttft            # a minute
    python -m benchmarks.prefix --clock cpu            # seconds of one thread, on a busy machine

Three parts, each with prefix caching and without it, in turns on the same work:

- TTFT of a prompt of which 90 % were sent before, and whether its tokens are the same;
- tokens per second where no two prompts begin alike;
- capacity: the most requests per second of which 90 % have their first token within the objective,
  twice the TTFT of a request alone without prefix caching. Poisson arrivals; each prompt is one of
  a few system prompts, each sent once before, followed by its own words.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.bare import Job, offline_work
from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.turns import Ratio, in_turns, ratio
from benchmarks.prefix.play import CLOCKS, OUTPUT_TOKENS, Loop, Prefixes, arriving, ttft_s
from model import LoadOptions, load_model
from seams import Model

SHARED_SHARE = 0.9
WITHIN, OBJECTIVE_MULTIPLE = 0.9, 2.0
ARRIVE_FOR = 20  # times the objective
RATE_STEP = 1.25  # from one offered rate to the next
PARTS = "ttft", "overhead", "capacity"


@dataclass(frozen=True, slots=True)
class Ttft:
    """Seconds, and the ratio of a shared prompt to one that is computed whole."""

    whole_s: Sequence[float]
    shared_s: Sequence[float]
    ratio: Ratio
    same_tokens: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests per second within the objective."""

    objective_s: float
    without: float
    cached: float

    @property
    def ratio(self) -> float:
        return self.cached / self.without


def measure_ttft(model: Model, args: argparse.Namespace) -> Ttft:
    prefixes = Prefixes(args.vocab_size, args.seed)
    shared = int(args.prompt_tokens * SHARED_SHARE)
    same = True

    def pair() -> list[Job]:
        beginning = prefixes.tokens(shared)
        rest = args.prompt_tokens - shared
        return [Job(beginning + prefixes.tokens(rest), OUTPUT_TOKENS) for _ in range(2)]

    whole_s: list[float] = []
    shared_s: list[float] = []
    for _ in range(args.rounds):
        first, second = pair()
        plain = Loop(model, 1, prefix_caching=False, clock=args.clock).play([second])
        loop = Loop(model, 1, prefix_caching=True, clock=args.clock)
        loop.play([first])
        hit = loop.play([second])
        same &= plain.outputs == hit.outputs
        whole_s += ttft_s(plain)
        shared_s += ttft_s(hit)
    return Ttft(whole_s, shared_s, ratio(shared_s, whole_s), same)


def measure_overhead(model: Model, args: argparse.Namespace) -> Ratio:
    """Tokens per second with prefix caching to those without, where nothing is shared."""
    numbers = iter(range(args.seed, 10**9))

    def run(work: list[Job], prefix_caching: bool) -> float:
        loop = Loop(model, args.limit, prefix_caching=prefix_caching, clock=args.clock)
        return loop.play(work).tokens_per_s

    cached: list[float] = []
    plain: list[float] = []
    for _ in range(args.rounds):
        work = offline_work(args.vocab_size, args.requests, next(numbers))
        found = in_turns({True: partial(run, work, True), False: partial(run, work, False)}, 2)
        cached.append(max(found[True]))
        plain.append(max(found[False]))
    return ratio(cached, plain)


def measure_capacity(model: Model, args: argparse.Namespace) -> Capacity:
    prefixes = Prefixes(args.vocab_size, args.seed)
    systems = [prefixes.tokens(args.system_tokens) for _ in range(args.systems)]
    work = prefixes.behind(systems, args.requests)
    gaps_s = prefixes.gaps_s(args.requests)
    alone = Loop(model, args.limit, prefix_caching=False, clock=args.clock)
    objective_s = OBJECTIVE_MULTIPLE * ttft_s(alone.play(work[:1]))[0]

    def holds(loop: Loop, rate: float) -> bool:
        # at any rate they arrive during several objectives: one burst within one proves nothing
        wanted = max(args.requests, math.ceil(rate * objective_s * ARRIVE_FOR))
        more = max(0, wanted - len(work))
        work.extend(prefixes.behind(systems, more))
        gaps_s.extend(prefixes.gaps_s(more))
        arrivals_s = np.cumsum(gaps_s[:wanted]) / rate
        played = loop.play(arriving(work[:wanted], arrivals_s.tolist()))
        return float(np.mean(np.array(ttft_s(played)) <= objective_s)) >= WITHIN

    def capacity(prefix_caching: bool) -> float:
        loop = Loop(model, args.limit, prefix_caching=prefix_caching, clock=args.clock)
        loop.play([Job(system, 1) for system in systems])
        rate = 1 / objective_s
        if holds(loop, rate):
            while holds(loop, rate * RATE_STEP):
                rate *= RATE_STEP
            return rate
        while not holds(loop, rate := rate / RATE_STEP):
            pass
        return rate

    return Capacity(objective_s, capacity(False), capacity(True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, model="random:gpt2-medium", dtype="float32")
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--only", choices=PARTS, help="one of the three parts")
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="of the first part")
    parser.add_argument("--system-tokens", type=int, default=512, help="of the third part")
    parser.add_argument("--systems", type=int, default=8, help="system prompts")
    parser.add_argument(
        "--requests", type=int, default=32, help="of the second part; least of the third"
    )
    parser.add_argument("--limit", type=int, default=16, help="batch limit")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.clock == "cpu":
        torch.set_num_threads(1)

    model = load_model(LoadOptions("dynamic", args.model, "cpu", args.dtype, 0, args.limit))
    args.vocab_size = model.vocab_size
    model.warm_up()
    rows: list[tuple[object, ...]] = []
    report: dict[str, object] = {
        "model": args.model,
        "dtype": args.dtype,
        "clock": args.clock,
    }
    same = ""
    for part in tqdm(PARTS if args.only is None else (args.only,), desc="prefix caching"):
        if part == "ttft":
            ttft = measure_ttft(model, args)
            report["ttft"] = asdict(ttft)
            rows.append((
                f"TTFT, {args.prompt_tokens} tokens, 90 % sent before",
                f"{np.median(ttft.whole_s):.3f} s", f"{np.median(ttft.shared_s):.3f} s", ttft.ratio,
            ))  # fmt: skip
            agree = "the same" if ttft.same_tokens else "NOT THE SAME"
            same = f"\n\nTokens with shared blocks: {agree}."
        elif part == "overhead":
            overhead = measure_overhead(model, args)
            report["overhead"] = asdict(overhead)
            rows.append(("tokens/s, nothing shared", "", "", overhead))
        else:
            capacity = measure_capacity(model, args)
            report["capacity"] = {**asdict(capacity), "ratio": capacity.ratio}
            rows.append((
                f"requests/s, {args.systems} system prompts of {args.system_tokens} tokens, TTFT "
                f"within {capacity.objective_s:.2f} s",
                f"{capacity.without:.3f}", f"{capacity.cached:.3f}", f"{capacity.ratio:.1f}",
            ))  # fmt: skip
    card = (
        f"{args.model}, {args.dtype}, on {machine()}, {args.clock} seconds\n\n"
        f"{table('| without prefix caching: | with it: | ratio:', rows)}{same}"
    )
    save(report, card, args.out, f"prefix-{args.dtype}")


if __name__ == "__main__":
    main()
