"""The results of a training run: its loss on other text, samples, `training.json`, and the part of
`README.md` that quotes it.

Only `train.py` writes them. Forward passes are plain ones, without a KV cache.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiktoken
import torch
from torch import Tensor

from models.embedded.training import summed_loss
from models.gpt2 import GPT, causal_attention

FIGURES_FILE = "training.json"
README_FILE = "README.md"
BEGIN, END = "<!-- begin of what train.py wrote -->", "<!-- end of what train.py wrote -->"


# what `training.json` holds, by name; losses in nats per token unless named otherwise
Figures = Mapping[str, Any]


def machine() -> str:
    """The processor's name and its cores."""
    cpuinfo, name = Path("/proc/cpuinfo"), platform.machine()
    if cpuinfo.exists() and (named := re.search(r"model name\s*: (.*)", cpuinfo.read_text())):
        name = named[1]
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads used"


def write_report(figures: Figures, folder: Path) -> None:
    """Writes the figures; in an existing README, replaces the part between the markers."""
    (folder / FIGURES_FILE).write_text(json.dumps(figures, indent=2) + "\n")
    readme = folder / README_FILE
    if readme.exists():
        before, rest = readme.read_text().split(BEGIN)
        readme.write_text(f"{before}{render(figures)}{rest.split(END)[1]}")


def render(figures: Figures) -> str:
    """The README's generated part, markers included."""
    of, settings = figures, figures["settings"]
    rows = {
        "held-out loss (saved bf16 weights, computed in fp32)": (
            f"{of['held_out_loss']:.4f} nats per token, "
            f"**{of['held_out_bits_per_character']:.3f} bits per character**"
        ),
        "training loss (mean of the last steps)": f"{of['training_loss']:.4f} nats per token",
        "seed": f"{settings['seed']}",
        "steps": f"{settings['steps']:,}, {of['tokens_seen']:,} tokens seen",
        "parameters": f"{of['parameters']:,}",
        **{
            f"{name} text": (
                f"{of[f'{key}_files']:,} files, {of[f'{key}_characters']:,} characters, "
                f"{of[f'{key}_tokens']:,} tokens"
            )
            for name, key in (("training", "training"), ("held-out", "held_out"))
        },
        "corpus": f"standard library of Python {of['python']}, sha256 `{of['corpus_sha256']}`",
        "time in training steps": f"{of['training_minutes']:.0f} minutes",
        "machine": f"{of['machine']}; torch {of['torch']}",
        "all settings": ", ".join(f"{name} {value}" for name, value in settings.items()),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    samples = "\n".join(map(_render_sample, figures["samples"]))
    return f"{BEGIN}\n| | |\n| --- | --- |\n{table}\n\n{samples}{END}"


def _render_sample(sample: Figures) -> str:
    temperature, prompt = sample["temperature"], sample["prompt"]
    how = f"temperature {temperature:g}" if temperature else "greedy"
    return (
        f"Prompt `{json.dumps(prompt)}`, {how}; prompt and completion:\n\n"
        f"````python\n{prompt}{sample['completion']}\n````\n"
    )


@torch.inference_mode()
def stream_loss(network: GPT, stream: Tensor) -> float:
    """Mean cross entropy in nats of every token of `[N]` but the first.

    The stream is cut into windows as long as the network's context, each predicted from its own
    start, so early positions count as much as they do in short prompts. Windows overlap by one
    token, which is only a target in the earlier one.
    """
    length, predicted = network.config.context, len(stream) - 1
    windows = (stream[None, at : at + length + 1] for at in range(0, predicted, length))
    return sum(float(summed_loss(network, window)) for window in windows) / predicted


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
