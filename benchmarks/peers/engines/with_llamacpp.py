"""llama.cpp through its Python package, which is compiled for this machine at installation.

Its Python class serves one sequence, so this drives the library's batches, as its own server
does: every iteration advances the running sequences by a token and takes in prompts.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.runner import PeerEngine, Task

STEP_TOKENS = 4096  # the work's prompts in one call


def load(task: Task) -> PeerEngine:
    import llama_cpp
    import numpy as np

    longest = max(len(p) + n for p, n in zip(task.prompts, task.output_tokens, strict=True))
    threads = len(os.sched_getaffinity(0))

    llama_cpp.llama_backend_init()
    network = llama_cpp.llama_model_load_from_file(
        task.file.encode(), llama_cpp.llama_model_default_params()
    )
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(network))
    sequences = min(task.limit, len(task.prompts))
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = sequences
    params.n_ctx = sequences * (-(-longest // 256) * 256)
    params.n_batch = STEP_TOKENS
    params.n_threads = params.n_threads_batch = threads
    in_float32 = task.dtype == "float32"
    # else its default
    kept = llama_cpp.GGML_TYPE_F32 if in_float32 else llama_cpp.GGML_TYPE_F16
    params.type_k = params.type_v = kept
    context = llama_cpp.llama_init_from_model(network, params)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(STEP_TOKENS, 0, 1)

    def draw(row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())

    def generate(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting, places = list(range(len(prompts))), list(range(sequences))
        running: dict[int, int] = {}  # request: its sequence id in the library
        while waiting or running:
            batch.n_tokens = 0
            drawn = {
                request: _add(
                    batch,
                    place,
                    len(prompts[request]) + len(outputs[request]) - 1,
                    outputs[request][-1:],
                )
                for request, place in running.items()
            }
            while waiting and places and batch.n_tokens + len(prompts[waiting[0]]) <= STEP_TOKENS:
                request = waiting.pop(0)
                running[request] = places.pop()
                drawn[request] = _add(batch, running[request], 0, prompts[request])
            if status := llama_cpp.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode: {status}")
            for request, row in drawn.items():
                outputs[request].append(draw(row))
                if len(outputs[request]) == output_tokens[request]:
                    places.append(place := running.pop(request))
                    llama_cpp.llama_memory_seq_rm(memory, place, -1, -1)
        return outputs

    kind = "float32" if in_float32 else "float16"
    return PeerEngine(generate, f"{threads} threads, keys and values in {kind}, sequences apart")


def _add(batch: Any, place: int, position: int, tokens: list[int]) -> int:
    """Appends a sequence's tokens; returns the last row, whose logits are needed."""
    for offset, token in enumerate(tokens):
        row = batch.n_tokens
        batch.token[row] = token
        batch.pos[row] = position + offset
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = place
        batch.logits[row] = offset == len(tokens) - 1
        batch.n_tokens += 1
    return int(batch.n_tokens) - 1
