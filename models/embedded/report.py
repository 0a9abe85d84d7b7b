"""The results of a training run: its loss on other text, samples, `training.json`, and the part of
`README.md` that quotes it.

Only `train.py` writes them. Forward passes are plain ones, without a KV cache.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import tiktoken
import torch
from torch import Tensor

from models.embedded.training import ROWS, summed_loss
from models.gpt2 import GPT, causal_attention

FIGURES_FILE = "training.json"
README_FILE = "README.md"
BEGIN, END = "<!-- begin of what train.py wrote -->", "<!-- end of what train.py wrote -->"


@dataclass(frozen=True, slots=True)
class Sample:
    prompt: str
    temperature: float
    completion: str


@dataclass(frozen=True, slots=True)
class Completed:
    """Everything `training.json` holds; losses in nats per token unless named otherwise."""

    settings: dict[str, int | float]
    python: str
    torch: str
    machine: str
    parameters: int
    corpus_sha256: str
    training_files: int
    training_characters: int
    training_tokens: int
    held_out_files: int
    held_out_characters: int
    held_out_tokens: int
    tokens_seen: int
    training_minutes: float  # spent in steps, including time that other work took
    training_loss: float  # mean of the last steps, bf16 autocast
    held_out_loss: float  # of the saved, rounded weights, computed in fp32
    held_out_bits_per_character: float
    samples: tuple[Sample, ...]


def machine() -> str:
    """The processor's name, its cores, and whether it multiplies bf16 matrices in hardware."""
    name, flags = platform.processor() or platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        pairs = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        name, flags = fields.get("model name", name), fields.get("flags", "")
    amx = ", AMX bf16" if "amx_bf16" in flags.split() else ""
    return f"{name}, {os.cpu_count()} cores{amx}, {torch.get_num_threads()} threads used"


def write_report(outcome: Completed, folder: Path) -> None:
    """Writes the figures; in an existing README, replaces the part between the markers."""
    (folder / FIGURES_FILE).write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    readme = folder / README_FILE
    if readme.exists():
        before, rest = readme.read_text().split(BEGIN)
        readme.write_text(f"{before}{render(outcome)}{rest.split(END)[1]}")


def read_report(folder: Path) -> Completed:
    figures = json.loads((folder / FIGURES_FILE).read_text())
    samples = tuple(Sample(**sample) for sample in figures.pop("samples"))
    return Completed(**figures, samples=samples)


def render(outcome: Completed) -> str:
    """The README's generated part, markers included."""
    settings = ", ".join(f"{name} {value}" for name, value in outcome.settings.items())
    rows = {
        "held-out loss (saved bf16 weights, computed in fp32)": (
            f"{outcome.held_out_loss:.4f} nats per token, "
            f"**{outcome.held_out_bits_per_character:.3f} bits per character**"
        ),
        "training loss (mean of the last steps)": f"{outcome.training_loss:.4f} nats per token",
        "seed": f"{outcome.settings['seed']}",
        "steps": f"{outcome.settings['steps']:,}, {outcome.tokens_seen:,} tokens seen",
        "parameters": f"{outcome.parameters:,}",
        "training text": (
            f"{outcome.training_files:,} files, {outcome.training_characters:,} characters, "
            f"{outcome.training_tokens:,} tokens"
        ),
        "held-out text": (
            f"{outcome.held_out_files:,} files, {outcome.held_out_characters:,} characters, "
            f"{outcome.held_out_tokens:,} tokens"
        ),
        "corpus": f"standard library of Python {outcome.python}, sha256 `{outcome.corpus_sha256}`",
        "time in training steps": f"{outcome.training_minutes:.0f} minutes",
        "machine": f"{outcome.machine}; torch {outcome.torch}",
        "all settings": settings,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    samples = "\n".join(_render_sample(sample) for sample in outcome.samples)
    return f"{BEGIN}\n| | |\n| --- | --- |\n{table}\n\n{samples}{END}"


def _render_sample(sample: Sample) -> str:
    how = f"temperature {sample.temperature:g}" if sample.temperature else "greedy"
    return (
        f"Prompt `{json.dumps(sample.prompt)}`, {how}; prompt and completion:\n\n"
        f"````python\n{sample.prompt}{sample.completion}\n````\n"
    )


@torch.inference_mode()
def stream_loss(network: GPT, stream: Tensor) -> float:
    """Mean cross entropy in nats of every token of `[N]` but the first.

    The stream is cut into windows as long as the network's context, each predicted from its own
    start, so early positions count as much as they do in short prompts.
    """
    total = sum(float(summed_loss(network, rows)) for rows in _windows(stream, network))
    return total / (len(stream) - 1)


def _windows(stream: Tensor, network: GPT) -> Iterator[Tensor]:
    """Rectangles `[<= ROWS, context + 1]` that overlap by one token, which is only a target."""
    length = network.config.context
    whole = (len(stream) - 1) // length
    if whole:
        yield from torch.split(stream.unfold(0, length + 1, length)[:whole], ROWS)
    if (len(stream) - 1) % length:
        yield stream[whole * length :].unsqueeze(0)


@torch.inference_mode()
def complete(
    network: GPT, encoding: tiktoken.Encoding, prompt: str, num_tokens: int, temperature: float
) -> str:
    """The text that follows `prompt`; temperature 0 is greedy, others draw with seed 0."""
    generator = torch.Generator().manual_seed(0)
    ids = encoding.encode_ordinary(prompt)
    start = len(ids)
    for _ in range(num_tokens):
        row = torch.tensor([ids])
        hidden = network(row, torch.arange(len(ids)), causal_attention)
        logits = network.head(hidden[0, -1])
        if temperature == 0:
            ids.append(int(logits.argmax()))
        else:
            odds = (logits / temperature).softmax(-1)
            ids.append(int(torch.multinomial(odds, 1, generator=generator)))
    return encoding.decode(ids[start:])
