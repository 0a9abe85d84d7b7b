"""Names that other load generators use, translated into this client's own options.

The names of ``vllm bench serve``, guidellm and aiperf have the meaning that they have there.
"""

from __future__ import annotations

import argparse
import math

from client.workloads.spec import SpecError, refuse_given


def add_aliases(parser: argparse.ArgumentParser) -> None:
    """Options that need a translation; plain synonyms are listed with the option they mean."""
    group = parser.add_argument_group("names of vllm bench serve, guidellm and aiperf")
    group.add_argument(
        "--base-url", "--url", metavar="URL", help="a server of OpenAI's API: --target openai+URL"
    )
    group.add_argument(
        "--request-rate", type=float, metavar="RATE", help="--rate; inf: --arrivals burst"
    )
    group.add_argument(
        "--burstiness", type=float, metavar="K", help="--arrivals gamma:burstiness=K"
    )
    group.add_argument(
        "--max-concurrency", "--concurrency", type=int, metavar="N",
        help="--arrivals closed:users=N",
    )  # fmt: skip
    group.add_argument(
        "--random-input-len", "--isl", type=int, metavar="N", help="--prompt-tokens fixed:N"
    )
    group.add_argument(
        "--random-output-len", "--osl", type=int, metavar="N", help="--output-tokens fixed:N"
    )
    group.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS",
        help="--slo; without a unit in ms: --goodput ttft:500 tpot:50",
    )  # fmt: skip


def translate(args: argparse.Namespace) -> None:
    """Set the client's own options from the other names. SpecError if both are given."""
    if args.base_url is not None:
        refuse_given(args, ["--target"], "with --base-url, which says the same")
        args.target = f"openai+{args.base_url.rstrip('/').removesuffix('/v1')}"
    if args.max_concurrency is not None:
        if args.request_rate is not None and math.isfinite(args.request_rate):
            raise SpecError(
                "--max-concurrency has no effect with a rate: an open loop never holds a request "
                "back, since that would hide the latency to be measured; leave one of them out"
            )
        refuse_given(args, ["--burstiness"], "with --max-concurrency, which sends after responses")
        _arrivals(args, f"closed:users={args.max_concurrency}", "--max-concurrency")
    elif args.request_rate is not None:
        refuse_given(args, ["--rate"], "with --request-rate, which says the same")
        if args.request_rate == math.inf:
            refuse_given(args, ["--burstiness"], "with --request-rate inf, which sends all at once")
            _arrivals(args, "burst", "--request-rate inf")
        else:
            args.rate = args.request_rate
    if args.burstiness is not None:
        _arrivals(args, f"gamma:burstiness={args.burstiness:g}", "--burstiness")
    if args.random_input_len is not None:
        refuse_given(args, ["--prompt-tokens"], "with --random-input-len, which says the same")
        args.prompt_tokens = f"fixed:{args.random_input_len}"
    if args.random_output_len is not None:
        refuse_given(args, ["--output-tokens"], "with --random-output-len, which says the same")
        args.output_tokens = f"fixed:{args.random_output_len}"
    if args.goodput is not None:
        refuse_given(args, ["--slo"], "with --goodput, which says the same")
        args.slo = ",".join(_in_ms(part) for part in args.goodput)


def _arrivals(args: argparse.Namespace, shape: str, option: str) -> None:
    refuse_given(args, ["--arrivals"], f"with {option}, which says how requests arrive")
    args.arrivals = shape


def _in_ms(part: str) -> str:
    """One objective of vLLM's: ``e2el`` is E2E, a bare number is milliseconds."""
    name, colon, value = part.partition(":")
    name = "e2e" if name == "e2el" else name
    return f"{name}{colon}{value}" + ("ms" if value and value[-1].isdigit() else "")
