"""The kernels are used where they compute what plain torch does, and nowhere else; and what is
measured of them is kept."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels.gpu.attention
import kernels.gpu.decoder
import kernels.gpu.layers
import kernels.gpu.sampling
import runtime.gpu.tuning
import runtime.gpu.twins
from kernels.gpu.attention import CANDIDATES
from model import LoadOptions, load_model
from models.gpt2 import Attend
from runtime.cache import KVPool, KVShape
from runtime.gpu import selfcheck
from runtime.gpu.choice import DeviceError
from runtime.gpu.comparison import Heads, differs, replay_differs
from runtime.gpu.layers import MULTIPLE
from runtime.gpu.paged import Packed, PagedAttention
from runtime.gpu.selfcheck import Verdict, check
from runtime.gpu.tuning import chosen
from runtime.gpu.twins import draws_differ, layers_differ
from runtime.sampling.sampler import Sampler
from tests.kernels.conftest import launched
from tests.kernels.test_gpu_sampling import Forms
from tests.models.families import FAMILIES, write
from tests.runtime.gpu.pretend import pretend_gpus

CPU = torch.device("cpu")
SMALL = Heads(heads=2, kv_heads=1, head_dim=16, block_tokens=16, dtype="float32")
TILE = 8


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is slow."""
    monkeypatch.setattr(runtime.gpu.twins, "VOCABULARY", 201)
    monkeypatch.setattr(runtime.gpu.twins, "SEEDS", 1)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


# --- what is compared -----------------------------------------------------------------------


def test_kernels_with_the_same_results_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the process says it that compares."""
    monkeypatch.setattr(sys, "argv", ["selfcheck", "cpu", "2", "1", "16", "16", "float32"])
    selfcheck.main()
    assert Verdict(**json.loads(capsys.readouterr().out)) == Verdict()


def damaged(wrong: str) -> Callable[[Packed[Tensor], KVPool], Attend]:
    def attention(packed: Packed[Tensor], pool: KVPool) -> Attend:
        right = PagedAttention(packed, pool)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if wrong == "queries are read as if they were alone":
                q = torch.as_strided(q, q.shape, (q.shape[1] * q.shape[2], q.shape[2], 1))
            found, (keys, _) = right(layer, q, k, v), pool.slots(layer)
            match wrong:
                case "off by a little":
                    found += 0.01
                case "not a number":
                    found[0] = torch.nan
                case "a row left out":
                    found[0] = 0
                case "a new key is not stored":
                    keys[packed.slots[0]] = torch.nan
                case "padding is stored":
                    keys[0] = k[-1]
            return found

        return attend

    return attention


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
    assert words in str(differs(damaged(wrong), TILE, SMALL, CPU))


def test_a_replay_is_compared_with_other_numbers_than_were_recorded() -> None:
    pools: list[KVPool] = []

    def noting(packed: Packed[Tensor], pool: KVPool) -> Attend:
        pools.append(pool)
        return PagedAttention(packed, pool)

    def stale(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A graph that has recorded numbers instead of addresses."""
        found = run()
        return lambda: found

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
    assert replay_differs(*asked, lambda run: run) is None
    assert "differs by" in str(replay_differs(*asked, stale))
    assert "stores other keys" in str(replay_differs(*asked, forgetful))


@pytest.mark.parametrize(
    ("of", "told"), [("layers.bias_gelu", "a GELU"), ("decoder.gated", "a gate of SiLU")]
)
def test_a_layer_that_differs_is_named(of: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attrgetter(of)(kernels.gpu)
    monkeypatch.setattr(f"kernels.gpu.{of}", lambda *given: kernel(*given) + 0.01)
    assert f"{told} differs by 0.01" in str(layers_differ(CPU, torch.float32))


def test_another_token_is_reported_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = kernels.gpu.sampling.draw

    def wrong(*asked: object) -> Tensor:
        tokens: Tensor = draw(*asked)
        return tokens + (asked[4] < 0.85)  # type: ignore[operator]

    monkeypatch.setattr(kernels.gpu.sampling, "draw", wrong)
    assert "top_p=0.8" in str(draws_differ(CPU, torch.float32))


def test_every_form_of_a_draw_that_a_batch_may_need_is_compared() -> None:
    """Triton compiles a form for a type, an alignment, and whether there are noise and cuts."""
    with Forms() as served:
        head = torch.zeros(1, 201 + -201 % MULTIPLE).narrow(1, 0, 201)
        Sampler(kernel=True).warm_up(head)
    with Forms() as compared:
        draws_differ(CPU, torch.float32)
    assert compared.found >= served.found


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
    "found",
    [Verdict(), Verdict("off by 0.5", "off by 0.5"), Verdict(graphs="a replay is off by 0.5")],
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
        (Verdict(graphs="CUDA error: out of memory", lasting=False), "out of memory"),
    ],
    ids=["time-out", "memory", "compiler", "a graph's memory"],
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


def test_the_fastest_launch_is_chosen_and_kept_for_this_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runtime.gpu.tuning, "POOL_BYTES", 1)
    shape = KVShape(3, 1, 16, torch.float32, CPU)
    times_s = iter([3.0, 2.0, *[4.0] * (len(CANDIDATES) - 2)])

    def seconds(run: Callable[[], object], device: torch.device) -> float:
        run()
        return next(times_s)

    with launched() as names:
        assert [chosen(2, shape, seconds) for _ in range(2)] == [CANDIDATES[1]] * 2
    assert names == ["decode", "merge"] * len(CANDIDATES)
    changed = tmp_path / "attention.py"
    changed.write_text("changed")
    monkeypatch.setattr(kernels.gpu.attention, "__file__", str(changed))
    assert chosen(2, shape, lambda *_: 1.0) == CANDIDATES[0]
