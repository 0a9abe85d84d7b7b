"""A model server against a model in the engine's process, two shards against one, and 100 deaths.

    python -m benchmarks.remote                            # all of it
    python -m benchmarks.remote --only speed --rounds 5
    python -m benchmarks.remote --only kills --kills 20

Speed: 64 requests present at once, embedded model and GPT-2 medium's shape, in turns. Shards: the
logits and tokens of two against one. Kills: shards of the embedded model die by SIGKILL, and some
stop (SIGSTOP), at random moments while the batch is full; every answer is compared with an
undisturbed one.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.harness.report import machine, options, save, table
from benchmarks.remote import kills, shards, speed

STOPS_EACH = 10  # SIGKILLs for each SIGSTOP
PATIENCE_S = 5.0
EMBEDDED = "embedded"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, dtype="float32", known_dtypes=("float32", "bfloat16"))
    parser.add_argument("--only", choices=["speed", "shards", "kills"])
    parser.add_argument(
        "--models", nargs="+", default=["embedded", "random:gpt2-medium"], help="of --only speed"
    )
    parser.add_argument(
        "--tokens", type=int, default=40, help="longest output, except for the embedded model"
    )
    parser.add_argument("--kills", type=int, default=100)
    args = parser.parse_args(argv)

    lines = [f"{machine().cpu}, {machine().cores} cores"]
    report: dict[str, object] = {}
    if args.only in (None, "speed"):
        found = [
            speed.measure(model, args.dtype, 200 if model == EMBEDDED else args.tokens, args.rounds)
            for model in args.models
        ]
        report["speed"] = [asdict(one) for one in found]
        lines += [
            "",
            table(
                "64 sequences | tokens/s here: | behind gRPC: | ratio | with --lookahead 1 "
                "| iteration, ms: | more, ms: | empty call, ms: | ratio of processor time",
                [
                    (
                        s.model,
                        f"{s.in_process_tokens_per_s:.0f}",
                        f"{s.remote_tokens_per_s:.0f}",
                        s.ratio,
                        s.ahead_ratio,
                        f"{s.iteration_ms:.2f}",
                        f"{s.added_ms:.2f}",
                        f"{s.round_trip_ms:.2f}",
                        s.cpu_ratio,
                    )
                    for s in found
                ],
            ),
        ]
    if args.only in (None, "shards"):
        agreement = shards.measure(EMBEDDED)
        report["shards"] = asdict(agreement)
        lines += [
            "",
            f"2 shards against 1, {agreement.model}, {agreement.tokens} tokens: "
            f"{agreement.different_tokens} differ beyond ties, logprobs differ by at most "
            f"{agreement.largest_difference:.1e}; an iteration takes {agreement.one_ms:.2f} ms and "
            f"{agreement.two_ms:.2f} ms; an all-reduce of 64 x 1,024 floats "
            f"{agreement.all_reduce_ms:.3f} ms",
        ]
    if args.only in (None, "kills"):
        runs = [kills.measure(EMBEDDED, 2, args.kills, signal.SIGKILL, PATIENCE_S)]
        stops = max(1, args.kills // STOPS_EACH)
        runs.append(kills.measure(EMBEDDED, 2, stops, signal.SIGSTOP, PATIENCE_S))
        report["kills"] = [asdict(run) for run in runs]
        lines += [
            "",
            table(
                "2 shards | deaths: | requests: | preempted: | failed: | answered twice: "
                "| wrong tokens: | recovery, median and most, s:",
                [
                    (
                        f"{run.model}, {run.signal}",
                        run.deaths,
                        run.requests,
                        run.preempted,
                        run.failed,
                        run.answered_twice,
                        run.wrong_tokens,
                        f"{run.median_recovery_s:.2f}, {max(run.recovery_s):.2f}",
                    )
                    for run in runs
                ],
            ),
        ]
    save(report, "\n".join(lines), args.out, "remote")


if __name__ == "__main__":
    main()
