"""A model takes little more memory than its weights, plans memory for `--max-model-len`, and one
that cannot fit is not loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import runtime.budget
from model import LoadOptions, load_model
from runtime.executor import Executor
from seams import LoadError
from tests.models.families import CONTEXT

ROOT = Path(__file__).parents[3]
MODEL = "random:smollm2-135m"
PARAMETERS = 134_515_008
PROGRAM = """
import sys
from model import LoadOptions, load_model
model = load_model(LoadOptions("dynamic", sys.argv[1], "cpu", sys.argv[2], 0, 2, "2000tokens"))
weights = sum(t.nbytes for t in {
    t.data_ptr(): t for t in (*model.network.parameters(), *model.network.buffers())
}.values())
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(weights, int(peak.split()[1]) * 1024 - model.pool.keys.nbytes - model.pool.values.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_little_more_than_the_weights() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, MODEL, "int8"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    weights_bytes, peak_bytes = map(int, done.stdout.split())
    assert weights_bytes > PARAMETERS
    assert peak_bytes <= 1.15 * weights_bytes + 300e6


def test_memory_is_planned_for_the_limit_and_no_more_than_the_models_context(
    checkpoint: tuple[Path, object],
) -> None:
    def limited(tokens: int | None) -> Executor:
        folder = str(checkpoint[0])
        asked = LoadOptions("dynamic", folder, "cpu", "float32", 0, 4, max_model_len=tokens)
        return load_model(asked)

    whole, short = limited(None), limited(40)
    assert (whole.context, short.context) == (CONTEXT, 40)
    assert (whole.num_blocks, short.num_blocks) == (4 * 6, 4 * 3)
    assert short.info.parameters == whole.info.parameters
    with pytest.raises(LoadError, match=rf"is 97, .* has {CONTEXT} tokens"):
        limited(CONTEXT + 1)


@pytest.mark.parametrize(
    ("dtype", "needed", "weights"), [("float32", "0.70", "0.61"), ("int8", "0.21", "0.18")]
)
def test_what_cannot_fit_is_refused_before_loading_with_the_sum(
    dtype: str, needed: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.load", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(runtime.budget, "_available", lambda: (2**27, "on the machine"))
    with pytest.raises(LoadError) as refused:
        load_model(LoadOptions("dynamic", MODEL, "cpu", dtype, 0, 2))
    assert f"needs {needed} GiB of memory: weights in {dtype} {weights} GiB" in str(refused.value)
    assert "0.12 GiB are available (on the machine)" in str(refused.value)
