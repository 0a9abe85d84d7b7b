"""Checkpoints as their authors publish them: all fields of `config.json`, the names of the weights,
the steps of the tokenizer and the settings beside it. Sizes are small, sentences are ours.

`files` has one of each family as it is published, with ids written as the tokens that have them.
What others have instead is said here: facts about one checkpoint are one entry of PUBLISHED.
"""

# ruff: noqa: RUF001 - some names of tokens have a wide bar

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FILES = Path(__file__).with_name("files")
Fields = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    config: Fields
    tokenizer: str = ""  # of tests.models.tokenizer_files
    settings: Fields = field(default_factory=dict)  # tokenizer_config.json
    generation: Fields | None = None  # generation_config.json
    begins_with: str | None = None  # a prompt, though tokenizer.json does not say so
    template: str | None = None  # in a file of its own
    rows: int = 0  # of the embedding, more than tokens
    prefix: str | None = None  # of the weights' names, in the place of `model.` or `transformer.`
    buffers: Sequence[tuple[str, tuple[int, ...]]] = ()  # of each layer, that old files store too
    stores_head: bool = False  # though it is tied
    architecture: str | None = None  # which `transformers` cannot tell from the file
    context: int | None = None  # that is served; None: as the file says
    beside: Sequence[str] = ()  # names of further files
    refused: str = ""  # the sentence


def read(path: str) -> Fields:
    fields: Fields = json.loads((FILES / f"{path}.json").read_text())
    return fields


def template(family: str) -> str:
    return (FILES / family / "chat_template.jinja").read_text().removesuffix("\n")


def of_folder(family: str, tokenizer: str, **others: Any) -> Checkpoint:
    found = {path.name for path in (FILES / family).iterdir()}
    if "generation_config.json" in found:
        others["generation"] = read(f"{family}/generation_config")
    if "chat_template.jinja" in found:
        others["template"] = template(family)
    config, settings = (read(f"{family}/{name}") for name in ("config", "tokenizer_config"))
    return Checkpoint(config, tokenizer, settings, **others)


def without(fields: Fields, *names: str) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


def token(content: str) -> Fields:
    """As files of 2023 name one."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", "content": content, **flags}


_gpt2 = of_folder("gpt2", "gpt2, 4")
_llama2 = of_folder("llama-2", "llama 2", buffers=(("self_attn.rotary_emb.inv_freq", (4,)),))
_llama31 = of_folder("llama-3.1-instruct", "llama 3")
_mistral = of_folder("mistral", "llama 2")
_qwen = of_folder("qwen2.5", "qwen", rows=7)
_qwen3 = of_folder("qwen3", "qwen", rows=7)
_gemma = of_folder("gemma-3-270m", "gemma", rows=-1)
MASK = ("attn.bias", (1, 1, 8, 8)), ("attn.masked_bias", ())
GPT2, LLAMA, LLAMA_TOKENS = _gpt2.config, _llama2.config, _llama2.settings
GPT2_2019 = without(
    GPT2, "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
    "transformers_version", "n_inner", "use_cache",
)  # fmt: skip
LLAMA3 = read("llama-3/config")
LLAMA31 = _llama31.config | {"eos_token_id": "<|end_of_text|>"}
MISTRAL, QWEN2, QWEN3, GEMMA = (one.config for one in (_mistral, _qwen, _qwen3, _gemma))
DEEPSEEK: Fields = {
    "settings": read("deepseek-r1/tokenizer_config"), "template": template("deepseek-r1"),
    "generation": read("deepseek-r1/generation_config"),
}  # fmt: skip
CHATML, INST = (one.settings["chat_template"] for one in (_qwen, _mistral))
ENDED = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"

PUBLISHED: dict[str, Checkpoint] = {
    "gpt2 of OpenAI": replace(
        _gpt2, tokenizer="gpt2, OpenAI", settings={"model_max_length": 1024}, prefix="",
        buffers=MASK[:1], config=without(GPT2, "transformers_version"),
    ),
    "gpt2-xl of OpenAI": replace(
        _gpt2, tokenizer="gpt2, OpenAI", settings={"model_max_length": 1024}, prefix="",
        buffers=MASK, config=GPT2 | {"n_embd": 1600, "n_head": 25, "n_layer": 48},
    ),
    "gpt2, saved by transformers 4": _gpt2,
    "gpt2, saved by transformers 5": replace(
        _gpt2, tokenizer="gpt2, 5",
        config=GPT2 | {"dtype": "float32", "add_cross_attention": False, "pad_token_id": None,
                       "tie_word_embeddings": True, "transformers_version": "5.14.0"},
    ),
    "gpt2, fine-tuned in 2020": replace(_gpt2, config=GPT2_2019, rows=3),
    "gpt2, a classifier's labels": replace(
        _gpt2, config=GPT2 | {"id2label": {"0": "NO"}, "label2id": {"NO": 0}, "problem_type": None}
    ),
    "gpt2 with Llama's vocabulary": replace(
        _gpt2, config=GPT2 | {"eos_token_id": "</s>", "bos_token_id": "<s>"},
        tokenizer="llama 2", settings=LLAMA_TOKENS,
    ),
    "DialoGPT": replace(_gpt2, settings={"model_max_length": 1024, "chat_template": ENDED},
                        buffers=MASK, generation={"eos_token_id": "<|endoftext|>"}),
    "distilgpt2 of 2019": replace(
        _gpt2, architecture="gpt2",
        config=without(GPT2_2019, "model_type", "bos_token_id", "eos_token_id") | {
            "finetuning_task": None, "num_labels": 1, "output_attentions": False,
            "use_bfloat16": False, "output_hidden_states": False, "pruned_heads": {},
            "torchscript": False, "n_layer": 6},
    ),
    "Llama-2-7b": _llama2,
    "Llama-2-7B of 2023": replace(
        _llama2,
        config=without(LLAMA, "num_key_value_heads", "rope_scaling", "pretraining_tp") | {
            "pad_token_id": "<unk>"},
    ),
    "Llama-2-13b-chat": replace(_llama2, generation={
        "do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096,
        "bos_token_id": "<s>", "eos_token_id": "</s>"}),
    "Pygmalion-7b (Llama 1)": replace(
        _llama2, tokenizer="llama 1", template=None,
        config=without(LLAMA, "num_key_value_heads") | {
            "badwordsids": [[0]], "max_sequence_length": 2048, "rms_norm_eps": 1e-06,
            "max_position_embeddings": 2048},
    ),
    "CodeLlama-7b": replace(
        _llama2, tokenizer="codellama",
        config=LLAMA | {"rope_theta": 1000000, "max_position_embeddings": 16384},
    ),
    "lzlv 70B": replace(_llama2, config=LLAMA | {"num_attention_heads": 64,
                                                 "num_key_value_heads": 8}),
    "granite-7b": replace(
        _llama2, tokenizer="granite", config=without(LLAMA, "torch_dtype"),
        settings=LLAMA_TOKENS | {"add_bos_token": False, "eos_token": "<|endoftext|>",
                                 "tokenizer_class": "GPT2Tokenizer"},
    ),
    "TinyLlama-1.1B-Chat": replace(
        _llama2, template=template("tinyllama"),
        config=without(LLAMA, "torch_dtype") | {
            "dtype": "float32", "head_dim": 64, "mlp_bias": False, "num_key_value_heads": 4},
    ),
    "EEVE-Korean 10.8B": replace(
        _llama2, tokenizer="eeve", template=CHATML,
        config=LLAMA | {"eos_token_id": "<|im_end|>", "num_key_value_heads": 8},
        settings=LLAMA_TOKENS | {"eos_token": token("<|im_end|>")},
    ),
    "OpenLLaMA 3B": replace(
        _llama2, config=LLAMA | {"hidden_size": 3200, "num_hidden_layers": 26}, rows=1
    ),
    "Llama-3-8B": of_folder("llama-3", "llama 3"),
    "Llama-3.1-8B-Instruct": _llama31,
    "Llama-3.1-8B with a linear scaling under both names": replace(
        _llama31, context=4096,
        config=LLAMA31 | {"max_position_embeddings": 131072,
                          "rope_scaling": {"factor": 8.0, "rope_type": "linear", "type": "linear"}},
    ),
    "Llama-3.2-3B": replace(_llama31, config=LLAMA31 | {
        "tie_word_embeddings": True,
        "rope_scaling": LLAMA31["rope_scaling"] | {"factor": 32.0}}),
    "a fine-tune that stores its tied head": replace(
        _llama31, config=LLAMA31 | {"tie_word_embeddings": True}, stores_head=True),
    "Llama-3.2-1B-Instruct (unsloth), saved by transformers 5": replace(
        _llama31,
        config=without(LLAMA31, "rope_scaling", "rope_theta", "torch_dtype") | {
            "dtype": "bfloat16", "unsloth_fixed": True, "tie_word_embeddings": True,
            "rope_parameters": LLAMA31["rope_scaling"] | {"rope_theta": 500000.0, "factor": 32.0}},
    ),
    "DeepSeek-R1-Distill-Llama-8B": Checkpoint(
        LLAMA31 | {"bos_token_id": "<｜begin▁of▁sentence｜>",
                   "eos_token_id": "<｜end▁of▁sentence｜>"},
        "deepseek llama", **DEEPSEEK,
    ),
    "SmolLM2-135M-Instruct": of_folder("smollm2", "smollm2"),
    "Falcon3-10B": Checkpoint(
        LLAMA3 | {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>",
                  "head_dim": 256, "num_attention_heads": 12, "num_key_value_heads": 4,
                  "pad_token_id": "<|pad|>", "rope_theta": 1000042},
        "falcon3", {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"},
        template=template("tinyllama"),
    ),
    "Mistral-7B-v0.1": replace(_mistral, config=MISTRAL | {
        "sliding_window": 4096, "rope_theta": 10000.0}),
    "Mistral-7B-Instruct-v0.2": _mistral,
    "Mistral-7B-Instruct-v0.3": replace(_mistral, tokenizer="mistral 3"),
    "Mistral-Nemo-Instruct-2407": replace(
        _mistral, tokenizer="tekken",
        config=MISTRAL | {"head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 1024000},
        settings={"add_bos_token": True, "add_prefix_space": False, "bos_token": "<s>",
                  "eos_token": "</s>", "tokenizer_class": "GPT2TokenizerFast", "unk_token": "<unk>",
                  "chat_template": INST},
    ),
    "Dolphin3.0-R1-Mistral-24B": replace(
        _mistral, tokenizer="dolphin", generation={"temperature": 0.05},
        config=MISTRAL | {"eos_token_id": ["</s>", "<|im_end|>"], "head_dim": 128,
                          "rope_theta": 100000000.0},
        settings={"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": CHATML},
    ),
    "Qwen1.5-0.5B": replace(_qwen, config=QWEN2 | {"num_key_value_heads": 16}),
    "Qwen2.5-3B-Instruct": _qwen,
    "Qwen2.5-7B, saved by transformers 5": replace(
        _qwen, config=without(QWEN2, "torch_dtype", "rope_theta") | {
            "dtype": "bfloat16", "layer_types": ["full_attention"] * 36, "sliding_window": None,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "tie_word_embeddings": False},
    ),
    "Qwen2.5-14B of cogito, without spare rows": replace(_qwen, rows=0, generation=None),
    "Qwen2.5 with YaRN's recipe": replace(
        _qwen, context=512,
        config=QWEN2 | {"rope_scaling": {"type": "yarn", "factor": 4.0,
                                         "original_max_position_embeddings": 32768}},
    ),
    "DeepSeek-R1-Distill-Qwen-32B": replace(
        _qwen, tokenizer="deepseek", **DEEPSEEK,
        begins_with="<｜begin▁of▁sentence｜>",
        config=QWEN2 | {"bos_token_id": "<｜end▁of▁sentence｜>", "tie_word_embeddings": False,
                        "eos_token_id": "<｜end▁of▁sentence｜>"},
    ),
    "Qwen3-1.7B": _qwen3,
    "Qwen3-4B-Instruct-2507": replace(_qwen3, config=QWEN3 | {
        "max_position_embeddings": 262144, "rope_theta": 5000000}),
    "Qwen3-Embedding": replace(_qwen3, prefix=""),
    "SmolLM3-3B": of_folder("smollm3", "smollm3"),
    "Gemma-3-270m-it (unsloth)": _gemma,
    "Gemma-3-1b-it": replace(
        _gemma, config=read("gemma-3-1b/config"), generation=read("gemma-3-1b/generation_config")
    ),
    "Gemma-3-4b's text part": replace(
        _gemma, rows=8, config=GEMMA | {"max_position_embeddings": 131072, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
    "Gemma-3-12b as transformers 5 saves it": replace(
        _gemma, rows=8, config=without(GEMMA, "rope_scaling") | {
            "rope_parameters": {
                "full_attention": {"factor": 8.0, "rope_type": "linear"},
                "sliding_attention": {"rope_type": "default"}}}),
}  # fmt: skip
_REFUSED: dict[str, tuple[Fields, str]] = {
    "granite-3b-code": (LLAMA | {"attention_bias": True, "mlp_bias": True},
                        "attention_bias is True, supported: False"),
    "Llama-2-13B in 4 bits": (
        LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "quant_method is 'bitsandbytes'"),
    "Qwen3-14B of MLX": (QWEN3 | {"quantization": {"group_size": 64, "bits": 4}},
                         "quantization is"),
    "medgemma-27b-it": (
        {"model_type": "gemma3", "text_config": GEMMA, "vision_config": {"model_type": "siglip"}},
        "model_type is 'gemma3', supported"),
    **{kind: ({"model_type": kind}, f"model_type is '{kind}', supported: gpt2, llama")
       for kind in (
        "gemma", "phi3", "phimoe", "qwen", "qwen3_moe", "qwen3_5", "internlm2", "chatglm",
        "gpt_neox", "granitemoe", "hunyuan_v1_dense", "lfm2", "minimax_m1", "mistral3", "olmo",
        "omni_speech_llama")},
}  # fmt: skip
PUBLISHED |= {name: Checkpoint(config, refused=why) for name, (config, why) in _REFUSED.items()}
PUBLISHED |= {
    "OpenLLaMA 3B as published, .bin only": Checkpoint(
        LLAMA, beside=("pytorch_model.bin", "tokenizer.model"),
        refused="no readable model.safetensors"),
    "vicuna-7b-v1.5, .bin only and in several files": Checkpoint(
        LLAMA, beside=("pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"),
        refused="no readable model.safetensors"),
    "Llama-2-7B of 2023, tokenizer.model only": Checkpoint(
        LLAMA, beside=("model.safetensors", "tokenizer.model", "added_tokens.json"),
        refused="contains no vocabulary; allowed: "),
}  # fmt: skip
