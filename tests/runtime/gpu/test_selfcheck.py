"""The kernels are used where they compute what plain torch does, and nowhere else; and what is
measured of them is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels.gpu.attention
import kernels.gpu.layers
import kernels.gpu.sampling
import runtime.gpu.tuning
import runtime.gpu.twins
from kernels.gpu.attention import CANDIDATES
from model import LoadOptions, load_model
from models.gpt2 import Attend
from runtime.cache import KVPool, KVShape
from runtime.gpu import selfcheck
from runtime.gpu.comparison import Heads, differs, replay_differs
from runtime.gpu.paged import Packed, PagedAttention
from runtime.gpu.selfcheck import Verdict, check
from runtime.gpu.tuning import chosen
from runtime.gpu.twins import draws_differ
from seams import LoadError
from tests.kernels.conftest import launched
from tests.models.families import FAMILIES, write
from tests.runtime.gpu.pretend import pretend_gpus

CPU = torch.device("cpu")
SMALL = Heads(heads=2, kv_heads=1, head_dim=16, block_tokens=16, dtype="float32")
TILE = 8


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The interpreter is slow."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtime.gpu.twins, "VOCABULARY", 201)
    monkeypatch.setattr(runtime.gpu.twins, "SEEDS", 1)


# --- what is compared -----------------------------------------------------------------------


def test_kernels_with_the_same_results_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the process says it that compares."""
    monkeypatch.setattr(sys, "argv", ["selfcheck", "cpu", "2", "1", "16", "16", "float32"])
    selfcheck.main()
    assert Verdict(**json.loads(capsys.readouterr().out)) == Verdict()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda found, keys, k: found[0].fill_(torch.nan), "others differ by nan"),
        (lambda found, keys, k: found[0].zero_(), "1 new tokens over 0 others differ by"),
        (lambda found, keys, k: keys[0].copy_(k[-1]), "not stored in their slots"),  # padding is
    ],
)
def test_attention_that_differs_is_reported_with_what_is_wrong(
    damage: Callable[[Tensor, Tensor, Tensor], object], words: str
) -> None:
    def damaged(packed: Packed[Tensor], pool: KVPool) -> Attend:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            found = PagedAttention(packed, pool)(layer, q, k, v)
            damage(found, pool.slots(layer)[0], k)
            return found

        return attend

    assert words in str(differs(damaged, TILE, SMALL, CPU))


def test_a_replay_is_compared_with_other_numbers_than_were_recorded() -> None:
    def stale(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A graph that has recorded numbers instead of addresses."""
        found = run()
        return lambda: found

    asked = (PagedAttention, TILE, SMALL, CPU)
    assert replay_differs(*asked, lambda run: run) is None
    assert "differs by" in str(replay_differs(*asked, stale))


def test_another_token_is_reported_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = kernels.gpu.sampling.draw

    def wrong(*asked: object) -> Tensor:
        tokens: Tensor = draw(*asked)
        return tokens + (asked[4] < 0.85)  # type: ignore[operator]

    monkeypatch.setattr(kernels.gpu.sampling, "draw", wrong)
    assert "top_p=0.8" in str(draws_differ(CPU, torch.float32))


# --- what is made of it ---------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("found", "reason", "kept"),
    [
        (Verdict(), None, True),
        (Verdict("off by 0.5", "off by 0.5"), "off by 0.5", True),
        (Verdict(graphs="a replay is off by 0.5"), "off by 0.5", True),
        (subprocess.TimeoutExpired("selfcheck", 60), "did not end within 180 s", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 MiB", "memory", False),
        (Verdict(graphs="CUDA error: out of memory", lasting=False), "out of memory", False),
    ],
    ids=["agrees", "kernel differs", "replay differs", "time-out", "memory", "a graph's memory"],
)
def test_a_result_of_the_arithmetic_is_kept_and_what_may_pass_is_tried_again_at_the_next_start(
    found: object,
    reason: str | None,
    kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    commands = answers(monkeypatch, found, Verdict())
    first, second = check(CPU, SMALL), check(CPU, SMALL)
    assert (reason or "") in str(first.graphs)
    assert (first.graphs is None) == (reason is None)
    assert second == (first if kept else Verdict())
    assert len(commands) == (1 if kept else 2)
    assert not reason or reason in caplog.text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gpu_without_fitting_tensor_cores_does_not_use_the_kernel(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = Heads(heads=16, kv_heads=16, head_dim=64, block_tokens=16, dtype=dtype)
    gpu = torch.device("cuda", 0)
    commands = answers(monkeypatch, Verdict())
    pretend_gpus(monkeypatch, capability=(7, 5))
    reason = check(gpu, heads).kernel
    assert f"computes {dtype} without tensor cores, and this GPU has 7.5" in str(reason)
    assert not commands
    pretend_gpus(monkeypatch, capability=(8, 0))
    assert check(gpu, heads) == Verdict()


def test_a_model_with_more_query_heads_than_a_tile_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Falcon 7B has as many."""
    pretend_gpus(monkeypatch)
    config = FAMILIES["qwen3"]()
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 71, 1, 64
    write(config, tmp_path)
    with pytest.raises(LoadError, match=r"71 query heads .* takes 64 at most .* --device cpu"):
        load_model(LoadOptions("dynamic", str(tmp_path), "cuda", "bfloat16", 0, max_batch_size=2))


def test_the_fastest_launch_is_chosen_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.gpu.tuning, "POOL_BYTES", 1)
    shape = KVShape(3, 1, 16, torch.float32, CPU)
    times_s = iter([3.0, 2.0, *[4.0] * (len(CANDIDATES) - 2)])

    def seconds(run: Callable[[], object], device: torch.device) -> float:
        run()
        return next(times_s)

    with launched() as names:
        assert [chosen(2, shape, seconds) for _ in range(2)] == [CANDIDATES[1]] * 2
    assert names == ["decode", "merge"] * len(CANDIDATES)
