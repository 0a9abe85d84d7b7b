"""The budget of a step: its parts are the whole."""

from __future__ import annotations

import json

import pytest

from benchmarks.kernels import step
from benchmarks.limits import Limits


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
