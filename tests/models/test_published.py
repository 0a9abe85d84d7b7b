"""Each published checkpoint, in miniature, gives what `transformers` and `tokenizers` give for the
same files, or is refused by a sentence that names the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as HubTokenizer
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from models.weights.folder import FolderSource
from models.weights.loader import load
from runtime.cache import BlockTable
from seams import LoadError
from tests.models.families import logits_of, random_peer
from tests.models.published import PUBLISHED, Checkpoint
from tests.models.test_decoder import BLOCKS, TOLERANCE, computed, pool_of
from tests.models.tokenizer_files import TOKENIZERS
from text.chat import load_chat_template
from text.vocabulary import load_tokenizer

SHORTER = 256  # times: contexts, windows and what scalings refer to
SIZES = {
    "hidden_size": 64, "n_embd": 64, "intermediate_size": 96, "head_dim": 24,
    "query_pre_attn_scalar": 20,
}  # fmt: skip
LENGTHS = "max_position_embeddings", "n_positions", "n_ctx", "sliding_window"
TEXTS = [
    "In the end, the other thing.",
    "  two  spaces and   three",
    "lines\n\nand\ttabs\n\n\nthere",
    "x = 12345; don't DON'T",
    "na\u00efve caf\u00e9 e\u0301 \u65e5\u672c\u8a9e \U0001f600",
    "<table>a</div> <tool_call>b",
]
CHAT = [
    {"role": "user", "content": " the  first\nquestion "},
    {"role": "assistant", "content": "<think>hm</think>\nthe answer"},
    {"role": "user", "content": "and then?"},
]
SERVED = [name for name, facts in PUBLISHED.items() if not facts.refused]


def miniature(config: dict[str, Any], ids: dict[str, int], rows: int) -> dict[str, Any]:
    """The same fields with small sizes, and ids for tokens."""
    small = {name: SIZES.get(name, value) for name, value in config.items()}
    for name in LENGTHS:
        if small.get(name):
            small[name] = max(small[name] // SHORTER, 8)
    layers = "num_hidden_layers" if "num_hidden_layers" in small else "n_layer"
    if layers in small:
        small[layers] = 6 if "gemma" in small.get("model_type", "") else 4
    for name in ("layer_types", "no_rope_layers"):
        if name in small:
            small[name] = small[name][: small[layers]]
    heads, kv = small.get("num_attention_heads"), small.get("num_key_value_heads")
    if "n_head" in small:
        small["n_head"] = 4
    if heads is not None:
        small["num_attention_heads"] = 4
    if kv is not None:
        small["num_key_value_heads"] = 4 if kv == heads else 1 if kv == 1 else 2
    if (scaling := small.get("rope_scaling") or small.get("rope_parameters")) is not None:
        name = "original_max_position_embeddings"
        if name in scaling:
            shorter = {**scaling, name: scaling[name] // SHORTER}
            small["rope_scaling" if small.get("rope_scaling") else "rope_parameters"] = shorter
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if name in small:
            small[name] = id_of(small[name], ids)
    return small | {"vocab_size": rows}


def id_of(token: Any, ids: dict[str, int]) -> Any:
    return [ids[one] for one in token] if isinstance(token, list) else ids.get(token)


def write(facts: Checkpoint, folder: Path) -> Any:
    """Returns the peer: a model of `transformers` in float32; None for what is refused."""

    def put(name: str, value: object) -> None:
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")

    if not facts.tokenizer:
        put("config.json", facts.config)
        for name in facts.beside:
            put(name, {})
        return None
    vocabulary = TOKENIZERS[facts.tokenizer]()
    ids = {entry["content"]: entry["id"] for entry in vocabulary["added_tokens"]}
    tokens = len(vocabulary["model"]["vocab"].keys() | ids)
    config = miniature(facts.config, ids, tokens + facts.rows)
    put("tokenizer.json", vocabulary)
    put("tokenizer_config.json", facts.settings)
    put("config.json", config)
    if facts.generation is not None:
        named = facts.generation.items()
        put("generation_config.json",
            {k: id_of(v, ids) if k.endswith("token_id") else v for k, v in named})  # fmt: skip
    if facts.template is not None:
        (folder / "chat_template.jinja").write_text(facts.template, encoding="utf-8")
    theirs = AutoConfig.for_model(**config | {"model_type": facts.architecture}
                                  if facts.architecture else config)  # fmt: skip
    theirs.initializer_range = 0.2
    peer = random_peer(theirs)
    own = "transformer." if theirs.model_type == "gpt2" else "model."
    prefix = own if facts.prefix is None else facts.prefix
    tensors = {
        prefix + name.removeprefix(own) if name.startswith(own) else name: tensor.clone()
        for name, tensor in peer.state_dict().items()
        if name != "lm_head.weight" or facts.stores_head or not theirs.tie_word_embeddings
    }
    block = "h" if theirs.model_type == "gpt2" else "layers"
    for name, shape in facts.buffers:
        for layer in range(theirs.num_hidden_layers):
            tensors[f"{prefix}{block}.{layer}.{name}"] = torch.ones(shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return peer


@pytest.mark.parametrize("name", SERVED)
def test_a_published_checkpoint_gives_what_its_own_libraries_give(
    name: str, tmp_path: Path
) -> None:
    facts = PUBLISHED[name]
    peer = write(facts, tmp_path)
    check_logits(tmp_path, peer, facts)
    check_texts(tmp_path, facts, peer.config.vocab_size)
    check_chat(tmp_path, facts)


def check_logits(folder: Path, peer: Any, facts: Checkpoint) -> None:
    network = load(FolderSource(folder))
    context = peer.config.max_position_embeddings
    assert network.config.context == (facts.context or context)
    ids = [5 * n % peer.config.vocab_size for n in range(8 if context < 32 else 24)]
    table = BlockTable(range(BLOCKS))
    ours = computed(network, pool_of(network, 1), [(ids, 0, len(ids))], [table])
    assert (ours - logits_of(peer, ids)).abs().max() <= TOLERANCE


def check_texts(folder: Path, facts: Checkpoint, rows: int) -> None:
    """Ids of prompts, and what they and all other ids say."""
    hub = HubTokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(str(folder))
    ids = hub.get_vocab(with_added_tokens=True)
    for text in TEXTS:
        theirs = hub.encode(text)
        assert tokenizer.encode(text) == hub.encode(text, add_special_tokens=False).ids
        first = [ids[facts.begins_with]] if facts.begins_with else []
        prompt = tokenizer.encode_prompt(text)
        assert prompt == first + theirs.ids
        # without a token and a space that were put before it; Mistral's has none before blanks
        spelled = normalize("NFC", b"".join(tokenizer.prompt_bytes(prompt)).decode())
        assert normalize("NFC", text) in (spelled, f" {spelled}")
        said = b"".join(map(tokenizer.token_bytes, theirs.ids)).decode(errors="replace")
        decoded = hub.decode(theirs.ids, skip_special_tokens=False)
        assert said in (decoded, f" {decoded}")  # some decoders strip the space put before a text
    assert tokenizer.vocab_size == min(rows, hub.get_vocab_size())
    (a,) = (token for text, token in hub.get_vocab().items() if text == "a")
    added = hub.get_added_tokens_decoder()
    for token in range(tokenizer.vocab_size):
        if token in added and added[token].normalized:
            continue  # Llama 1's: the library decodes a space before them
        decoded = hub.decode([a, token, a], skip_special_tokens=False)
        assert f"a{tokenizer.token_bytes(token).decode(errors='replace')}a" == decoded


def check_chat(folder: Path, facts: Checkpoint) -> None:
    is_gpt2 = "tokenizer_class" not in facts.settings and facts.config.get("model_type") == "gpt2"
    theirs = (AutoTokenizer if is_gpt2 else PreTrainedTokenizerFast).from_pretrained(folder)
    if theirs.chat_template is None:
        return
    ours = load_chat_template(str(folder), load_tokenizer(str(folder)))
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.encode(CHAT) == expected


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in SERVED])
def test_a_checkpoint_that_is_not_computed_is_refused_by_a_right_sentence(
    name: str, tmp_path: Path
) -> None:
    facts = PUBLISHED[name]
    write(facts, tmp_path)
    has_weights = "model.safetensors" in facts.beside
    with pytest.raises(LoadError) as refused:
        load_tokenizer(str(tmp_path)) if has_weights else load(FolderSource(tmp_path))
    assert facts.refused in str(refused.value)
