"""Choices among kernels, measured on this machine and kept in a file beside the compiled ones.

Instructions alone do not determine a kernel's speed: VDPBF16PS does twice the work of float32 on
one processor and half of it on another. The last bits of results depend on a choice, so restarts
read it, and processes that start together measure once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from kernels import cache_folder

log = logging.getLogger(__name__)

# a kernel whose results depend on the other rows, or on how a prompt is divided, must take at most
# this share of the others' time
CLEARLY_FASTER = 0.75

Choices = dict[str, str]


def kept_choices(
    kind: str,
    identity: Callable[[], object],
    keys: Sequence[str],
    allowed: Collection[str],
    measure: Callable[[Sequence[str]], Choices],
) -> Choices:
    """For each key one of `allowed`: what `measure` chose for it, now or earlier. The file's name
    changes with `allowed` and `identity`, on which speed depends. Where there is no file, all are
    measured."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "choice.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # only now: while another thread measures, torch has one thread
            facts = identity(), sorted(allowed)  # where no compiler is, others remain
            digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
            path = folder / f"choice-{kind}-{digest}.json"
            kept = _read(path, allowed)
            if missing := [key for key in keys if key not in kept]:
                start_s = time.perf_counter()
                kept |= measure(missing)
                log.info(
                    "measured %s kernels for %s in %.1f s",
                    kind,
                    ", ".join(missing),
                    time.perf_counter() - start_s,
                )
                aside = path.with_suffix(".new")
                aside.write_text(json.dumps(kept, indent=2) + "\n")
                aside.replace(path)
            return {key: kept[key] for key in keys}
    except (OSError, RuntimeError) as error:  # no home: RuntimeError
        log.warning("the choice of kernels cannot be kept: %s", error)
        return measure(keys)


def best_seconds(
    tried: Sequence[Callable[[], object]], least_rounds: int, least_s: float = 0.0
) -> list[float]:
    """The best CPU time of each. They take turns, in one thread, so that other work on the machine
    changes little, for so many rounds and so much time at least."""
    best, rounds, since_s = [math.inf] * len(tried), 0, time.thread_time()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        while rounds < least_rounds or time.thread_time() - since_s < least_s:
            rounds += 1
            for i, run in enumerate(tried):
                start_s = time.thread_time()
                run()
                best[i] = min(best[i], time.thread_time() - start_s)
    finally:
        torch.set_num_threads(threads)
    return best


def _read(path: Path, allowed: Collection[str]) -> Choices:
    """The valid entries of a file."""
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {key: name for key, name in said.items() if isinstance(name, str) and name in allowed}
