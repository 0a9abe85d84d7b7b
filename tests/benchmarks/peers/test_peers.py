"""What counts as a peer's figure, and which peer ours is compared with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.bare import Job
from benchmarks.harness.turns import Ratio
from benchmarks.limits import Bounds, Pass
from benchmarks.peers import results, work
from client.experiment import Experiment, Found
from models.gpt2 import GPTConfig


class SmallWork(work.PeerWork):
    """Two requests, without a checkpoint."""

    def __init__(self, scratch: Path) -> None:
        self.folder, self.scratch = scratch, scratch
        self.config = GPTConfig(vocab_size=11, context=16, n_layer=1, n_head=1, n_embd=4)
        self.jobs = [Job([1], 2), Job([2, 3], 1)]


def run(tmp_path: Path, program: str) -> results.PeerResult:
    """A program in the place of a runner."""
    script = tmp_path / "runner.py"
    script.write_text(f"import json, pathlib, sys\n{program}\n")
    command = [sys.executable, str(script)]
    return SmallWork(tmp_path).do("it", command, "with_it", "float32", None, {})


def writes(outputs: str) -> str:
    done = f"{{'seconds': 0.5, 'settings': 'its own', 'outputs': {outputs}, 'passes': []}}"
    return f"pathlib.Path(sys.argv[2]).write_text(json.dumps({done}))"


def test_a_peer_with_every_token_counts_and_no_other(tmp_path: Path) -> None:
    result = run(tmp_path, writes("[[5, 6], [7]]"))
    assert (result.error, result.tokens, result.tokens_per_s) == ("", 3, 6.0)
    result = run(tmp_path, writes("[[5], [6, 7]]"))
    assert "2 requests have a wrong number of tokens: 1, asked for 2" in result.error
    assert result.tokens_per_s == 0
    assert run(tmp_path, "sys.exit('float32 is not offered')").error == "float32 is not offered"


def test_ours_is_compared_with_the_fastest_valid_peer_round_by_round(tmp_path: Path) -> None:
    speeds = {
        "float32 ours": (100, 120, 80),  # the machine drifts by half
        "float32 slow": (40, 40, 40),
        "int8 fast": (80, 96, 64),
    }
    rounds = {
        side: [results.PeerResult(2, n, 1.0, passes=[Pass(1, 1, 1, 1)]) for n in tokens]
        for side, tokens in speeds.items()
    }
    rounds["float32 broken"] = [results.PeerResult(2, error="no tokens")] * 3
    ran = Found(Experiment(dict.fromkeys(rounds, int), results.METRICS, results.OURS), rounds)
    found = [results.of_precision(ran, dtype) for dtype in ("float32", "int8")]
    assert list(found[0].turns) == ["ours", "slow"]
    limits = Bounds(1e9, {"float32": 1e9})
    told = results.summary(found, limits, SmallWork(tmp_path).least_seconds)
    ((_, name, best), *_) = told
    assert name == "ours / the best peer (fast in int8)"
    assert isinstance(best, Ratio)
    assert (best.value, best.low, best.high) == pytest.approx((1.25, 1.25, 1.25))
