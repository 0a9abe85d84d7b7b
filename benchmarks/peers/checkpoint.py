"""A model as a folder that other engines read: weights in float32, and a tokenizer for engines that
require one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from model_server.quantise import quantise
from models.weights.checkpoint import load_network, save_checkpoint
from text.spelling import bytes_of_characters
from text.vocabulary import load_tokenizer

_END = "<|endoftext|>"


def prepare(model: str, root: Path) -> Path:
    """The folder of `model`, written unless it exists."""
    folder = root / model.replace(":", "-").replace("/", "-")
    done = folder / "tokenizer_config.json"  # written last
    if not done.exists():
        network = load_network(model, torch.device("cpu"), torch.float32, seed=0)
        save_checkpoint(network, folder, torch.float32)
        _save_tokenizer(model, folder, network.config.vocab_size)
        done.write_text(
            json.dumps(
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "bos_token": _END,
                    "eos_token": _END,
                    "unk_token": _END,
                }
            )
            + "\n"
        )
    return folder


def prepare_int8(folder: Path) -> None:
    """The same with int8 weights, for engines that read our format, in a folder beside it."""
    out = folder.with_name(f"{folder.name}-int8")
    if not (out / "config.json").exists():  # written last
        shutil.rmtree(out, ignore_errors=True)
        quantise(str(folder), out)


def _save_tokenizer(model: str, folder: Path, vocab_size: int) -> None:
    """Maps ids to this server's bytes; without merges, it only decodes."""
    ours = load_tokenizer(model)
    character_of = {byte: character for character, byte in bytes_of_characters().items()}
    vocabulary = {
        "".join(character_of[byte] for byte in ours.token_bytes(token)): token
        for token in range(vocab_size)
    }
    hub = Tokenizer(models.BPE(vocabulary, []))
    hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hub.decoder = decoders.ByteLevel()
    hub.add_special_tokens([_END])
    hub.save(str(folder / "tokenizer.json"))
