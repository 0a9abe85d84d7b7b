"""The real lm-evaluation-harness over `/v1/completions`: it reads what `transformers` computes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks.peers.environments import BUILD
from tests.model.reference.test_smollm2 import QUESTIONS, transformers_model
from tests.peers import installed
from tests.smollm2 import FILE
from tests.support.process import serving
from text.gguf_vocabulary import _Vocabulary
from text.vocabulary import load_tokenizer, read_metadata

ENVIRONMENT = "lmeval"
TOLERANCE = 1e-3
MOST_TOKENS = 512  # of a question and what follows it
Case = dict[str, str]
Encode = Callable[[str], list[int]]


def write_task(folder: Path, cases: Sequence[Case]) -> None:
    """A task of our own."""
    folder.mkdir()
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


@torch.no_grad()
def score(peer: Any, encode: Encode, case: Case) -> tuple[float, bool]:
    """The log-likelihood of the continuation, and whether it is the greedy one."""
    ids = torch.tensor([encode(case["context"] + case["continuation"])])
    first = len(encode(case["context"]))
    logprobs = peer(ids).logits[0, first - 1 : -1].log_softmax(-1)
    wanted = ids[0, first:]
    total = logprobs.gather(1, wanted[:, None]).sum()
    return float(total), bool((logprobs.argmax(-1) == wanted).all())


def told(folder: Path, tokenizer: Path, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What the harness reads of a server with the trained model in float32."""
    harness = installed(ENVIRONMENT)
    tasks, results = folder / "tasks", folder / "results"
    write_task(tasks, cases)
    served: Any = {"model": str(FILE), "served_model_name": "asked", "dtype": "float32"}
    with serving(folder, app="app:create_app()", **served) as server:
        settings = {
            "model": "asked", "base_url": f"{server.url}/v1/completions", "tokenizer": tokenizer,
            "tokenizer_backend": "huggingface", "max_length": MOST_TOKENS, "num_concurrent": 8,
        }  # fmt: skip
        subprocess.run(
            [
                *(harness, "-m", "lm_eval", "--model", "local-completions"),
                *("--model_args", ",".join(f"{k}={v}" for k, v in settings.items())),
                *("--include_path", tasks, "--tasks", "continuations"),
                *("--log_samples", "--output_path", results),
            ],
            check=True,
            timeout=300,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(BUILD / "cache" / "hub")},
        )
    (samples,) = results.rglob("samples_continuations_*.jsonl")
    found = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(found) == len(cases)
    return found


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("smollm2_file")
def test_the_harness_reads_the_log_likelihoods_of_transformers(tmp_path: Path) -> None:
    """Each question is followed by the next one, as more of them or as another text."""
    cases = [
        {"context": question, "continuation": separator + after}
        for question, after in itertools.pairwise(QUESTIONS)
        for separator in ("\n", " ")
    ]
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    hub, _ = _Vocabulary(read_metadata(FILE), str(FILE))._byte_level()
    hub.save(str(tokenizer / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    peer, encode = transformers_model(), load_tokenizer(str(FILE)).encode
    for sample in told(tmp_path, tokenizer, cases):
        ((logprob, is_greedy),) = sample["resps"][0]
        expected, greedy = score(peer, encode, sample["doc"])
        assert float(logprob) == pytest.approx(expected, abs=TOLERANCE), sample["doc"]
        assert (is_greedy in (True, "True")) == greedy
