"""CTranslate2: batches of prompts of similar length; a request leaves its batch at its own end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.peers.runner import Engine, Task


def load(task: Task) -> Engine:
    import ctranslate2

    offered = ctranslate2.get_supported_compute_types("cpu")
    if task.dtype not in offered:
        raise SystemExit(f"{task.dtype} is not offered on this CPU, only {', '.join(offered)}")
    folder = _converted(Path(task.folder))
    names = [str(name) for name in json.loads((folder / "vocabulary.json").read_text())]
    generator = ctranslate2.Generator(
        str(folder),
        compute_type=task.dtype,
        inter_threads=1,
        intra_threads=len(os.sched_getaffinity(0)),
    )

    def generate(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        seen = [0] * len(prompts)

        def ends(step: Any) -> bool:
            seen[step.batch_id] += 1
            return bool(seen[step.batch_id] >= output_tokens[step.batch_id])

        results = generator.generate_batch(
            [[names[token] for token in prompt] for prompt in prompts],
            max_batch_size=task.limit,
            max_length=max(output_tokens),
            end_token=[],
            include_prompt_in_result=False,
            callback=ends,
            sampling_topk=0 if task.temperature else 1,
            sampling_temperature=task.temperature or 1,
            sampling_topp=task.top_p,
        )
        return [result.sequences_ids[0] for result in results]

    return Engine(generate, "static batches sorted by prompt length, rows leave at their own end")


def _converted(folder: Path) -> Path:
    out = folder.with_name(f"{folder.name}-ctranslate2")
    if not (out / "model.bin").exists():
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder)).convert(str(out), force=True)
    return out
