"""The three modes on a GPU: the bare loop on the same requests, then streams over HTTP, and a peer
on the same work."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from benchmarks.bare import POLICY_OF, Job, offline_work, run_bare
from benchmarks.http.client import Received
from benchmarks.on_gpu.points import Emit
from benchmarks.on_gpu.work import Models, Options, jobs
from generate.modes import ModeName

ROOT = Path(__file__).resolve().parents[2]
LIMITS = (8, 64, 256)
STREAMS = (64, 256)
NETWORK = "llama-3.2-1b"
TOKENS = 512  # of the longest request
SIDES: list[tuple[ModeName, int]] = [  # and the lookahead
    *(("static", 0), ("static", 1), ("dynamic", 0), ("dynamic", 1)),
]
ALONE: list[tuple[ModeName, int]] = [("nobatch", 0), ("nobatch", 1)]


def bare(options: Options, emit: Emit, *, equal: bool) -> None:
    """The modes in turns at each limit; nobatch once."""
    limits = (2,) if options.tiny else LIMITS
    models = Models(options, NETWORK, max(limits), TOKENS)
    for limit in limits:
        work = jobs(models.vocab_size, limit, equal=equal, tiny=options.tiny)
        if limit == limits[0]:
            _play(models, emit, "equal" if equal else "mixed", limit, ALONE, work[:4])
        _play(models, emit, "equal" if equal else "mixed", limit, SIDES, work)


def _play(
    models: Models,
    emit: Emit,
    lengths: str,
    limit: int,
    sides: Sequence[tuple[ModeName, int]],
    work: Sequence[Job],
) -> None:
    seconds: dict[tuple[ModeName, int], list[float]] = {side: [] for side in sides}
    tokens = 0
    try:
        # the first round warms, with all rows of the limit
        for number in range(-1, 1 if models.options.tiny else 3):
            for mode, ahead in sides[:: -1 if number % 2 else 1]:
                model = models.get(mode, graphs=models.options.kernel)
                its = work[:limit] if number < 0 else work
                run = run_bare(model, POLICY_OF[mode](), mode, its, limit, lookahead=ahead)
                model.forget()
                if number >= 0:
                    seconds[mode, ahead].append(run.seconds)
                    tokens = run.tokens
    except Exception as error:
        emit("left out", {"what": f"{lengths} lengths at {limit}", "why": repr(error)})
        return
    for (mode, ahead), found in seconds.items():
        emit(
            f"modes, {lengths} lengths, {NETWORK}",
            {
                "limit": limit,
                "mode": mode,
                "lookahead": ahead,
                "tokens/s": tokens / statistics.median(found),
                "slowest / fastest": max(found) / min(found),
            },
        )


def over_http(options: Options, emit: Emit) -> None:
    """Streams of the server's own modes, and through the launcher, whose model has a process of
    its own. A server's limit is the number of streams; nobatch serves an eighth of them."""
    modes = ("dynamic", "launcher", "static", "nobatch")
    for streams in (2,) if options.tiny else STREAMS:
        for mode in modes[:2] if options.tiny else modes:
            count = max(1, streams // 8) if mode == "nobatch" else streams
            try:
                with _server(options, mode, streams) as url:
                    received = _stream(url, options, count)
            except Exception as error:
                what = f"HTTP, {mode}, {streams} streams"
                emit("left out", {"what": what, "why": str(error)[-300:]})
                continue
            emit(
                "over HTTP, random:gpt2-medium",
                {
                    "limit": streams,
                    "mode": mode,
                    "streams": count,
                    "lost": received.lost,
                    "tokens/s": received.tokens / received.seconds,
                    "events/s": received.events / received.seconds,
                },
            )


def _model(options: Options) -> str:
    return "embedded" if options.tiny else "random:gpt2-medium"


def _server(options: Options, mode: str, limit: int) -> AbstractContextManager[str]:
    """A server's URL. RuntimeError, with the end of its log, if it does not start."""
    from benchmarks.harness.servers import served

    device = "cpu" if not options.on_gpu else "cuda"
    own = ("--num-shard", "1") if mode == "launcher" else ()
    return served(mode, _model(options), limit, "--device", device, *own)


def _stream(url: str, options: Options, count: int) -> Received:
    from benchmarks.http.streams import stream_all

    work = [Job([1, 2], 2)] * count if options.tiny else offline_work(50_257, count)
    asked = [(job.prompt, job.output_tokens) for job in work]
    stream_all(url, _model(options), asked[:2])  # warms
    return stream_all(url, _model(options), asked)


def peer(options: Options, emit: Emit) -> None:
    """`generate_batch` of transformers, its continuous batching, on the same requests and a network
    of the same shape. It is the weakest peer: others are not installed on a bare machine."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    models = Models(options, NETWORK, 1, TOKENS)
    of = models.network.config
    limit = 2 if options.tiny else 64
    work = jobs(of.vocab_size, limit, equal=True, tiny=options.tiny)
    config = LlamaConfig(
        vocab_size=of.vocab_size, hidden_size=of.n_embd, num_hidden_layers=of.n_layer,
        num_attention_heads=of.n_head, num_key_value_heads=of.kv_heads, head_dim=of.head_dim,
        intermediate_size=of.mlp_width, tie_word_embeddings=True, max_position_embeddings=TOKENS,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    del models
    with torch.device(options.device):
        network = LlamaForCausalLM(config)
    network.to(options.dtype)  # type: ignore[arg-type]
    asked = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=work[0].output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    own = None  # as large as the GPU's memory allows
    if options.tiny:
        own = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64)
    seconds = []
    for _ in range(3):  # the first one warms
        start_s = time.perf_counter()
        found = network.generate_batch([job.prompt for job in work], asked, own)
        seconds.append(time.perf_counter() - start_s)
    tokens = sum(len(one.generated_tokens) for one in found.values())
    emit(
        "transformers.generate_batch, equal lengths",
        {"requests": len(work), "tokens": tokens, "tokens/s": tokens / min(seconds[1:])},
    )


def sanitizer(options: Options, emit: Emit) -> None:
    """compute-sanitizer's memcheck over a small self-check."""
    if shutil.which("compute-sanitizer") is None:
        emit("left out", {"what": "memcheck", "why": "compute-sanitizer is not installed"})
        return
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable]
    check = ["-m", "runtime.gpu.selfcheck", str(options.device), "2", "1", "64", "16", "bfloat16"]
    done = subprocess.run([*command, *check], cwd=ROOT, capture_output=True, text=True, check=False)
    last = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line]
    emit("memcheck", {"status": done.returncode, "found": last[-1] if last else None})
