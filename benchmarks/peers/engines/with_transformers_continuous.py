"""Hugging Face transformers' own continuous batching."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.runner import Engine, Task

PAGE_TOKENS = 32  # on a CPU, where attention gathers whole pages
BATCH_TOKENS = 512


def load(task: Task) -> Engine:
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    network: Any = AutoModelForCausalLM.from_pretrained(
        task.folder, dtype=getattr(torch, task.dtype), attn_implementation="sdpa"
    )
    network.train(mode=False)
    longest = max(len(p) + n for p, n in zip(task.prompts, task.output_tokens, strict=True))
    make_config: Any = GenerationConfig  # untyped
    settings = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=task.limit * -(-longest // PAGE_TOKENS),
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=task.limit,
        allow_block_sharing=False,  # the warm-up must not do the work's prefill
    )

    how: dict[str, Any] = {"do_sample": False}
    if task.temperature:
        how = {"do_sample": True, "temperature": task.temperature, "top_p": task.top_p}

    manager = network.init_continuous_batching(
        generation_config=make_config(max_new_tokens=1, **how),
        continuous_batching_config=settings,
    )
    manager.start()

    def generate(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        ids = [
            manager.add_request(prompt, max_new_tokens=n, eos_token_id=-1)
            for prompt, n in zip(prompts, output_tokens, strict=True)
        ]
        outputs: dict[str, list[int]] = {}
        while len(outputs) < len(ids):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error:
                    raise RuntimeError(result.error)
                outputs[result.request_id] = list(result.generated_tokens)
            elif not manager.is_running():
                raise RuntimeError("its generation thread ended")
        return [outputs[id] for id in ids]

    return Engine(generate, f"pages of {PAGE_TOKENS}, {BATCH_TOKENS} tokens an iteration, sdpa")
