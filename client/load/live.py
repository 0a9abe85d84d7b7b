"""The live view in the terminal, of the progress that `play` exposes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np
from tqdm import tqdm

from client.load.http.exchange import Progress
from client.load.play import Watcher


@contextlib.contextmanager
def live_view(title: str, planned: int, *, leave: bool = True) -> Iterator[Watcher]:
    """A bar with in flight, failed, tokens a second and the tail of TTFT; none without terminal."""
    with tqdm(
        total=planned, desc=title, unit="req", leave=leave, file=sys.stderr, mininterval=0.25,
        dynamic_ncols=True, disable=None,
    ) as bar:  # fmt: skip
        seen = [0, 0.0]

        def watch(progress: Progress) -> None:
            bar.update(progress.done - seen[0])
            seen[0] = progress.done
            if progress.elapsed_s - seen[1] < 0.25 and progress.done < progress.planned:
                return
            seen[1] = progress.elapsed_s
            parts = [f"in flight {progress.in_flight}"]
            if progress.failed:
                parts.append(f"failed {progress.failed}")
            if progress.elapsed_s:
                parts.append(f"{progress.tokens / progress.elapsed_s:.0f} tok/s")
            if progress.ttfts:
                # The whole list would cost the client time in a long run; the recent tail suffices.
                recent = np.quantile(progress.ttfts[-500:], 0.99)
                parts.append(f"p99 TTFT {recent:.2f} s")
            bar.set_postfix_str(", ".join(parts))

        yield watch


def clock_in(seconds: float) -> str:
    """The time of day after that many seconds."""
    return (datetime.now() + timedelta(seconds=seconds)).strftime("%H:%M:%S")


def say(text: str) -> None:
    """A line of progress that leaves a bar intact; nothing if the terminal was closed."""
    with contextlib.suppress(OSError):
        tqdm.write(text, file=sys.stderr)
