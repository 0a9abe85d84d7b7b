"""vLLM for CPUs: its offline engine, compiled, in this process."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.peers.runner import PeerEngine, Task


def load(task: Task) -> PeerEngine:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    from vllm import LLM, SamplingParams, TokensPrompt

    int8 = task.dtype == "int8"
    engine = LLM(
        model=f"{task.folder}-int8" if int8 else task.folder,
        dtype="bfloat16" if int8 else task.dtype,
        max_num_seqs=task.limit,
        max_model_len=1024,
        enable_prefix_caching=False,  # the warm-up must not do the work's prefill
    )

    def generate(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        sampling = [
            SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False)
            for n in output_tokens
        ]
        inputs = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        answers = engine.generate(inputs, sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    rest = "W8A8, all else and the head in bfloat16, " if int8 else ""
    loaded = [Path(path).name for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
    return PeerEngine(
        generate,
        f"compiled, {rest}preloaded: {', '.join(loaded) or 'nothing'}, {torch.get_num_threads()} "
        f"threads bound to cores {os.environ['VLLM_CPU_OMP_THREADS_BIND']}, no prefix cache",
    )
