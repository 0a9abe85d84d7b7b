"""The tasks of a run, and each engine's process that does them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bare import WORKS
from benchmarks.harness.servers import cleared
from benchmarks.limits import COMPUTES_STORED, Bounds, Pass, least_seconds, stored_bits
from benchmarks.peers.checkpoint import Prepared, prepare_int8
from benchmarks.peers.environments import BUILD, HERE, ROOT, Peer, python_of, variables_of
from benchmarks.peers.results import PeerResult
from benchmarks.peers.runner import Task
from models.weights.folder import FolderSource
from models.weights.gguf import GGUFSource
from seams import LoadError

LIMIT = 64
TIMEOUT_S = 900
STORED = ("q8_0", "q4_0", "file")  # the types of a GGUF file, which ours and llama.cpp read


def computing(dtype: str) -> str:
    """The dtype whose instructions compute this precision."""
    return COMPUTES_STORED if dtype in STORED else dtype


class PeerWork:
    """The tasks, and the folder with them and their results during the run."""

    def __init__(self, model: str, kind: str, requests: int | None, scratch: Path) -> None:
        self.prepared = Prepared(model, BUILD / "models")
        self.folder = self.prepared.folder
        self.config = FolderSource(self.folder).config
        self.jobs = WORKS[kind](self.config.vocab_size)[:requests]
        self.scratch = scratch

    def prepare(self, dtypes: Sequence[str]) -> None:
        """Writes the GGUF files that ours reads. Raises LoadError."""
        for dtype in dtypes:
            if dtype in STORED:
                self.prepared.gguf(dtype)

    def least_seconds(self, passes: Sequence[Pass], dtype: str, limits: Bounds) -> float:
        bits = stored_bits(GGUFSource(self.prepared.gguf(dtype))) if dtype in STORED else None
        return least_seconds(passes, self.config, computing(dtype), limits, bits)

    def do(
        self,
        engine: str,
        command: Sequence[str],
        runner: str,
        dtype: str,
        requests: int | None,
        variables: Mapping[str, str],
    ) -> PeerResult:
        jobs = self.jobs[:requests]
        limit = 1 if runner == "nobatch" else LIMIT
        if (runner, dtype) == ("with_vllm", "int8"):
            prepare_int8(self.folder)
        reads_gguf = dtype in STORED or runner == "with_llamacpp"
        try:
            file = str(self.prepared.gguf(dtype)) if reads_gguf else ""
        except LoadError as error:
            return PeerResult(len(jobs), error=str(error))
        task = Task(
            runner, str(self.folder), file, dtype, limit,
            [job.prompt for job in jobs], [job.output_tokens for job in jobs],
        )  # fmt: skip
        given, written = self.scratch / "task.json", self.scratch / "result.json"
        given.write_text(json.dumps(asdict(task)))
        written.unlink(missing_ok=True)
        log = self.scratch / f"{engine}-{dtype}.log"
        with log.open("w") as out:
            try:
                subprocess.run(
                    [*cleared(variables, "OMP_"), *command, str(given), str(written)],
                    cwd=ROOT, stdout=out, stderr=out, timeout=TIMEOUT_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                return PeerResult(len(jobs), error=str(error))
        if not written.exists():
            last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            return PeerResult(len(jobs), error=last[-1] if last else "no result")
        return checked(task, json.loads(written.read_text()))


def checked(task: Task, done: Mapping[str, Any]) -> PeerResult:
    """A result counts only if every request has exactly the requested number of tokens."""
    wrong = [
        (len(output), wanted)
        for output, wanted in zip(done["outputs"], task.output_tokens, strict=True)
        if len(output) != wanted
    ]
    if wrong:
        error = f"{len(wrong)} requests have a wrong number of tokens: {wrong[0][0]}, "
        return PeerResult(len(task.prompts), error=f"{error}asked for {wrong[0][1]}")
    return PeerResult(
        requests=len(task.prompts),
        tokens=sum(map(len, done["outputs"])),
        seconds=done["seconds"],
        settings=done["settings"],
        outputs=done["outputs"],
        passes=[Pass(**each) for each in done["passes"]],
    )


def run_ours(
    work: PeerWork, engine: str, mode: str, dtype: str, requests: int | None
) -> PeerResult:
    command = [sys.executable, "-m", "benchmarks.peers.ours"]
    return work.do(engine, command, mode, dtype, requests, {})


def run_peer(work: PeerWork, peer: Peer, dtype: str) -> PeerResult:
    command = [str(python_of(peer.environment)), "-P", str(HERE / "runner.py")]
    return work.do(peer.name, command, peer.runner, dtype, None, variables_of(peer))


def once(measure: Callable[[], PeerResult]) -> Callable[[int], PeerResult]:
    """A peer that cannot run is not tried again in the next round."""
    failed: list[PeerResult] = []

    def turn(_: int) -> PeerResult:
        result = failed[0] if failed else measure()
        if result.error and not failed:
            failed.append(result)
            print(result.error, file=sys.stderr)
        return result

    return turn
