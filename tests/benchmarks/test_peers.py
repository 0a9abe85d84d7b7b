"""What counts as a peer's figure, and which peer ours is compared with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.common import Job
from benchmarks.limits import Limits, Pass
from benchmarks.peers import __main__ as peers
from benchmarks.peers.environments import HERE, PEERS
from gpt.network import GPTConfig


class SmallWork(peers.Work):
    """Two requests, without a checkpoint."""

    def __init__(self, scratch: Path) -> None:
        self.folder, self.scratch = scratch, scratch
        self.config = GPTConfig(vocab_size=11, context=16, n_layer=1, n_head=1, n_embd=4)
        self.jobs = [Job([1], 2), Job([2, 3], 1)]


def run(tmp_path: Path, program: str) -> peers.Result:
    """A program in the place of a runner."""
    script = tmp_path / "runner.py"
    script.write_text(f"import json, pathlib, sys\n{program}\n")
    command = [sys.executable, str(script)]
    return SmallWork(tmp_path).do("it", command, "with_it", "float32", None, {})


def writes(outputs: str) -> str:
    done = f"{{'seconds': 0.5, 'settings': 'its own', 'outputs': {outputs}}}"
    return f"pathlib.Path(sys.argv[2]).write_text(json.dumps({done}))"


def test_a_peer_with_every_token_counts(tmp_path: Path) -> None:
    result = run(tmp_path, writes("[[5, 6], [7]]"))
    assert (result.error, result.tokens, result.tokens_per_s) == ("", 3, 6.0)


def test_a_peer_whose_requests_have_other_lengths_has_no_figure(tmp_path: Path) -> None:
    result = run(tmp_path, writes("[[5], [6, 7]]"))
    assert "2 requests have a wrong number of tokens: 1, asked for 2" in result.error
    assert result.tokens_per_s == 0


def test_a_peer_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    assert run(tmp_path, "sys.exit('float32 is not offered')").error == "float32 is not offered"


def test_a_peer_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    result = SmallWork(tmp_path).do("it", [str(tmp_path / "none")], "with_it", "float32", None, {})
    assert "none" in result.error


def test_ours_is_compared_with_the_fastest_valid_peer(tmp_path: Path) -> None:
    results = [
        peers.Result("float32", peers.BEFORE, 2, 100, 1.0, passes=[Pass(1, 1, 1, 1)]),
        peers.Result("float32", "slow", 2, 40, 1.0),
        peers.Result("float32", "fast", 2, 80, 1.0),
        peers.Result("float32", "broken", 2, error="no tokens"),
        peers.Result("float32", peers.AFTER, 2, 100, 3.0),
    ]
    limits = Limits(1e9, {"float32": 1e9})
    found = peers.summary(results, limits, SmallWork(tmp_path))["float32"]
    assert found["ours / the best peer (fast)"] == pytest.approx(50 / 80, abs=1e-3)
    assert found["ours, after / before"] == pytest.approx(1 / 3, abs=1e-3)


def test_every_peer_has_pins_and_a_runner() -> None:
    for peer in PEERS:
        assert (HERE / f"{peer.environment}.txt").exists()
        assert (HERE / f"{peer.runner}.py").exists()
