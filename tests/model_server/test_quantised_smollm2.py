"""SmolLM2 in files that `model-server quantize` writes, read by llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bare import Job, run_bare
from model import LoadOptions, load_model
from model_server.quantise import quantise
from scheduling.policies.orca import Orca
from tests.model.reference.test_smollm2 import QUESTIONS
from tests.peers import asked
from tests.smollm2 import FILE, NEEDED
from text.chat import load_chat_template
from text.vocabulary import load_tokenizer

ASKED, TOKENS = 6, 24
PROGRAM = """
import json, sys
from llama_cpp import Llama
path, sequences, texts = json.load(sys.stdin)
model = Llama(path, n_ctx=1024, logits_all=True, verbose=False)
best = []
for ids in sequences:
    model.reset()
    model.eval(ids)
    best.append(model.scores[: len(ids)].argmax(axis=1).tolist())
print(json.dumps([best, [model.tokenize(text.encode(), add_bos=False) for text in texts]]))
"""
pytestmark = NEEDED


@pytest.mark.timeout(3600)  # compiles llama.cpp once
@pytest.mark.parametrize("weights", ["q8_0", "q4_0"])
def test_llama_cpp_reads_the_file(weights: str, tmp_path: Path) -> None:
    """Its most likely tokens are ours, but for what both round differently, and so are its ids."""
    file = str(quantise(str(FILE), tmp_path / "out", weights=weights).model)
    tokenizer = load_tokenizer(file)
    template = load_chat_template(file, tokenizer)
    prompts = [template.encode([{"role": "user", "content": text}]) for text in QUESTIONS[:ASKED]]
    model = load_model(LoadOptions("dynamic", file, "cpu", "auto", 0, 1))
    jobs = [Job(ids, TOKENS) for ids in prompts]
    outputs = run_bare(model, Orca(), "dynamic", jobs, 1).outputs
    sequences = [[*a, *b[:-1]] for a, b in zip(prompts, outputs, strict=True)]
    best, ids = asked("llamacpp", PROGRAM, [file, sequences, QUESTIONS])
    same = [
        theirs == ours
        for choices, prompt, output in zip(best, prompts, outputs, strict=True)
        for theirs, ours in zip(choices[len(prompt) - 1 :], output, strict=True)
    ]
    print(f"{weights}: {sum(same)} of {len(same)} tokens are those of llama.cpp")
    assert sum(same) >= 0.95 * len(same)
    assert ids == [tokenizer.encode(text) for text in QUESTIONS]
