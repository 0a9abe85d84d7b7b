"""llama.cpp through its Python package, which is compiled for this machine at installation.

Its Python class serves one sequence, so this drives the library's batches, as its own server
does: every iteration advances the running sequences by a token and takes in prompts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.peers.runner import Engine, Task

STEP_TOKENS = 4096  # the work's prompts in one call
NO_TOKENIZER = "no_vocab"


def load(task: Task) -> Engine:
    if task.temperature:
        raise SystemExit("greedy only: its own sampler works row by row in its server")
    import llama_cpp
    import numpy as np

    config: dict[str, int] = json.loads((Path(task.folder) / "config.json").read_text())
    vocab_size = config["vocab_size"]
    longest = max(len(p) + n for p, n in zip(task.prompts, task.output_tokens, strict=True))
    threads = len(os.sched_getaffinity(0))

    llama_cpp.llama_backend_init()
    network = llama_cpp.llama_model_load_from_file(
        str(_converted(Path(task.folder), task.dtype, config)).encode(),
        llama_cpp.llama_model_default_params(),
    )
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = task.limit
    params.n_ctx = task.limit * (-(-longest // 256) * 256)
    params.n_batch = STEP_TOKENS
    params.n_threads = params.n_threads_batch = threads
    cached: dict[str, Any] = {
        "float32": llama_cpp.GGML_TYPE_F32,
        "bfloat16": llama_cpp.GGML_TYPE_F16,  # its default
        "int8": llama_cpp.GGML_TYPE_F16,
    }
    params.type_k = params.type_v = cached[task.dtype]
    context = llama_cpp.llama_init_from_model(network, params)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(STEP_TOKENS, 0, 1)

    def generate(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting, places = list(range(len(prompts))), list(range(task.limit))
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
                logits = llama_cpp.llama_get_logits_ith(context, row)
                outputs[request].append(
                    int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())
                )
                if len(outputs[request]) == output_tokens[request]:
                    places.append(place := running.pop(request))
                    llama_cpp.llama_memory_seq_rm(memory, place, -1, -1)
        return outputs

    kind = "float32" if task.dtype == "float32" else "float16"
    return Engine(generate, f"{threads} threads, keys and values in {kind}, sequences apart")


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


def _converted(folder: Path, dtype: str, config: dict[str, int]) -> Path:
    """The checkpoint in llama.cpp's format: matrices in `dtype`, all others in float32, like its
    own converter."""
    path = folder.with_name(f"{folder.name}-{dtype}.gguf")
    if path.exists():
        return path
    import gguf
    from safetensors.numpy import load_file

    width = config["n_embd"]
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(4 * width)
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model(NO_TOKENIZER)
    writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config["n_layer"])
    matrices = {
        "float32": gguf.GGMLQuantizationType.F32,
        "bfloat16": gguf.GGMLQuantizationType.BF16,
        "int8": gguf.GGMLQuantizationType.Q8_0,
    }[dtype]
    for hub_name, tensor in load_file(folder / "model.safetensors").items():
        name = names.get_name(
            hub_name.removeprefix("transformer."), try_suffixes=(".weight", ".bias")
        )
        assert name is not None, hub_name
        if tensor.ndim == 2 and hub_name.startswith("transformer.h."):
            tensor = tensor.T  # Hugging Face's GPT-2 stores its matrices the other way round
        kind = gguf.GGMLQuantizationType.F32
        if tensor.ndim == 2 and not name.startswith("position"):
            kind = matrices
        writer.add_tensor(name, gguf.quants.quantize(tensor.copy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
    return path
