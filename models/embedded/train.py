"""Trains the embedded model on the standard library's source: `python -m embedded.train`.

The defaults are the settings of the model that ships with the project. The run can be stopped
(Ctrl-C, `--minutes`); the same command continues it from where it was last saved.

The run itself is in `training.py`. Here are the command and its results (`training.json`): the loss
on other text, and samples. Forward passes are plain ones, without a KV cache.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiktoken
import torch
from torch import Tensor
from tqdm import tqdm

from models.embedded.training import (
    STDLIB,
    Corpus,
    Settings,
    Training,
    encode_stream,
    read_corpus,
    summed_loss,
    train_ranks,
)
from models.embedded.vocabulary import VOCABULARY_FILE, make_encoding, write_ranks
from models.gpt2 import GPT, causal_attention
from models.weights.loader import load_network, save_checkpoint

SAVE_EVERY_S = 30.0
REPORTED_STEPS = 100  # over which the reported training loss is averaged

PROMPTS = (
    "import os\n\ndef read_lines(path):\n",
    "class Stack:\n    def __init__(self",
    "for i in range(",
    "def test_",
)
TEMPERATURES = (0.0, 0.7)
SAMPLE_TOKENS = 80


FIGURES_FILE = "training.json"
# what it holds, by name; losses in nats per token unless named otherwise
Figures = Mapping[str, Any]


def train(training: Training, state: Path, minutes: float) -> None:
    """Steps until finished or out of minutes; progress is saved on the way and at the end."""
    began = saved = time.monotonic()
    with tqdm(total=training.settings.steps, initial=len(training.losses), unit="step") as bar:
        while not (training.finished or time.monotonic() - began > 60 * minutes):
            training.step()
            recent = training.losses[-REPORTED_STEPS:]
            bar.set_postfix_str(f"loss {sum(recent) / len(recent):.3f}", refresh=False)
            bar.update()
            if time.monotonic() - saved > SAVE_EVERY_S:
                training.save(state)
                saved = time.monotonic()
    training.save(state)


def conclude(training: Training, corpus: Corpus, ranks: dict[bytes, int], folder: Path) -> Figures:
    """Writes vocabulary, weights and figures to `folder`; evaluates the weights as saved."""
    write_ranks(ranks, folder / VOCABULARY_FILE)
    save_checkpoint(training.network, folder, torch.bfloat16)
    network, encoding = load_network(folder).eval(), make_encoding(ranks)
    held_out = encode_stream(encoding, corpus.held_out)
    characters = sum(map(len, corpus.held_out))
    loss = stream_loss(network, held_out)
    recent = training.losses[-REPORTED_STEPS:]
    settings = training.settings
    samples = [
        {
            "prompt": prompt,
            "temperature": heat,
            "completion": complete(network, encoding, prompt, SAMPLE_TOKENS, heat),
        }
        for prompt, heat in itertools.product(PROMPTS, TEMPERATURES)
    ]
    figures = {
        "settings": settings.of_result,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": machine(),
        "parameters": sum(p.numel() for p in network.parameters()),
        "corpus_sha256": corpus.sha256,
        "training_files": len(corpus.training),
        "training_characters": sum(map(len, corpus.training)),
        "training_tokens": len(training.stream),
        "held_out_files": len(corpus.held_out),
        "held_out_characters": characters,
        "held_out_tokens": len(held_out),
        "tokens_seen": len(training.losses) * settings.batch * settings.context,
        "training_minutes": training.seconds / 60,  # in steps, with time that other work took
        "training_loss": sum(recent) / len(recent),  # bf16 autocast
        "held_out_loss": loss,  # of the saved, rounded weights, computed in fp32
        "held_out_bits_per_character": loss * (len(held_out) - 1) / characters / math.log(2),
        "samples": samples,
    }
    (folder / FIGURES_FILE).write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def machine() -> str:
    """The processor's name and its cores."""
    cpuinfo, name = Path("/proc/cpuinfo"), platform.machine()
    if cpuinfo.exists() and (named := re.search(r"model name\s*: (.*)", cpuinfo.read_text())):
        name = named[1]
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads used"


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


def main() -> None:
    settings = Settings.from_args(sys.argv[1:])
    folder, state = Path(settings.folder), Path(settings.state)
    torch.set_num_threads(settings.threads)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"reading {STDLIB} and building its vocabulary", flush=True)
    corpus = read_corpus(STDLIB)
    ranks = train_ranks(corpus.training, settings.vocabulary - 1)
    training = Training(settings, encode_stream(make_encoding(ranks), corpus.training))
    if state.exists():
        try:
            training.resume(state)
        except ValueError as error:
            sys.exit(str(error))
    train(training, state, math.inf if settings.minutes is None else settings.minutes)
    if not training.finished:
        print(f"stopped at step {len(training.losses)}; the same command continues")
        return
    figures = conclude(training, corpus, ranks, folder)
    state.unlink()  # the next run starts from the beginning
    print(f"held-out loss {figures['held_out_loss']:.4f} nats per token; {folder / FIGURES_FILE}")


if __name__ == "__main__":
    main()
