"""SmolLM2 in files that `model-server quantize` writes: served, and read by llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import requests

from benchmarks.bare import Job, run_bare
from model import LoadOptions, load_model
from model_server.quantise import quantise
from scheduling.policies.orca import Orca
from tests.client.conftest import started
from tests.model.reference.test_smollm2 import QUESTIONS
from tests.peers import asked
from tests.smollm2 import FILE, NEEDED
from text.chat import load_chat_template
from text.tokenizer import Detokenizer
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
pytestmark = [
    *NEEDED,
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module", params=["q8_0", "q4_0"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantise(str(FILE), tmp_path_factory.mktemp("made") / "out", weights=request.param).model


@pytest.fixture(scope="module")
def prompts(file: Path) -> list[list[int]]:
    template = load_chat_template(str(file), load_tokenizer(str(file)))
    return [template.encode([{"role": "user", "content": text}]) for text in QUESTIONS[:ASKED]]


@pytest.fixture(scope="module")
def outputs(file: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Of each prompt alone, in this process."""
    model = load_model(LoadOptions("dynamic", str(file), "cpu", "auto", 0, 1))
    return run_bare(model, Orca(), "dynamic", [Job(ids, TOKENS) for ids in prompts], 1).outputs


def test_a_server_of_the_file_answers_as_the_model_in_memory(
    file: Path, outputs: list[list[int]], tmp_path: Path
) -> None:
    command = [sys.executable, "app.py", "dynamic", "--model", str(file)]
    tokenizer = load_tokenizer(str(file))
    with started(command, "quantised", tmp_path / "log", 300.0) as server:
        for question, ids in zip(QUESTIONS, outputs, strict=False):
            answer = requests.post(
                f"{server.target.url}/v1/chat/completions",
                json={"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS,
                      "temperature": 0},
                timeout=600,
            ).json()  # fmt: skip
            end = next((n for n, token in enumerate(ids) if token in tokenizer.end_ids), len(ids))
            expected = Detokenizer(tokenizer).push(ids[:end])
            assert answer["choices"][0]["message"]["content"] == expected


@pytest.mark.timeout(3600)  # compiles llama.cpp once
def test_llama_cpp_reads_the_file(
    file: Path, prompts: list[list[int]], outputs: list[list[int]]
) -> None:
    """Its most likely tokens are ours, but for what both round differently, and so are its ids."""
    sequences = [[*a, *b[:-1]] for a, b in zip(prompts, outputs, strict=True)]
    best, ids = asked("llamacpp", PROGRAM, [str(file), sequences, QUESTIONS])
    same = [
        theirs == ours
        for choices, prompt, output in zip(best, prompts, outputs, strict=True)
        for theirs, ours in zip(choices[len(prompt) - 1 :], output, strict=True)
    ]
    print(f"{file.parent}: {sum(same)} of {len(same)} tokens are those of llama.cpp")
    assert sum(same) >= 0.95 * len(same)
    assert ids == [load_tokenizer(str(file)).encode(text) for text in QUESTIONS]
