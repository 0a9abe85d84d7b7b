"""Hugging Face transformers: `generate` over left-padded batches, each as long as its longest
request; the tokens past a request's own end are computed, as there, and not counted."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.runner import Engine, Task


def load(task: Task) -> Engine:
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(
        task.folder, dtype=getattr(torch, task.dtype), attn_implementation="sdpa"
    )
    network.train(mode=False)
    network.generation_config.eos_token_id = None

    how: dict[str, Any] = {"do_sample": False}
    if task.temperature:
        how = {"do_sample": True, "temperature": task.temperature, "top_p": task.top_p, "top_k": 0}

    def batch(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out = network.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(output_tokens),
            **how,
            use_cache=True,
            pad_token_id=0,
        )
        rows: list[list[int]] = out[:, width:].tolist()
        return [row[:n] for row, n in zip(rows, output_tokens, strict=True)]

    def generate(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        outputs = []
        for first in range(0, len(prompts), task.limit):
            part = slice(first, first + task.limit)
            outputs += batch(prompts[part], output_tokens[part])
        return outputs

    return Engine(generate, "static padded batches, KV cache, sdpa")
