"""Clients, unmodified, against a trained model: each in an environment of its own, which the test
makes and keeps."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.peers.environments import BUILD
from models.weights.gguf_header import read_header
from tests.model.reference.test_smollm2 import QUESTIONS, transformers_model
from tests.peers import asked
from tests.server.apis import clients
from tests.smollm2 import FILE, NO_NETWORK
from tests.support.process import serving
from text.gguf_vocabulary import _Vocabulary
from text.vocabulary import load_tokenizer

PYTHON: Mapping[str, Sequence[str]] = {
    "openai": ["openai==3.57.0"],
    "agents": ["openai-agents==0.24.0"],
    "langchain": ["langchain-openai==1.7.4"],
    "langchain_responses": ["langchain-openai==1.7.4"],
    "llamaindex": ["llama-index-llms-openai-like==0.8.1"],
    "pydantic_ai": ["pydantic-ai-slim[openai]==2.68.0"],
    "instructor": ["instructor==1.17.0"],
    "smolagents": ["smolagents[openai]==1.26.0"],
    "litellm": ["litellm[proxy]==1.108.7"],
    "litellm_proxy": ["litellm[proxy]==1.108.7"],
    "huggingface_hub": ["huggingface_hub==2.4.0", "pydantic==2.14.4"],
    "text_generation": ["text-generation==0.7.0"],
    "outlines": ["outlines[openai]==1.3.3"],
}
AI_SDK = ["ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7"]
CODEX = ["@openai/codex@0.171.0"]
CLIENT_S = 600
TRIES = 4
INSTRUCTIONS = "You help with code. Be brief."  # Codex's own are longer than the model's context
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, options = tmp_path_factory.mktemp("clients"), {"model": str(FILE), "dtype": "float32"}
    # Codex's prompt has some 5,400 tokens, and its answers are bounded by the context alone
    served: Any = {**options, "max_model_len": 6000, "served_model_name": clients.MODEL}
    with serving(folder, app="app:create_app()", **served) as server:
        yield server.url


def made(name: str, wanted: Sequence[str], commands: Sequence[Sequence[str]]) -> Path:
    """The folder that the commands install into; skips the test where they cannot."""
    folder = BUILD / "clients" / name
    installed = folder / "installed.json"
    if installed.exists() and json.loads(installed.read_text()) == list(wanted):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            told = (done.stderr or done.stdout).strip()[-300:]
            assert NO_NETWORK.search(done.stderr) or "notarget" in told, told
            pytest.skip(f"{name} cannot be installed: {told}")
    installed.write_text(json.dumps(list(wanted)))
    return folder


def environment(name: str) -> Path:
    """Its Python."""
    wanted = PYTHON[name]
    name = name.removesuffix("_responses").removesuffix("_proxy")
    venv_of = [sys.executable, "-m", "venv", "."]
    install = ["bin/pip", "install", "--disable-pip-version-check", "--quiet", *wanted]
    return made(name, wanted, [venv_of, install]) / "bin" / "python"


def packages(name: str, wanted: Sequence[str]) -> Path:
    """The folder of these packages of npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    return made(name, wanted, [["npm", "install", "--no-fund", "--no-audit", *wanted]])


def answered(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """The JSON on the last line of a client's output."""
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it is downloaded
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=CLIENT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def understood(told: dict[str, Any], *, of_text: bool = True) -> None:
    """A chat, the same as a stream, a call of a tool and an answer of a schema."""
    assert told["chat"]
    assert len(told["stream"]) > 1
    if of_text:
        assert "".join(told["stream"]) == told["chat"]
    name, arguments = told["tool"]
    assert name == "weather"
    for found in (arguments, told["schema"]):
        assert found.keys() <= {"city", "kind"}
        assert len(found["city"]) <= 30


@pytest.mark.long
@pytest.mark.usefixtures("smollm2_file")
@pytest.mark.parametrize("name", PYTHON)
def test_a_client_is_understood(url: str, tmp_path: Path, name: str) -> None:
    told = answered([str(environment(name)), clients.__file__, name, url], tmp_path)
    understood(told, of_text=name != "instructor")  # which streams objects


@pytest.mark.long
@pytest.mark.usefixtures("smollm2_file")
def test_vercels_ai_sdk_is_understood(url: str) -> None:
    folder = packages("ai_sdk", AI_SDK)
    script = Path(clients.__file__).with_name("ai_sdk.mjs")
    shutil.copy(script, folder)  # it imports what is installed there
    understood(answered(["node", script.name, url], folder))


def codex(url: str, folder: Path, prompt: str, *options: str) -> subprocess.Popen[str]:
    """Codex CLI, which streams all answers, on a server; its output are events as JSON lines."""
    (folder / "instructions.md").write_text(INSTRUCTIONS)
    provider = {"name": "local", "base_url": f"{url}/v1", "wire_api": "responses"}
    settings = {
        "model": clients.MODEL,
        "model_provider": "local",
        "model_instructions_file": str(folder / "instructions.md"),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += ["[model_providers.local]", *(f"{k} = {json.dumps(v)}" for k, v in provider.items())]
    (folder / "config.toml").write_text("\n".join(lines))
    program = packages("codex", CODEX) / "node_modules" / ".bin" / "codex"
    command = [str(program), "exec", "--json", "--skip-git-repo-check", *options, prompt]
    env = {**os.environ, "CODEX_HOME": str(folder)}
    return subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )


def items(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What Codex completes, as it does, up to a failure."""
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                if event["type"] == "item.completed":
                    yield event["item"]
        finally:
            process.kill()


def says(found: Iterator[dict[str, Any]]) -> list[str]:
    return [one["text"] for one in found if one["type"] == "agent_message"]


@pytest.mark.long
@pytest.mark.usefixtures("smollm2_file")
def test_codex_chats(url: str, tmp_path: Path) -> None:
    """It sets no temperature: an answer may be a call, or too long."""
    prompt = 'Paris is a city. Write {"city": "Paris"}.'
    told = (codex(url, tmp_path, prompt, "--sandbox", "read-only") for _ in range(TRIES))
    assert any("".join(says(items(process))) for process in told)


@pytest.mark.long
def test_codex_runs_the_command_that_a_model_calls(tmp_path: Path) -> None:
    """The trained model is too small to call what it is not made to."""
    call = {"name": "exec_command", "arguments": {"cmd": "echo se''en"}}
    answer = tmp_path / "answer.txt"
    answer.write_text(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
    model = {"answer": answer, "context": 2**17}
    with serving(tmp_path, hash_model=model, served_model_name=clients.MODEL) as server:
        process = codex(server.url, tmp_path, "Run it.", "--sandbox", "danger-full-access")
        ran = next(one for one in items(process) if one["type"] == "command_execution")
    assert ran["aggregated_output"].strip() == "seen"


LM_EVAL = """
import json, sys
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
settings, cases = json.load(sys.stdin)
asked = [Instance("loglikelihood", {}, tuple(case), n) for n, case in enumerate(cases)]
print(json.dumps(LocalCompletionsAPI(**settings).loglikelihood(asked)))
"""


@pytest.mark.long
@pytest.mark.usefixtures("smollm2_file")
def test_lm_eval_reads_the_log_likelihoods_of_transformers(url: str, tmp_path: Path) -> None:
    """Each question is followed by the next one, as more of them or as another text."""
    pairs = itertools.product(itertools.pairwise(QUESTIONS), "\n ")
    cases = [(question, separator + after) for (question, after), separator in pairs]
    hub, _ = _Vocabulary(read_header(FILE).metadata, str(FILE))._byte_level()
    hub.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    model = {
        "model": clients.MODEL, "base_url": f"{url}/v1/completions", "tokenizer": str(tmp_path),
        "tokenizer_backend": "huggingface", "max_length": 512, "num_concurrent": 8,
    }  # fmt: skip
    told = asked("lmeval", LM_EVAL, [model, cases])
    peer, encode = transformers_model(), load_tokenizer(str(FILE)).encode
    for (context, continuation), (logprob, is_greedy) in zip(cases, told, strict=True):
        first, ids = len(encode(context)), encode(context + continuation)
        with torch.no_grad():
            logprobs = peer(torch.tensor([ids])).logits[0, first - 1 : -1].log_softmax(-1)
        wanted = torch.tensor(ids[first:])
        total = float(logprobs.gather(1, wanted[:, None]).sum())
        assert logprob == pytest.approx(total, abs=1e-3), (context, continuation)
        assert is_greedy == bool((logprobs.argmax(-1) == wanted).all())
