"""The work through the server: streams over loopback, all sent at once, against the bare loop.

    python -m benchmarks.http --streams 512                      # random:gpt2
    python -m benchmarks.http --streams 512 --model embedded     # what HTTP itself sustains

Every stream is counted to its end; one that breaks off or has a different number of tokens than
requested ends the run. The bare loop does the same work, in turns with the server over three
rounds. The client runs on the same machine in a separate process.
"""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass

from benchmarks.bare import POLICY_OF, offline_work, run_bare
from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.servers import server
from benchmarks.harness.turns import in_turns, ratio
from benchmarks.http.streams import stream_all
from model import LoadOptions, load_model
from text.vocabulary import load_tokenizer


@dataclass(frozen=True, slots=True)
class Done:
    tokens: int
    seconds: float
    events: int | None = None  # with tokens; the bare loop has none

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def main() -> None:
    parser = options(__doc__, model="random:gpt2", dtype="bfloat16")
    parser.add_argument("--streams", type=int, default=512, help="default: %(default)s")
    parser.add_argument("--limit", type=int, help="batch limit (default: as many as streams)")
    args = parser.parse_args()
    limit = args.limit or args.streams
    work = offline_work(load_tokenizer(args.model).vocab_size, args.streams)

    def bare() -> Done:
        model = load_model(LoadOptions("dynamic", args.model, "auto", args.dtype, 0, limit))
        model.warm_up()
        run = run_bare(model, POLICY_OF["dynamic"](), "dynamic", work, limit)
        del model
        gc.collect()  # frees its memory before the server starts
        return Done(run.tokens, run.seconds)

    def over_http() -> Done:
        with server(args.model, args.dtype, limit) as url:
            got = stream_all(url, args.model, [(job.prompt, job.output_tokens) for job in work])
        return Done(got.tokens, got.seconds, got.events)

    found = in_turns({"bare": bare, "http": over_http}, args.rounds)
    http_to_bare = ratio(*([one.tokens_per_s for one in found[side]] for side in ("http", "bare")))
    rows = [
        (
            {"bare": "bare loop", "http": "over HTTP"}[side], one.tokens, f"{one.tokens_per_s:.0f}",
            "-" if one.events is None else f"{one.events / one.seconds:.0f}",
        )
        for side, rounds in found.items() for one in rounds
    ]  # fmt: skip
    card = (
        f"{args.model} in {args.dtype}, {args.streams} streams, batch limit {limit}; "
        f"{machine()}\n\n"
        f"{table('| tokens: | output tokens/s: | token events/s:', rows)}\n\n"
        f"over HTTP / bare loop: {http_to_bare}"
    )
    figures = {
        "model": args.model,
        "dtype": args.dtype,
        "limit": limit,
        "streams": args.streams,
        "http_to_bare": asdict(http_to_bare),
        **{side: [asdict(one) for one in rounds] for side, rounds in found.items()},
    }
    save(figures, card, args.out, f"streams-{args.model.replace(':', '-')}")


if __name__ == "__main__":
    main()
