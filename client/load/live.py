"""The live view in the terminal, of the progress that a run exposes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

from tqdm import tqdm

from client.load.http.exchange import Progress
from client.load.workers import Watcher


@contextlib.contextmanager
def live_view(title: str, planned: int, *, leave: bool = True) -> Iterator[Watcher]:
    """A bar with in flight, failed and tokens a second; none without a terminal."""
    with tqdm(
        total=planned, desc=title, unit="req", leave=leave, file=sys.stderr, mininterval=0.25,
        dynamic_ncols=True, disable=None,
    ) as bar:  # fmt: skip
        begun = time.monotonic()

        def watch(progress: Progress) -> None:
            bar.update(progress.done - bar.n)
            rate = progress.tokens / (time.monotonic() - begun)
            failed = f", failed {progress.failed}" if progress.failed else ""
            bar.set_postfix_str(f"in flight {progress.in_flight}{failed}, {rate:.0f} tok/s")

        yield watch


def clock_in(seconds: float) -> str:
    """The time of day after that many seconds."""
    return (datetime.now() + timedelta(seconds=seconds)).strftime("%H:%M:%S")


def say(text: str) -> None:
    """A line of progress that leaves a bar intact; nothing if the terminal was closed."""
    with contextlib.suppress(OSError):
        tqdm.write(text, file=sys.stderr)
