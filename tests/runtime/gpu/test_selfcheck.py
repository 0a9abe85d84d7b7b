"""The kernel is used where it computes what plain torch does, and nowhere else."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.gpu.paged import attend_rectangle
from model import LoadOptions, load_model
from models.gpt2 import Attend
from runtime.cache import KVPool
from runtime.gpu.choice import DeviceError
from runtime.gpu.comparison import Heads, differs, replay_differs
from runtime.gpu.paged import Packed
from runtime.gpu.selfcheck import Verdict, check
from tests.models.families import FAMILIES, write
from tests.runtime.gpu.pretend import pretend_gpus

CPU = torch.device("cpu")
SMALL = Heads(heads=2, kv_heads=1, head_dim=16, block_tokens=16, dtype="float32")
TILE = 8


class ByTorch:
    """`runtime.gpu.paged.PagedAttention` without a kernel. `wrong`: a defect that it has."""

    def __init__(self, packed: Packed[Tensor], pool: KVPool, wrong: str = "") -> None:
        self.packed, self.pool, self.wrong = packed, pool, wrong

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.pool.slots(layer)
        there = self.packed.slots >= 0
        slots = self.packed.slots[there]
        if self.wrong == "a new key is not stored":
            slots = slots[1:]
        keys[slots], values[slots] = k[there][-len(slots) :], v[there][-len(slots) :]
        if self.wrong == "padding is stored":
            keys[0] = k[~there][0]
        if self.wrong == "queries are read as if they were alone":
            q = torch.as_strided(q, q.shape, (q.shape[1] * q.shape[2], q.shape[2], 1))
        found = torch.zeros_like(q, memory_format=torch.contiguous_format)
        for first, count, length, begin, _ in self.packed.rows.tolist():
            mine, at = slice(first, first + count), torch.arange(length - count, length)
            pool = self.pool.keys[layer], self.pool.values[layer]
            table = self.packed.tables[begin : begin - (-length // self.pool.shape.block_tokens)]
            found[mine] = attend_rectangle(q[None, mine], *pool, table[None], at[None])[0]
        if self.wrong == "off by a little":
            found += 0.01
        if self.wrong == "not a number":
            found[0] = torch.nan
        if self.wrong == "a row left out":
            found[0] = 0
        return found


def attention(wrong: str = "") -> Callable[[Packed[Tensor], KVPool], Attend]:
    return lambda packed, pool: ByTorch(packed, pool, wrong)


def test_attention_with_the_same_results_agrees() -> None:
    assert differs(attention(), TILE, SMALL, CPU) is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("off by a little", "others differ by"),
        ("not a number", "others differ by nan"),
        ("a row left out", "1 new tokens over 0 others differ by"),
        ("queries are read as if they were alone", "others differ by"),
        ("a new key is not stored", "not stored in their slots"),
        ("padding is stored", "not stored in their slots"),
    ],
)
def test_attention_that_differs_is_reported_with_what_is_wrong(wrong: str, words: str) -> None:
    found = differs(attention(wrong), TILE, SMALL, CPU)
    assert found is not None
    assert words in found


def faithful(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return run


def stale(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A graph that has recorded numbers instead of addresses."""
    found = run()
    return lambda: found


def test_a_replay_is_compared_with_other_numbers_than_were_recorded() -> None:
    pools: list[KVPool] = []

    def noting(packed: Packed[Tensor], pool: KVPool) -> Attend:
        pools.append(pool)
        return ByTorch(packed, pool)

    def forgetful(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A graph whose result is right, and whose pool is not."""
        run()
        recorded = pools[-1]

        def replay() -> Tensor:
            found = run()
            recorded.keys.zero_()
            return found

        return replay

    asked = (noting, TILE, SMALL, CPU)
    assert replay_differs(*asked, faithful) is None
    assert "differs by" in str(replay_differs(*asked, stale))
    assert "stores other keys" in str(replay_differs(*asked, forgetful))


def answers(monkeypatch: pytest.MonkeyPatch, *found: Any) -> list[list[str]]:
    """What the comparing process does, one start after the other: an output, or a failure. Returns
    the list of its commands."""
    outcomes, commands = list(found), list[list[str]]()

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        match outcomes.pop(0):
            case Verdict() as verdict:
                line = json.dumps({name: getattr(verdict, name) for name in verdict.__slots__})
                return subprocess.CompletedProcess(command, 0, f"{line}\n", "")
            case str() as error:
                return subprocess.CompletedProcess(command, 1, "", f"Traceback ...\n{error}\n")
            case Exception() as error:
                raise error
        raise AssertionError

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "found",
    [
        Verdict(),
        Verdict("1 new tokens over 99 others differ by 0.5", "1 new tokens over 99 others ..."),
        Verdict(graphs="a replayed decode differs by 0.5 from one that is launched"),
    ],
    ids=["agrees", "the kernel differs", "a replay differs"],
)
def test_a_result_of_the_arithmetic_is_kept(
    found: Verdict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    commands = answers(monkeypatch, found)
    assert check(CPU, SMALL) == check(CPU, SMALL) == found
    assert len(commands) == 1
    told = [record.getMessage() for record in caplog.records]
    assert told.count("comparing the attention kernel with plain torch on cpu") == 1
    assert sum("(kept in " in message for message in told) == (0 if found == Verdict() else 2)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (subprocess.TimeoutExpired("selfcheck", 60), "did not end within 180 s"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB", "out of memory"),
        ("RuntimeError: Failed to find C compiler. Please specify via CC", "C compiler"),
        (
            "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "busy or unavailable",
        ),
        (Verdict(graphs="CUDA error: out of memory", lasting=False), "out of memory"),
    ],
    ids=["time-out", "memory", "compiler", "exclusive", "a graph's memory"],
)
def test_what_may_pass_is_logged_and_tried_again_at_the_next_start(
    failure: object,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    own_cache: Path,
) -> None:
    caplog.set_level(logging.WARNING)
    commands = answers(monkeypatch, failure, Verdict())
    found = check(CPU, SMALL)
    assert reason in str(found.graphs)
    assert reason in caplog.text
    assert "the next start compares again" in caplog.text
    assert not list(own_cache.rglob("paged-*.json"))
    assert check(CPU, SMALL) == Verdict()
    assert len(commands) == 2


def test_a_machine_on_which_triton_does_not_run_says_why_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own_cache: Path
) -> None:
    """A CPU without the interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    caplog.set_level(logging.WARNING)
    found = check(CPU, SMALL).kernel
    assert found is not None
    assert f"but torch's slower operators, without CUDA graphs: {found}" in caplog.text
    assert not list(own_cache.rglob("paged-*.json"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gpu_without_fitting_tensor_cores_does_not_use_the_kernel(
    dtype: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    heads = Heads(heads=16, kv_heads=16, head_dim=64, block_tokens=16, dtype=dtype)
    gpu = torch.device("cuda", 0)
    commands = answers(monkeypatch, Verdict(), Verdict())
    pretend_gpus(monkeypatch, capability=(7, 5))
    reason = check(gpu, heads).kernel
    assert f"computes {dtype} without tensor cores, and this GPU has 7.5" in str(reason)
    assert str(reason) in caplog.text
    assert not commands
    pretend_gpus(monkeypatch, capability=(8, 0))
    assert check(gpu, heads) == Verdict()


@pytest.mark.parametrize(
    ("dtype", "heads", "words"),
    [
        ("float32", 33, "33 query heads .* takes 32 at most .* allowed: --dtype bfloat16"),
        ("bfloat16", 71, "71 query heads .* takes 64 at most .* allowed: --device cpu"),
    ],
)
def test_a_model_with_more_query_heads_than_a_tile_holds_is_refused(
    dtype: str, heads: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Falcon 7B has 71 of them."""
    pretend_gpus(monkeypatch)
    config = FAMILIES["qwen3"]()
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = heads, 1, 64
    write(config, tmp_path)
    with pytest.raises(DeviceError, match=f"model '{tmp_path}' .* {words}"):
        load_model(LoadOptions("dynamic", str(tmp_path), "cuda", dtype, 0, max_batch_size=2))


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_interpreted_kernel_passes(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    heads = Heads(heads=4, kv_heads=2, head_dim=16, block_tokens=16, dtype=dtype)
    assert check(CPU, heads) == Verdict()
