"""A network's description from the fields of a `config.json`.

Fields of `transformers` 5 (`rope_parameters`, `dtype`) and the names before them (`rope_scaling`,
`rope_theta`, `rope_local_base_freq`) are understood. A field that is not known here, or has a value
that is not computed, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from models.description import (
    FAMILIES,
    LOCAL_ROPE_BASE,
    NO_ROPE_INTERVAL,
    SCALINGS,
    WINDOW_PATTERN,
    Description,
    Family,
    Rope,
)
from models.gpt2 import GPTConfig
from models.networks import Config

Fields = Mapping[str, Any]


class DescriptionError(ValueError):
    """A model that is not computed here; the message says what is supported."""


_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# field -> what it may be; other values would change the results
_FIXED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (None, False),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "rope_interleaved": (None, False),
}
_READ = {
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "hidden_activation",
    "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "rope_local_base_freq", "sliding_window", "use_sliding_window",
    "max_window_layers", "layer_types", "sliding_window_pattern", "_sliding_window_pattern",
    "no_rope_layers", "no_rope_layer_interval", "query_pre_attn_scalar", "quantization_config",
}  # fmt: skip
_MEANINGLESS = {  # for a server: training, tokens, and notes of tools
    "architectures", "attention_dropout", "auto_map", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range",
    "is_decoder", "is_llama_config", "label2id", "output_attentions", "output_hidden_states",
    "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "torch_dtype",
    "transformers_version", "transformers.js_config", "unsloth_fixed", "unsloth_version",
    "use_cache", "badwordsids", "finetuning_task", "max_sequence_length", "name_or_path",
    "num_labels", "prefix", "task_specific_params", "tf_legacy_loss", "tokenizer_class",
    "torchscript", "use_bfloat16", "vocab_file", "xla_device",
    # how `transformers` generates
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "max_new_tokens",
    "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "temperature", "top_k", "top_p",
    "typical_p",
    # which kernels compute attention
    "attn_implementation", "use_flash_attention", "use_flash_attention_2", "use_flash_attn",
}  # fmt: skip
_OF_GPT2 = {
    "vocab_size", "n_positions", "n_layer", "n_head", "n_embd", "layer_norm_epsilon", "n_ctx",
    "activation_function", "model_type", "quantization_config", "n_inner",
    "reorder_and_upcast_attn", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj",
}  # fmt: skip
# variants of GPT-2 that our network does not compute
_FIXED_OF_GPT2 = {
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "tie_word_embeddings": (True,),
}
GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
_SCALING_FIELDS = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
        "attention_factor",
    },
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
}  # fmt: skip

# The format of int8 weights is `int-quantized` of compressed-tensors (W8A8): of each linear layer,
# `weight` is int8, in the layout of the original, and `weight_scale` has a factor for each output;
# the kernels quantise inputs, token by token. Everything else is as in the original, also the
# embedding, and with it the head.
_EVERYWHERE = {"num_bits": 8, "type": "int", "symmetric": True}
_WEIGHTS = {**_EVERYWHERE, "strategy": "channel", "dynamic": False}
_INPUTS = {**_EVERYWHERE, "strategy": "token", "dynamic": True}
_GROUP = {"weights": _WEIGHTS, "input_activations": _INPUTS, "output_activations": None}
_REQUIRED = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "kv_cache_scheme": None,
}
# the `quantization_config` of what we write
SCHEME = {
    **_REQUIRED,
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], **_GROUP}},
    "ignore": ["lm_head"],
}


def model_type(fields: Fields) -> object:
    """Files of before 2020, which are GPT-2's, name the architecture alone."""
    is_gpt2 = fields.get("architectures") == ["GPT2LMHeadModel"]
    return fields.get("model_type", "gpt2" if is_gpt2 else None)


def describe(fields: Fields) -> Config:
    """Raises DescriptionError."""
    return _gpt2(fields) if model_type(fields) == "gpt2" else describe_decoder(fields)


def _gpt2(fields: Fields) -> GPTConfig:
    _require_known(fields, _OF_GPT2, {**_FIXED, **_FIXED_OF_GPT2})
    activation = fields.get("activation_function", "gelu_new")
    if activation not in GELU:
        raise DescriptionError(f"activation_function is {activation!r}, allowed: {', '.join(GELU)}")
    return GPTConfig(
        vocab_size=_count(fields, "vocab_size"),
        context=_count(fields, "n_positions"),
        n_layer=_count(fields, "n_layer"),
        n_head=_count(fields, "n_head"),
        n_embd=_count(fields, "n_embd"),
        norm_eps=_number(fields, "layer_norm_epsilon", 1e-5),
        gelu=GELU[activation],
    )


def _require_known(
    fields: Fields, read: Set[str], fixed: Mapping[str, tuple[Any, ...]] = _FIXED
) -> None:
    for name, allowed in fixed.items():
        if name in fields and fields[name] not in allowed:
            raise DescriptionError(f"{name} is {fields[name]!r}, supported: {allowed[-1]!r}")
    known = read | _MEANINGLESS | fixed.keys()
    for name, value in fields.items():
        if name not in known and not name.startswith("_") and value:
            raise DescriptionError(f"{name} is {value!r}, and this field is not supported")


def describe_decoder(fields: Fields) -> Description:
    """Raises DescriptionError."""
    kind = model_type(fields)
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise DescriptionError(f"model_type is {kind!r}, supported: gpt2, {', '.join(FAMILIES)}")
    _require_known(fields, _READ)
    n_layer, n_head = _count(fields, "num_hidden_layers"), _count(fields, "num_attention_heads")
    n_embd, context = _count(fields, "hidden_size"), _count(fields, "max_position_embeddings")
    kv_heads = _count(fields, "num_key_value_heads", family.kv_heads or n_head)
    head_dim = _count(fields, "head_dim", family.head_dim or n_embd // n_head)
    if n_head % kv_heads or head_dim % 2:
        raise DescriptionError(
            f"{n_head} attention heads of {head_dim} over {kv_heads} heads of keys; supported: a "
            "multiple of them, of an even width"
        )
    windows = _windows(fields, family, n_layer)
    ropes = _ropes(fields, family, windows, context)
    scalar = _number(fields, "query_pre_attn_scalar", 256.0)
    activation = fields.get("hidden_activation" if family.gemma else "hidden_act")
    activation = activation or ("gelu_pytorch_tanh" if family.gemma else "silu")
    if activation not in _ACTIVATIONS:
        raise DescriptionError(
            f"hidden_act is {activation!r}, supported: {', '.join(_ACTIVATIONS)}"
        )
    return Description(
        family=str(kind),
        vocab_size=_count(fields, "vocab_size"),
        context=context if family.gemma else _scaled(fields, context, ropes),
        n_layer=n_layer,
        n_head=n_head,
        kv_heads=kv_heads,
        head_dim=head_dim,
        n_embd=n_embd,
        mlp_width=_count(fields, "intermediate_size"),
        norm_eps=_number(fields, "rms_norm_eps", 1e-6),
        tied=_flag(fields, "tie_word_embeddings", family.tied),
        ropes=ropes,
        windows=windows,
        activation=_ACTIVATIONS[activation],
        qkv_bias=family.qkv_bias,
        qk_norms=family.qk_norms,
        norms_after=family.gemma,
        embeddings_scaled=family.gemma,
        query_scale=(head_dim / scalar) ** 0.5 if family.gemma else 1.0,
        overflows_float16=family.gemma,
    )


def _windows(fields: Fields, family: Family, n_layer: int) -> tuple[int | None, ...]:
    asked = family.windowed in ("always", "by layer") or (
        family.windowed == "asked" and _flag(fields, "use_sliding_window", False)
    )
    if not asked or fields.get("sliding_window", family.window) is None:
        return (None,) * n_layer
    window = _count(fields, "sliding_window", family.window)
    if family.windowed == "always":
        return (window,) * n_layer
    kinds = fields.get("layer_types")
    if kinds is None and family.gemma:
        named = "sliding_window_pattern", "_sliding_window_pattern"
        pattern = _count(fields, named[named[0] not in fields], WINDOW_PATTERN)
        return tuple(window if (i + 1) % pattern else None for i in range(n_layer))
    if kinds is None and family.skips_rope:
        return tuple(None if has else window for has in _with_rope(fields, family, n_layer))
    if kinds is None:
        first = _count(fields, "max_window_layers", 28, least=0)
        return tuple(window if i >= first else None for i in range(n_layer))
    allowed = {"sliding_attention": window, "full_attention": None}
    return tuple(allowed[kind] for kind in _listed("layer_types", kinds, n_layer, allowed))


def _scaled(fields: Fields, context: int, ropes: Sequence[Rope | None]) -> int:
    """The positions that are served, as in vLLM: linear scaling stretches those of the file, and
    YaRN those of the context that it names."""
    rope = next((rope for rope in ropes if rope is not None), None)
    if rope is None or rope.scaling not in ("linear", "yarn"):
        return context
    if rope.scaling == "linear":
        return int(context * rope.factor)
    said = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    stated = said.get("original_max_position_embeddings") is not None
    return int(rope.original * rope.factor) if stated else context


def _with_rope(fields: Fields, family: Family, n_layer: int) -> Sequence[Any]:
    """Of each layer: whether positions enter."""
    if not family.skips_rope:
        return [1] * n_layer
    has = fields.get("no_rope_layers")  # 0: this layer has none
    if has is None:
        interval = _count(fields, "no_rope_layer_interval", NO_ROPE_INTERVAL)
        return [int((i + 1) % interval != 0) for i in range(n_layer)]
    return _listed("no_rope_layers", has, n_layer, (0, 1))


def _listed(name: str, value: Any, n_layer: int, allowed: Any) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) < n_layer:
        raise DescriptionError(f"{name} is {value!r}, supported: a list of {n_layer} layers")
    for entry in value[:n_layer]:
        if not isinstance(entry, str | int) or entry not in allowed:
            raise DescriptionError(
                f"{name} has {entry!r}, supported: {', '.join(map(str, allowed))}"
            )
    return value[:n_layer]


def _ropes(
    fields: Fields, family: Family, windows: Sequence[int | None], context: int
) -> tuple[Rope | None, ...]:
    base = _number(fields, "rope_theta", family.rope_base)
    said = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(said, dict):
        raise DescriptionError(f"rope_parameters is {said!r}, supported: an object")
    nested = said.keys() & {"full_attention", "sliding_attention"}
    full = _rope((said.get("full_attention") or {}) if nested else said, base, context)
    local = full
    if family.gemma:
        base = _number(fields, "rope_local_base_freq", LOCAL_ROPE_BASE)
        local = _rope((said.get("sliding_attention") or {}) if nested else {}, base, context)
    has = _with_rope(fields, family, len(windows))
    return tuple(
        (full if window is None else local) if with_rope else None
        for window, with_rope in zip(windows, has, strict=True)
    )


def _rope(said: Fields, base: float, context: int) -> Rope:
    scaling = said.get("rope_type", said.get("type", "default"))
    if scaling not in SCALINGS:
        raise DescriptionError(f"RoPE scaling is {scaling!r}, supported: {', '.join(SCALINGS)}")
    known = _SCALING_FIELDS[scaling] | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for name, value in said.items():
        if (name not in known and value is not None) or (
            name == "partial_rotary_factor" and value not in (None, 1)
        ):
            raise DescriptionError(
                f"{name} of RoPE scaling '{scaling}' is {value!r}, and this is not supported"
            )
    if scaling != "default" and "factor" not in said:
        raise DescriptionError(f"RoPE scaling '{scaling}' has no factor")
    given = said.get("attention_factor")
    return Rope(
        base=_number(said, "rope_theta", base),
        scaling=scaling,
        factor=_number(said, "factor", 1.0),
        original=_count(said, "original_max_position_embeddings", context),
        low=_number(said, "low_freq_factor", 1.0),
        high=_number(said, "high_freq_factor", 4.0),
        beta_fast=_number(said, "beta_fast", 32.0),
        beta_slow=_number(said, "beta_slow", 1.0),
        truncated=_flag(said, "truncate", True),
        attention_factor=None if given is None else _number(said, "attention_factor", 1.0),
    )


def _count(fields: Fields, name: str, default: int | None = None, least: int = 1) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise DescriptionError(f"{name} is {value!r}, supported: a number of {least} or more")
    return value


def _number(fields: Fields, name: str, default: float) -> float:
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e18:
        raise DescriptionError(f"{name} is {value!r}, supported: a positive number")
    return float(value)


def _flag(fields: Fields, name: str, default: bool) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise DescriptionError(f"{name} is {value!r}, supported: true or false")
    return default if value is None else value


def check_scheme(said: Any) -> None:
    """Of a `quantization_config`: that its weights are int8 as ours. Raises DescriptionError."""
    _require_scheme("quantization_config", said, _REQUIRED)
    groups = said.get("config_groups")
    _require_scheme("quantization_config.config_groups", groups, {})
    for name, group in groups.items():
        _require_scheme(f"quantization_config.config_groups.{name}", group, _GROUP)


def _require_scheme(place: str, said: Any, wanted: Mapping[str, Any]) -> None:
    if not isinstance(said, dict):
        raise DescriptionError(f"{place} is {said!r}, allowed: an object")
    for name, only in wanted.items():
        if isinstance(only, dict):
            _require_scheme(f"{place}.{name}", said.get(name), only)
        elif said.get(name) != only:
            raise DescriptionError(f"{place}.{name} is {said.get(name)!r}, allowed: {only!r}")
