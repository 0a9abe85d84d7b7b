"""Contexts beyond a thousand tokens: a long prompt beside many decodes, and a small memory."""

from __future__ import annotations

import subprocess
import sys
from pydoc_data import topics

import pytest

from benchmarks.bare import Job, run_bare
from model import LoadOptions, load_model
from runtime.executor import Executor
from scheduling.policies.stall_free import StallFree
from scheduling.prediction.predictor import Predictor
from tests.model.memory.test_memory import ROOT
from tests.smollm2 import FILE
from text.vocabulary import load_tokenizer

LONG, DECODES = 8000, 32
GIB = 2**30
PROGRAM = """
import resource, sys
import psutil
import runtime.budget
from model import LoadOptions, load_model
from seams import Opening, Sampling, Step
limit, context = 8 * 2**30, 32_768
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
runtime.budget.container_room_bytes = lambda: limit - psutil.Process().memory_info().rss
model = load_model(
    LoadOptions("dynamic", sys.argv[1], "cpu", "bfloat16", 0, 2, max_model_len=context)
)
model.warm_up()
blocks = range(context // model.block_tokens)
model.open([Opening(0, [0] * context, context, Sampling(temperature=0))])
model.start([Step(0, context - 100, 100, True, blocks)], ()).result()  # the end of such a prompt
peak = next(line for line in open("/proc/self/status") if line.startswith("VmPeak"))
print(model.num_blocks * model.block_tokens, int(peak.split()[1]) * 1024)
"""


def smollm2(dtype: str) -> Executor:
    return load_model(
        LoadOptions("dynamic", str(FILE), "cpu", dtype, 0, DECODES + 1, kv_memory="20000tokens")
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("smollm2_file")
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_prompt_of_8000_tokens_beside_32_decodes(dtype: str) -> None:
    """Every iteration that computes a part of it advances every decode, too."""
    model, predictor = smollm2(dtype), Predictor()
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    ids = load_tokenizer(str(FILE)).encode(text[: 8 * LONG])[:LONG]
    short = [Job(ids[n : n + 20 + n], 100) for n in range(DECODES)]
    policy = StallFree("auto", DECODES + 1, predictor)
    work = [*short, Job(ids, 8, arrival_s=1.0)]
    run = run_bare(model, policy, "dynamic", work, DECODES + 1, predictor=predictor)
    assert [len(output) for output in run.outputs] == [100] * DECODES + [8]
    present = [
        [n for n, each in enumerate(run.tally.iterations) if inference.id in each.rows.requests]
        for inference in run.inferences
    ]
    for numbers in present[:-1]:
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert len(present[-1]) > 20  # chunks
    assert min(numbers[-1] for numbers in present[:-1]) > present[-1][10]  # side by side
    long = max(run.tally.requests, key=lambda record: record.prompt_tokens)
    took_s = (long.first_token_s or 0.0) - long.arrival_s
    longest_s = max(run.tally.iterations[n].duration_s for n in present[-1])
    print(f"{dtype}: {len(present[-1])} iterations, TTFT {took_s:.1f} s, longest {longest_s:.2f} s")
    if dtype == "float32":
        alone = run_bare(model, StallFree(), "dynamic", [Job(ids, 8)], 1)
        assert alone.outputs[0] == run.outputs[-1]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("model", ["random:llama-3.2-1b", "random:qwen3-0.6b"])
def test_a_context_of_32768_tokens_fits_into_8_gib(model: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=1700,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kv_tokens, peak_bytes = map(int, done.stdout.split())
    print(f"{model}: room for {kv_tokens} tokens, peak of address space {peak_bytes / GIB:.2f} GiB")
    assert kv_tokens >= 32_768
