"""OpenVINO GenAI's continuous batching, converted once by optimum-intel."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.runner import PeerEngine, Task

KV_BLOCKS_GIB = 4


def load(task: Task) -> PeerEngine:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    folder = _converted(Path(task.folder), int8=task.dtype == "int8")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = KV_BLOCKS_GIB
    scheduler.max_num_seqs = task.limit
    scheduler.max_num_batched_tokens = 4096  # the work's prompts in one iteration
    scheduler.enable_prefix_caching = False
    precisions = {"float32": ov.Type.f32, "bfloat16": ov.Type.bf16}
    hint = {"INFERENCE_PRECISION_HINT": precisions[task.dtype]} if task.dtype in precisions else {}
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", hint)

    def generate(prompts: list[list[int]], output_tokens: list[int]) -> list[list[int]]:
        configs = []
        for n in output_tokens:
            config = genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = n
            config.ignore_eos = True
            config.do_sample = False
            configs.append(config)
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        answers = pipeline.generate(inputs, configs)
        return [list(answer.m_generation_ids[0]) for answer in answers]

    precision = "its default precision" if task.dtype == "int8" else task.dtype
    return PeerEngine(generate, f"continuous batching, {precision}, KV cache of its default type")


def _converted(folder: Path, *, int8: bool) -> Path:
    """The checkpoint in OpenVINO's format, weights in float32 or int8; written where it is not
    there."""
    out = folder.with_name(f"{folder.name}-openvino{'-int8' if int8 else ''}")
    done = out / "openvino_detokenizer.xml"  # written last
    if not done.exists():
        import openvino as ov
        from openvino_tokenizers import convert_tokenizer
        from optimum.intel import OVModelForCausalLM
        from transformers import PreTrainedTokenizerFast

        network = OVModelForCausalLM.from_pretrained(
            str(folder), export=True, compile=False, load_in_8bit=int8
        )
        network.save_pretrained(str(out))
        hub = PreTrainedTokenizerFast.from_pretrained(str(folder))
        hub.save_pretrained(str(out))
        tokenizer, detokenizer = convert_tokenizer(hub, with_detokenizer=True)
        ov.save_model(tokenizer, out / "openvino_tokenizer.xml")
        ov.save_model(detokenizer, done)
    return out
