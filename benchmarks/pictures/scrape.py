"""Reading `/metrics` during a run, as Prometheus does, with the time of each read."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Read:
    """`values` by name and label; of several labels, by the values of all, with commas."""

    unix_s: float
    values: dict[tuple[str, str], float]


def read(url: str) -> Read:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return Read(time.time(), {(s.name, ",".join(s.labels.values())): s.value for s in samples})


@contextlib.contextmanager
def reading(url: str) -> Iterator[list[Read]]:
    """The list grows until the end of the context."""
    reads = [read(url)]
    done = threading.Event()

    def go_on() -> None:
        while not done.wait(EVERY_S):
            reads.append(read(url))

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield reads
    finally:
        done.set()
        thread.join()
