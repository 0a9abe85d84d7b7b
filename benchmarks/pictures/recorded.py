"""Records the runs that the live page and the film show: the same 20 requests in each mode.

    python -m benchmarks.pictures.recorded      # watch/page/recorded/, then docs/img/film.svg

The embedded model with a batch limit of 6, in real time on this machine. Each mode runs five times;
the run of median length is kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.harness.report import cpu_name
from benchmarks.pictures.requests import LIMIT, MODES, Case, run
from model import LoadOptions, load_model
from watch import film
from watch.frames import RECORDED, US, Frame, Hello, Recorded, make_frame

TIMES = 5


def record(case: Case) -> Recorded:
    """The run of median length."""
    runs: list[Frame] = []
    for _ in range(TIMES):
        trace = run(case)
        ends_s = [i.record.end_s for i in trace.inferences if i.record is not None]
        runs.append(make_frame(trace.events, 0, max(ends_s)))
    frame = sorted(runs, key=lambda one: one["now"] - one["arrived"][0].at_us)[TIMES // 2]
    model = load_model(LoadOptions(case.mode, "embedded", "auto", "float32", 0, LIMIT))
    hello: Hello = {
        "mode": case.mode,
        "policy": "orca" if case.mode == "dynamic" else case.mode,
        "model": f"embedded, {cpu_name()}",
        "slots": 1 if case.mode == "nobatch" else LIMIT,
        "blocks": model.num_blocks,
        "block_tokens": model.block_tokens,
        "text": False,
    }
    return Recorded(hello, frame)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RECORDED, help="default: %(default)s")
    parser.add_argument("--film", type=Path, default=Path("docs/img/film.svg"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for case in MODES:
        recorded = record(case)
        path = args.out / f"{case.mode}.json"
        told = {"hello": recorded.hello, "frame": recorded.frame}
        path.write_text(json.dumps(told, separators=(",", ":")) + "\n")
        print(f"{path}: {recorded.frame['now'] / US:.2f} s")
    args.film.write_text(film.film(args.out, ("static", "dynamic")))
    print(args.film)


if __name__ == "__main__":
    main()
