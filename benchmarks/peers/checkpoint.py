"""A model as other engines read it: a folder with weights in float32 and a tokenizer, and GGUF
files. Each is written once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.harness.report import file_name
from benchmarks.peers.hub import write_folder
from model_server.quantise import Keys, from_source, quantise
from models.embedded.vocabulary import bytes_of_characters
from models.fetch import locate
from models.gpt2 import GPTConfig
from models.names import RANDOM_PREFIX
from models.weights.folder import FolderSource
from models.weights.loader import load_network, open_source, save_checkpoint
from models.weights.source import WeightSource
from seams import LoadError
from text.vocabulary import load_tokenizer

_END = "<|endoftext|>"
_NO_VOCABULARY: Keys = {"tokenizer.ggml.model": "no_vocab"}
KINDS = {
    "float32": Kind.F32, "bfloat16": Kind.BF16, "int8": Kind.Q8_0, "q8_0": Kind.Q8_0,
    "q4_0": Kind.Q4_0,
}  # fmt: skip


class Prepared:
    """The files of `model` under `root`; the folder is written at once."""

    def __init__(self, model: str, root: Path) -> None:
        self.model, self.folder = model, prepare(model, root)

    @property
    def file(self) -> Path | None:
        """The GGUF file that the model is."""
        if self.model.startswith(RANDOM_PREFIX):
            return None
        found = locate(self.model)
        return found if found.is_file() else None

    def gguf(self, precision: str) -> Path:
        """The file with weights in this precision, `file` being the model's own. Raises
        LoadError."""
        if precision == "file":
            if self.file is None:
                raise LoadError(
                    f"model '{self.model}' is no GGUF file, which precision 'file' means"
                )
            return self.file
        path = self.folder.with_name(f"{self.folder.name}-{precision}.gguf")
        if not path.exists():
            write_gguf(FolderSource(self.folder), path, precision)
        return path


def write_gguf(source: WeightSource, path: Path, precision: str) -> None:
    """Matrices in this type, vectors in float32, and no tokenizer. Raises LoadError."""
    if isinstance(source.config, GPTConfig):
        raise LoadError("GPT-2's weights are not written as a GGUF file")
    part = path.with_suffix(".part")
    from_source(source, part, KINDS[precision], _NO_VOCABULARY)
    part.rename(path)


def prepare(model: str, root: Path) -> Path:
    """The folder of `model`, written unless it exists. Raises LoadError."""
    folder = root / file_name(model)
    done = folder / "tokenizer_config.json"  # written last
    if not done.exists():
        source = open_source(model, seed=0)
        if isinstance(source.config, GPTConfig):
            save_checkpoint(
                load_network(model),
                folder,
                torch.float32,
            )
        else:
            write_folder(source, folder)
        _save_tokenizer(model, folder, source.config.vocab_size)
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
