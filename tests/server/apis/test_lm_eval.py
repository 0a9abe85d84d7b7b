"""The real lm-evaluation-harness over `/v1/completions`: it reads what `transformers` computes."""

from __future__ import annotations

import itertools
import json
import os
import random
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2LMHeadModel

from benchmarks.peers.environments import BUILD, install, python_of
from embedded.vocabulary import bytes_of_characters
from serving.config import Config
from tests.model.peer import CONTEXT, VOCAB, make_checkpoint
from tests.server.process import ROOT, environment, free_port, spawned, wait_ready

ENVIRONMENT = "lmeval"
TOLERANCE = 1e-3
LONGEST = 30  # characters of a prompt, each of which is a token; less than the context
Case = dict[str, str]


def write_tokenizer(folder: Path) -> None:
    """A token for every byte, and half of the vocabulary ends a text: so many greedy tokens do."""
    hub = Tokenizer(models.BPE(bytes_of_characters(), []))
    hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hub.decoder = decoders.ByteLevel()
    hub.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!", "pad_token": "!"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = {"eos_token_id": list(range(0, VOCAB, 2))}
    (folder / "generation_config.json").write_text(json.dumps(ends))


def write_task(folder: Path) -> list[Case]:
    """A task of our own: contexts with continuations, none of which is as long as another."""
    letters = random.Random(5)

    def text(length: int) -> str:
        return "".join(letters.choices(string.ascii_letters, k=length))

    lengths = itertools.product((1, 7, LONGEST), (1, 2, 5, 20))
    cases = [{"context": text(m), "continuation": text(n)} for m, n in lengths for _ in range(3)]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    (folder / "cases.jsonl").write_text(lines)
    task = {
        "task": "continuations",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "cases.jsonl")}},
        "output_type": "loglikelihood",
        "test_split": "test",
        "doc_to_text": "{{context}}",
        "doc_to_target": "{{continuation}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    }
    (folder / "continuations.yaml").write_text(yaml.safe_dump(task))
    return cases


@torch.no_grad()
def score(peer: GPT2LMHeadModel, case: Case) -> tuple[float, bool]:
    """The log-likelihood of the continuation, and whether it is the greedy one."""
    ids = torch.tensor([list((case["context"] + case["continuation"]).encode())])
    first = len(case["context"])
    logprobs = peer(ids).logits[0, first - 1 : -1].log_softmax(-1)
    wanted = ids[0, first:]
    total = logprobs.gather(1, wanted[:, None]).sum()
    return float(total), bool((logprobs.argmax(-1) == wanted).all())


@pytest.mark.long
def test_the_harness_reads_the_log_likelihoods_of_transformers(tmp_path: Path) -> None:
    install(ENVIRONMENT)
    checkpoint, tasks, results = (tmp_path / name for name in ("checkpoint", "tasks", "results"))
    peer = make_checkpoint(checkpoint)
    write_tokenizer(checkpoint)
    tasks.mkdir()
    cases = write_task(tasks)
    config = Config(
        mode="dynamic",
        model=str(checkpoint),
        port=free_port(),
        data_dir=str(tmp_path / "data"),
    )
    gunicorn = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "api/http/gunicorn_conf.py")]
    env = environment(**config.as_environment())
    with spawned(tmp_path, config, [*gunicorn, "app:create_app()"], env) as server:
        wait_ready(server)
        settings = {
            "model": "checkpoint",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer": checkpoint,
            "tokenizer_backend": "huggingface",
            "max_length": CONTEXT,
            "num_concurrent": 8,
        }
        subprocess.run(
            [
                *(python_of(ENVIRONMENT), "-m", "lm_eval", "--model", "local-completions"),
                *("--model_args", ",".join(f"{k}={v}" for k, v in settings.items())),
                *("--include_path", tasks, "--tasks", "continuations"),
                *("--log_samples", "--output_path", results),
            ],
            check=True,
            timeout=300,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(BUILD / "cache" / "hub")},
        )
    (samples,) = results.rglob("samples_continuations_*.jsonl")
    told: list[dict[str, Any]] = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(told) == len(cases)
    for sample in told:
        ((logprob, is_greedy),) = sample["resps"][0]
        expected, greedy = score(peer, sample["doc"])
        assert float(logprob) == pytest.approx(expected, abs=TOLERANCE), sample["doc"]
        assert (is_greedy in (True, "True")) == greedy
