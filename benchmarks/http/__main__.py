"""The work through the server: streams over loopback, all sent at once, against the bare loop.

    python -m benchmarks.http --streams 512                      # random:gpt2
    python -m benchmarks.http --streams 512 --model embedded     # what HTTP itself sustains

Every stream is counted to its end; one that breaks off or has a different number of tokens than
requested ends the run. The bare loop does the same work, in turns with the server over three
rounds. The client runs on the same machine in a separate process.
"""

from __future__ import annotations

import gc

from benchmarks.bare import POLICY_OF, loaded, offline_work, run_bare
from benchmarks.harness.report import options
from benchmarks.harness.servers import server
from benchmarks.http.client import Received
from benchmarks.http.streams import compare, stream_all
from text.vocabulary import load_tokenizer


def main() -> None:
    parser = options(__doc__, model="random:gpt2", dtype="bfloat16")
    parser.add_argument("--streams", type=int, default=512, help="default: %(default)s")
    parser.add_argument("--limit", type=int, help="batch limit (default: as many as streams)")
    args = parser.parse_args()
    limit = args.limit or args.streams
    work = offline_work(load_tokenizer(args.model).vocab_size, args.streams)

    def bare() -> Received:
        model = loaded(args.model, args.dtype, limit, device="auto")
        run = run_bare(model, POLICY_OF["dynamic"](), "dynamic", work, limit)
        del model
        gc.collect()  # frees its memory before the server starts
        return Received(args.streams, lost=0, tokens=run.tokens, events=0, seconds=run.seconds)

    def over_http() -> Received:
        with server(args.model, args.dtype, limit) as url:
            return stream_all(url, args.model, [(job.prompt, job.output_tokens) for job in work])

    title = f"{args.model}, {args.streams} streams, batch limit {limit}"
    sides = {args.dtype: {"over HTTP": over_http, "bare loop": bare}}
    compare(title, sides, args.rounds, args.out, f"streams-{args.model.replace(':', '-')}")


if __name__ == "__main__":
    main()
