"""Checkpoints as their authors publish them: all fields of `config.json`, the names of the weights,
the steps of the tokenizer and the settings beside it. Sizes are small, sentences are ours.

Ids are written as the tokens that have them. Facts about one checkpoint are one entry of PUBLISHED.
"""

# ruff: noqa: RUF001 - some names of tokens have a wide bar

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Fields = dict[str, Any]

CHATML = """\
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] \
+ '<|im_end|>' + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
INST = """\
{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"""
ROLES = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% else %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now("%Y") %}{% endif %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "<|eot_id|>" }}
{%- if tools is not none %}{{ tools[0] | tojson(indent=4) }}{% endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""
MASKED = """\
{%- set mode = "/think" if enable_thinking is not defined or enable_thinking else "/no_think" %}
{{- "<|im_start|>system\\n" + strftime_now("%Y") + mode + "<|im_end|>\\n" }}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else "" %}
    {%- if message.role == "assistant" %}
        {% generation %}
        {{- "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {% endgeneration %}
    {%- else %}
        {{- "<|im_start|>" + message.role + "\\n" + content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""
THINKING = """\
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
{%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
{%- set ns.last = messages|length - loop.index %}{% break %}{% endif %}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content.split('</think>')[-1].lstrip('\\n') }}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
TURNS = """\
{{ bos_token }}
{%- for message in messages -%}
{%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\\n' }}
{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""
DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{{bos_token}}{% for message in messages %}{% if message['role'] == 'user' %}
{{'<｜User｜>' + message['content']}}{% else %}{% set content = message['content'] %}
{{'<｜Assistant｜>' + content.split('</think>')[-1]}}{{'<｜end▁of▁sentence｜>'}}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"""
ENDED = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"


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


GPT2: Fields = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": "<|endoftext|>", "embd_pdrop": 0.1, "eos_token_id": "<|endoftext|>",
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
    "n_embd": 768, "n_head": 12, "n_inner": None, "n_layer": 12, "n_positions": 1024,
    "reorder_and_upcast_attn": False, "resid_pdrop": 0.1, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "transformers_version": "4.30.0", "use_cache": True, "vocab_size": 50257,
}  # fmt: skip
GPT2_2019 = {name: GPT2[name] for name in GPT2 if name not in (
    "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
    "transformers_version", "n_inner", "use_cache")}  # fmt: skip
DISTILGPT2 = {k: v for k, v in GPT2_2019.items() if k not in (
    "model_type", "bos_token_id", "eos_token_id")} | {
    "finetuning_task": None, "num_labels": 1, "output_attentions": False, "use_bfloat16": False,
    "output_hidden_states": False, "pruned_heads": {}, "torchscript": False, "n_layer": 6,
}  # fmt: skip
NAMED_GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
              "unk_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}  # fmt: skip
MASK = ("attn.bias", (1, 1, 8, 8)), ("attn.masked_bias", ())
INV_FREQ = (("self_attn.rotary_emb.inv_freq", (4,)),)

LLAMA: Fields = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": "<s>", "eos_token_id": "</s>", "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.31.0",
    "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
LLAMA3: Fields = LLAMA | {
    "bos_token_id": "<|begin_of_text|>", "eos_token_id": "<|end_of_text|>", "head_dim": 128,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "mlp_bias": False,
    "num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA31: Fields = LLAMA3 | {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
_LLAMA31_ENDS = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
LLAMA31_INSTRUCT: Fields = LLAMA31 | {"eos_token_id": _LLAMA31_ENDS}
LLAMA31_GENERATION: Fields = {
    "bos_token_id": "<|begin_of_text|>", "eos_token_id": _LLAMA31_ENDS, "do_sample": True,
    "temperature": 0.6, "top_p": 0.9, "transformers_version": "4.42.3",
}  # fmt: skip
LLAMA3_TOKENS: Fields = {
    "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
    "clean_up_tokenization_spaces": True, "model_input_names": ["input_ids", "attention_mask"],
    "model_max_length": 131072, "tokenizer_class": "PreTrainedTokenizerFast",
}  # fmt: skip


def token(content: str) -> Fields:
    """As files of 2023 name one."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", "content": content, **flags}


LLAMA_TOKENS: Fields = {
    "add_bos_token": True, "add_eos_token": False, "bos_token": token("<s>"),
    "clean_up_tokenization_spaces": False, "eos_token": token("</s>"), "legacy": False,
    "model_max_length": 10**30, "pad_token": None, "sp_model_kwargs": {},
    "tokenizer_class": "LlamaTokenizer", "unk_token": token("<unk>"),
}  # fmt: skip
MISTRAL: Fields = {k: v for k, v in LLAMA.items() if k not in (
    "attention_bias", "pretraining_tp", "rope_scaling")} | {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "intermediate_size": 14336,
    "num_key_value_heads": 8, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    "sliding_window": None,
}  # fmt: skip
MISTRAL_TOKENS = LLAMA_TOKENS | {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
    "use_default_system_prompt": False, "additional_special_tokens": [],
    "spaces_between_special_tokens": False,
}  # fmt: skip
QWEN2: Fields = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": "<|endoftext|>", "eos_token_id": "<|im_end|>", "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 32768, "max_window_layers": 36, "model_type": "qwen2",
    "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.43.1",
    "use_cache": True, "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3: Fields = {k: v for k, v in QWEN2.items() if k != "use_mrope"} | {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_key_value_heads": 8, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
}  # fmt: skip
QWEN_TOKENS: Fields = {
    "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "errors": "replace",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": "<|im_end|>",
    "clean_up_tokenization_spaces": False, "model_max_length": 131072,
    "split_special_tokens": False, "pad_token": "<|endoftext|>",
    "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
}  # fmt: skip
QWEN_GENERATION: Fields = {
    "bos_token_id": "<|endoftext|>", "pad_token_id": "<|endoftext|>", "do_sample": True,
    "eos_token_id": ["<|im_end|>", "<|endoftext|>"], "repetition_penalty": 1.05,
    "temperature": 0.7, "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0",
}  # fmt: skip
DEEPSEEK_TOKENS: Fields = {
    "add_bos_token": True, "add_eos_token": False, "bos_token": token("<｜begin▁of▁sentence｜>"),
    "clean_up_tokenization_spaces": False, "eos_token": token("<｜end▁of▁sentence｜>"),
    "legacy": True, "model_max_length": 16384, "pad_token": token("<｜end▁of▁sentence｜>"),
    "sp_model_kwargs": {}, "unk_token": None, "tokenizer_class": "LlamaTokenizerFast",
}  # fmt: skip
DEEPSEEK_GENERATION: Fields = {
    "_from_model_config": True, "bos_token_id": "<｜begin▁of▁sentence｜>",
    "eos_token_id": "<｜end▁of▁sentence｜>", "do_sample": True, "temperature": 0.6, "top_p": 0.95,
    "transformers_version": "4.39.3",
}  # fmt: skip
GEMMA: Fields = {
    "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": "<bos>",
    "eos_token_id": "<end_of_turn>", "final_logit_softcapping": None, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_types": [("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(18)],
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": "<pad>",
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
    "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512,
    "torch_dtype": "float16", "transformers_version": "4.55.4", "unsloth_version": "2025.8.9",
    "use_bidirectional_attention": False, "use_cache": True, "vocab_size": 262144,
}  # fmt: skip
GEMMA_1B: Fields = {k: v for k, v in GEMMA.items() if k not in (
    "_sliding_window_pattern", "layer_types", "unsloth_version", "use_bidirectional_attention")} | {
    "cache_implementation": "hybrid", "eos_token_id": ["<eos>", "<end_of_turn>"],
    "hidden_size": 1152, "num_hidden_layers": 26, "rope_local_base_freq": 10000,
    "rope_theta": 1000000, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_TOKENS: Fields = {
    "add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>",
    "boi_token": "<start_of_turn>", "clean_up_tokenization_spaces": False,
    "extra_special_tokens": {"boi_token": "<start_of_turn>", "image_token": "<image_soft_token>"},
    "image_token": "<image_soft_token>", "model_max_length": 10**30, "pad_token": "<pad>",
    "processor_class": "Gemma3Processor", "sp_model_kwargs": None, "unk_token": "<unk>",
    "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizer",
    "use_default_system_prompt": False,
}  # fmt: skip
GEMMA_GENERATION: Fields = {
    "cache_implementation": "hybrid", "do_sample": True, "top_k": 64, "top_p": 0.95,
    "eos_token_id": ["<eos>", "<end_of_turn>"], "transformers_version": "4.50.0.dev0",
}  # fmt: skip
SMOLLM3: Fields = {k: v for k, v in QWEN3.items() if k != "head_dim"} | {
    "architectures": ["SmolLM3ForCausalLM"], "bos_token_id": "<|begin_of_text|>", "mlp_bias": False,
    "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536,
    "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
    "pad_token_id": "<|end_of_text|>", "num_key_value_heads": 4, "pretraining_tp": 2,
    "rope_theta": 5000000.0, "vocab_size": 128256,
}  # fmt: skip
SMOLLM3.pop("tie_word_embeddings")
SMOLLM2: Fields = LLAMA | {
    "eos_token_id": "<|im_end|>", "bos_token_id": "<|im_start|>", "head_dim": 64,
    "hidden_size": 576, "is_llama_config": True, "intermediate_size": 1536,
    "max_position_embeddings": 8192, "mlp_bias": False, "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": "<|im_end|>",
    "rope_interleaved": False, "rope_theta": 100000, "tie_word_embeddings": True,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "vocab_size": 49152,
}  # fmt: skip
NAMED_CHATML = {"eos_token": "<|im_end|>", "chat_template": CHATML}

_gpt2 = Checkpoint(GPT2, "gpt2, 4", NAMED_GPT2 | {"model_max_length": 1024})
_llama2 = Checkpoint(LLAMA, "llama 2", LLAMA_TOKENS, template=INST, buffers=INV_FREQ)
_llama31 = Checkpoint(LLAMA31_INSTRUCT, "llama 3", LLAMA3_TOKENS | {"chat_template": HEADERS},
                      LLAMA31_GENERATION)  # fmt: skip
_mistral = Checkpoint(MISTRAL, "llama 2", MISTRAL_TOKENS | {"chat_template": INST})
_qwen = Checkpoint(QWEN2, "qwen", QWEN_TOKENS | {"chat_template": CHATML}, QWEN_GENERATION, rows=7)
_qwen3 = replace(_qwen, config=QWEN3, settings=QWEN_TOKENS | {"chat_template": THINKING})
_gemma = Checkpoint(GEMMA, "gemma", GEMMA_TOKENS, template=TURNS, rows=-1)

PUBLISHED: dict[str, Checkpoint] = {
    "gpt2 of OpenAI": replace(
        _gpt2, tokenizer="gpt2, OpenAI", settings={"model_max_length": 1024}, prefix="",
        buffers=MASK[:1], config={k: v for k, v in GPT2.items() if k != "transformers_version"},
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
        _gpt2, config=DISTILGPT2, architecture="gpt2"
    ),
    "Llama-2-7b": _llama2,
    "Llama-2-7B of 2023": replace(
        _llama2,
        config={k: v for k, v in LLAMA.items() if k not in (
            "num_key_value_heads", "rope_scaling", "pretraining_tp")} | {"pad_token_id": "<unk>"},
    ),
    "Llama-2-13b-chat": replace(_llama2, generation={
        "do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096,
        "bos_token_id": "<s>", "eos_token_id": "</s>"}),
    "Pygmalion-7b (Llama 1)": replace(
        _llama2, tokenizer="llama 1", template=None,
        config={k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads",)} | {
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
        _llama2, tokenizer="granite", config={k: v for k, v in LLAMA.items() if k != "torch_dtype"},
        settings=LLAMA_TOKENS | {"add_bos_token": False, "eos_token": "<|endoftext|>",
                                 "tokenizer_class": "GPT2Tokenizer"},
    ),
    "TinyLlama-1.1B-Chat": replace(
        _llama2, template=ROLES,
        config={k: v for k, v in LLAMA.items() if k != "torch_dtype"} | {
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
    "Llama-3-8B": Checkpoint(LLAMA3, "llama 3", LLAMA3_TOKENS, {
        "eos_token_id": ["<|end_of_text|>", "<|eot_id|>"]}),
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
        config={k: v for k, v in LLAMA31.items() if k not in (
            "rope_scaling", "rope_theta", "torch_dtype")} | {
            "dtype": "bfloat16", "unsloth_fixed": True, "tie_word_embeddings": True,
            "rope_parameters": LLAMA31["rope_scaling"] | {"rope_theta": 500000.0, "factor": 32.0}},
    ),
    "DeepSeek-R1-Distill-Llama-8B": Checkpoint(
        LLAMA31 | {"bos_token_id": "<｜begin▁of▁sentence｜>",
                   "eos_token_id": "<｜end▁of▁sentence｜>"},
        "deepseek llama", DEEPSEEK_TOKENS, DEEPSEEK_GENERATION, template=DEEPSEEK,
    ),
    "SmolLM2-135M-Instruct": Checkpoint(SMOLLM2, "smollm2", NAMED_CHATML | {
        "add_prefix_space": False, "bos_token": "<|im_start|>", "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}),
    "Falcon3-10B": Checkpoint(
        LLAMA3 | {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>",
                  "head_dim": 256, "num_attention_heads": 12, "num_key_value_heads": 4,
                  "pad_token_id": "<|pad|>", "rope_theta": 1000042},
        "falcon3", {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}, template=ROLES,
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
        _qwen, config={k: v for k, v in QWEN2.items() if k not in ("torch_dtype", "rope_theta")} | {
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
        _qwen, tokenizer="deepseek", settings=DEEPSEEK_TOKENS, template=DEEPSEEK,
        begins_with="<｜begin▁of▁sentence｜>",
        config=QWEN2 | {"bos_token_id": "<｜end▁of▁sentence｜>", "tie_word_embeddings": False,
                        "eos_token_id": "<｜end▁of▁sentence｜>"},
        generation=DEEPSEEK_GENERATION,
    ),
    "Qwen3-1.7B": _qwen3,
    "Qwen3-4B-Instruct-2507": replace(_qwen3, config=QWEN3 | {
        "max_position_embeddings": 262144, "rope_theta": 5000000}),
    "Qwen3-Embedding": replace(_qwen3, prefix=""),
    "SmolLM3-3B": Checkpoint(SMOLLM3, "smollm3", {
        "bos_token": None, "eos_token": "<|im_end|>", "fast": False,
        "tokenizer_class": "PreTrainedTokenizerFast"}, template=MASKED),
    "Gemma-3-270m-it (unsloth)": _gemma,
    "Gemma-3-1b-it": replace(_gemma, config=GEMMA_1B, generation=GEMMA_GENERATION),
    "Gemma-3-4b's text part": replace(
        _gemma, rows=8, config=GEMMA | {"max_position_embeddings": 131072, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
    "Gemma-3-12b as transformers 5 saves it": replace(
        _gemma, rows=8, config={k: v for k, v in GEMMA.items() if k != "rope_scaling"} | {
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
