"""The budget of a step: its parts are the whole."""

from __future__ import annotations

import json

import pytest

from benchmarks import limits
from benchmarks.kernels import step
from benchmarks.limits import Limits, bytes_of, operations_of, pass_of, weights_of
from models.gpt2 import GPTConfig
from models.shapes import SHAPES
from models.weights.pieces import shapes_of

CONFIG = GPTConfig(vocab_size=11, context=64, n_layer=3, n_head=2, n_embd=4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_parts_need_what_the_machines_limit_counts(dtype: str) -> None:
    shape = step.Shape(rows=5, tokens=2, past=7)
    needed = step.needs(CONFIG, dtype, shape)
    done = pass_of([(7, 2, True)] * 5)
    assert sum(operations for _, operations in needed.values()) == operations_of(done, CONFIG)
    biases_and_norms = weights_of(CONFIG) - CONFIG.n_layer * 12 * CONFIG.n_embd**2
    assert (
        sum(read for read, _ in needed.values())
        == bytes_of(done, CONFIG, dtype) - limits.WEIGHT_BYTES[dtype] * biases_and_norms
    )


def test_the_parts_of_a_decoder_need_what_the_machines_limit_counts() -> None:
    shape, config = step.Shape(rows=5, tokens=2, past=7), SHAPES["qwen3-0.6b"]
    bits = {piece: 4.5 if "blocks" in piece else 8.5 for piece in shapes_of(config)}
    needed = step.needs(config, "int8", shape, bits)
    done = pass_of([(7, 2, True)] * 5)
    assert sum(operations for _, operations in needed.values()) == operations_of(done, config)
    norms = config.n_layer * (2 * config.n_embd + 2 * config.head_dim)
    read = sum(read for read, _ in needed.values())
    assert read == pytest.approx(bytes_of(done, config, "int8", bits) - norms * 4.5 / 8, abs=9)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_steps_time_is_that_of_its_parts(
    dtype: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "measure", lambda dtypes: Limits(1e9, dict.fromkeys(dtypes, 1e9)))
    step.main(["--model", "embedded", "--dtype", dtype, "--rows", "2", "--past", "5"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = {part["name"] for part in report["parts"]}
    assert names >= {"qkv", "attn_proj", "fc", "mlp_proj", "head", "attention", "norms", "sampling"}
    assert all(part["seconds"] > 0 for part in report["parts"])
