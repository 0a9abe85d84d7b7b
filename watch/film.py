"""The runs of a folder side by side on one clock, as an animated SVG.

    python -m watch.film FOLDER [--modes static,dynamic] [--out film.svg]

FOLDER holds a file for each server, written by `--record FOLDER/NAME.jsonl`; without FOLDER, the
film shows the runs that ship with the live page. A renderer that does not animate shows the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from seams import KINDS
from watch.frames import RECORDED, US, ArrivedColumns, Recorded, RunError, read_folder

WIDTH, MARGIN, ROW, HEAD, GAP, FOOT = 900, 14, 5, 26, 10, 62
PLAY_S, HOLD_S = 8.0, 4.0
MOST_ROWS = 60  # requests of a run: the first to arrive
SAYS = {
    "nobatch": "one at a time",
    "static": "a batch starts and ends together",
    "dynamic": "requests join and leave at every iteration",
}
LEGEND = (
    ("waiting", "waits"),
    ("prefill", "prefill: reads the prompt"),
    ("decode", "decode: one token per iteration"),
    ("held", "done, row still computed"),
)
STYLE = """
text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#20242a}
.b{font-weight:600}.dim{fill:#646b75;font-size:12px}.done{fill:#23834a;font-weight:600}
.back{fill:#fff}.panel{fill:#f6f7f9}.head{fill:#20242a}
.waiting{fill:#d5d5d5}.prefill{fill:#e8833a}.chunk{fill:#f3b27f}.decode{fill:#3b75af}
.held{fill:url(#h)}.paused{fill:#b9bec6}.hb{fill:#9fc3e0}.hs{stroke:#fff}
@media (prefers-color-scheme:dark){
text{fill:#e4e8ee}.dim{fill:#98a1ad}.done{fill:#58c786}
.back{fill:#14171c}.panel{fill:#1b2027}.head{fill:#fff}
.waiting{fill:#4b525c}.prefill{fill:#ee8d45}.chunk{fill:#a8673a}.decode{fill:#5a97d3}
.paused{fill:#646c78}.hb{fill:#37587a}.hs{stroke:#14171c}}
""".replace("\n", "")


def film(folder: Path, modes: Sequence[str] = ()) -> str:
    """The runs of these modes, or of all. Raises watch.frames.RunError."""
    runs = [run for run in read_folder(folder) if not modes or run.hello["mode"] in modes]
    if not runs:
        raise RunError(f"{folder}: no run of the modes {', '.join(modes)}")
    quickest = min(runs, key=lambda run: _end_us(run) - _zero_us(run))
    span_us = max(_end_us(run) - _zero_us(run) for run in runs)
    took = ", ".join(
        f"{(_end_us(run) - _zero_us(run)) / US:.2f} s with {run.hello['mode']}" for run in runs
    )
    heights = [HEAD + ROW * len(_shown(run)) + GAP for run in runs]
    height = sum(heights) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>The same {len(_shown(runs[0]))} requests took {escape(took)}.</title>"
        f"<style>{STYLE}</style>",
        '<defs><pattern id="h" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="hb" d="M0 0h6v6H0z"/>'
        '<path class="hs" d="M0 0v6" stroke-width="3"/></pattern>',
        f'<clipPath id="c"><rect x="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{height}">'
        f"{_moves('width', 0, WIDTH - 2 * MARGIN)}</rect></clipPath></defs>",
        f'<path class="back" d="M0 0h{WIDTH}v{height}H0z"/>',
    ]
    top = 4
    for run, tall in zip(runs, heights, strict=True):
        parts += _panel(run, top, span_us, run is quickest)
        top += tall
    parts += _foot(runs[0], top, span_us)
    parts.append(
        f'<rect class="head" x="{WIDTH - MARGIN}" y="4" width="1.5" height="{top - 8}">'
        f"{_moves('x', MARGIN, WIDTH - MARGIN)}</rect></svg>\n"
    )
    return "".join(parts)


def _zero_us(run: Recorded) -> int:
    return min((row.at_us for row in run.frame["arrived"]), default=0)


def _end_us(run: Recorded) -> int:
    shown = {row.request for row in _shown(run)}
    return max(
        (row.end_us for row in run.frame["ended"] if row.request in shown),
        default=run.frame["now"],
    )


def _shown(run: Recorded) -> Sequence[ArrivedColumns]:
    return sorted(run.frame["arrived"], key=lambda row: row.at_us)[:MOST_ROWS]


def _x(us: float, span_us: int) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * us / span_us


def _panel(run: Recorded, top: int, span_us: int, quickest: bool) -> Iterator[str]:
    shown, zero, iterations = _shown(run), _zero_us(run), run.frame["iterations"]
    mode, first = run.hello["mode"], run.frame["first"]
    yield (
        f'<text class="b" x="{MARGIN}" y="{top + 16}">{escape(mode)}</text>'
        f'<text class="dim" x="{MARGIN + 74}" y="{top + 16}">{escape(SAYS.get(mode, ""))}</text>'
    )
    yield from _score(run, top, span_us, quickest)
    top += HEAD
    yield (
        f'<path class="panel" d="M{MARGIN} {top - 2}h{WIDTH - 2 * MARGIN}v{ROW * len(shown) + 2}'
        f'H{MARGIN}z"/><g clip-path="url(#c)">'
    )
    line = {row.request: i for i, row in enumerate(shown)}
    bars: dict[str, list[str]] = {"waiting": []}
    ends = {row.request: row.end_us for row in run.frame["ended"]}

    def bar(kind: str, request: int, start_us: int, end_us: int) -> None:
        x, wide = _x(start_us - zero, span_us), (end_us - start_us) * (WIDTH - 2 * MARGIN) / span_us
        y = top + ROW * line[request]
        bars.setdefault(kind, []).append(
            f"M{x:.1f} {y}h{max(wide, 0.6):.1f}v{ROW - 2}h-{max(wide, 0.6):.1f}z"
        )

    for row in shown:
        bar("waiting", row.request, row.at_us, ends.get(row.request, run.frame["now"]))
    held: list[tuple[int, int, int]] = []  # how long, request, end
    for part in run.frame["runs"]:
        if part.request in line:
            last = iterations[part.first + part.length - 1 - first]
            start_us = iterations[part.first - first].start_us
            end_us = last.start_us + last.duration_us
            bar(KINDS[part.kind], part.request, start_us, end_us)
            if KINDS[part.kind] == "held":
                held.append((end_us - start_us, part.request, end_us))
    for kind, paths in bars.items():
        yield f'<path class="{kind}" d="{"".join(paths)}"/>'
    slack_us = span_us // 100  # a response leaves a little after its last iteration
    free = [  # there is room to the right of these, and nothing is drawn in the rows beside it
        piece
        for piece in held
        if piece[2] - zero < span_us * 0.7
        and all(ends[row.request] <= piece[2] + slack_us for row in shown[: line[piece[1]] + 3])
    ]
    if free:
        _, request, end_us = max(free)
        yield (
            f'<text class="dim" x="{_x(end_us - zero, span_us) + 6:.1f}" '
            f'y="{top + ROW * line[request] + ROW}">done, yet computed until its batch ends</text>'
        )
    yield "</g>"


def _score(run: Recorded, top: int, span_us: int, quickest: bool) -> Iterator[str]:
    """The number of completed requests, over time."""
    zero, shown = _zero_us(run), {row.request for row in _shown(run)}
    ends = sorted(row.end_us - zero for row in run.frame["ended"] if row.request in shown)
    whole = PLAY_S + HOLD_S
    edges = [0.0, *(PLAY_S * end / span_us / whole for end in ends), 1.0]
    for n, (since, until) in enumerate(pairwise(edges)):
        last = n == len(ends)
        words = f"{n} of {len(shown)} completed"
        if last and ends:
            words = f"all {n} completed after {ends[-1] / US:.2f} s"
        yield (
            f'<text class="{"done" if last and quickest else "dim"}" x="{WIDTH - MARGIN}" '
            f'y="{top + 16}" text-anchor="end" opacity="{int(last)}">{words}'
            f'<animate attributeName="opacity" calcMode="discrete" dur="{whole}s" '
            f'repeatCount="indefinite" values="0;1;0" keyTimes="0;{since:.4f};{until:.4f}"/></text>'
        )


def _foot(run: Recorded, top: int, span_us: int) -> Iterator[str]:
    steps = next(
        s for s in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 600) if s * US * 12 > span_us
    )
    at = 0.0
    while at * US < span_us * 0.98:
        x = _x(at * US, span_us)
        words, anchor = (f"{at:g} s", "middle") if at else ("0", "start")
        yield f'<text class="dim" x="{x:.1f}" y="{top + 8}" text-anchor="{anchor}">{words}</text>'
        at = round(at + steps, 6)
    x = MARGIN
    for kind, words in LEGEND:
        yield (
            f'<path class="{kind}" d="M{x} {top + 20}h20v9h-20z"/>'
            f'<text class="dim" x="{x + 26}" y="{top + 29}">{words}</text>'
        )
        x += 46 + 6 * len(words)
    slower = PLAY_S / (span_us / US)
    speed = f"slowed {slower:.1f} times" if slower > 1 else f"{1 / slower:.1f} times as fast"
    hello = run.hello
    yield (
        f'<text class="dim" x="{MARGIN}" y="{top + 50}">One row is one request. '
        f"Model: {escape(hello['model'])}; {speed}.</text>"
    )


def _moves(attribute: str, start: float, end: float) -> str:
    share = PLAY_S / (PLAY_S + HOLD_S)
    return (
        f'<animate attributeName="{attribute}" dur="{PLAY_S + HOLD_S}s" repeatCount="indefinite" '
        f'values="{start};{end};{end}" keyTimes="0;{share:.4f};1"/>'
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=RECORDED)
    parser.add_argument("--modes", default="", help="such as static,dynamic; default: all")
    parser.add_argument("--out", type=Path, default=Path("film.svg"), help="default: %(default)s")
    args = parser.parse_args(arguments)
    modes = [mode for mode in args.modes.split(",") if mode]
    try:
        args.out.write_text(film(args.folder, modes))
    except (RunError, OSError) as error:
        sys.exit(f"watch.film: {error}")
    print(args.out)


if __name__ == "__main__":
    main()
