"""Does the work with one peer, in the peer's own environment; independent of our engine.

    python -P runner.py TASK.json RESULT.json

Only this folder of the project can be imported, since names of its other modules are also used by
peers. Each `engines/with_PEER.py` has a `load(task)`, which returns the engine, ready, with a
description of its settings.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Task:
    runner: str  # a module of engines/
    folder: str  # the weights, as a Hugging Face checkpoint in float32
    file: str  # the weights, as a GGUF file; empty for engines that do not read it
    dtype: str  # float32, bfloat16, int8, or what the file has: q8_0, q4_0, file
    limit: int  # requests that may run at once
    prompts: list[list[int]]
    output_tokens: list[int]


# prompts and output lengths in; the output tokens of each request out
Generate = Callable[[list[list[int]], list[int]], list[list[int]]]


@dataclass(frozen=True, slots=True)
class PeerEngine:
    generate: Generate
    settings: str


@dataclass(frozen=True, slots=True)
class Done:
    seconds: float
    outputs: list[list[int]]
    settings: str
    passes: list[Any] = field(default_factory=list)  # ours: limits.Pass of each iteration


def main() -> None:
    task = Task(**json.loads(Path(sys.argv[1]).read_text()))
    _only_this_folder()
    engine: PeerEngine = importlib.import_module(f"benchmarks.peers.engines.{task.runner}").load(
        task
    )
    few = [min(tokens, WARM_UP_TOKENS) for tokens in task.output_tokens]
    engine.generate(task.prompts, few)  # as many at once as later, so that all shapes are compiled
    start_s = time.perf_counter()
    outputs = engine.generate(task.prompts, task.output_tokens)
    seconds = time.perf_counter() - start_s
    Path(sys.argv[2]).write_text(json.dumps(asdict(Done(seconds, outputs, engine.settings))))
    os._exit(0)  # some engines' threads never end


def _only_this_folder() -> None:
    """Makes `benchmarks.peers` importable without the folder that contains `benchmarks`."""
    package = types.ModuleType("benchmarks")
    package.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules["benchmarks"] = package


if __name__ == "__main__":
    main()
