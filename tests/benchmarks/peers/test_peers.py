"""What counts as a peer's figure, and which peer ours is compared with."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bare import Job
from benchmarks.harness.report import table_of
from benchmarks.limits import Limits, Pass
from benchmarks.peers import results, work
from benchmarks.peers.__main__ import chosen
from benchmarks.peers.environments import HERE, PEERS
from client.experiment import Experiment, Found
from models.gpt2 import GPTConfig


class SmallWork(work.Work):
    """Two requests, without a checkpoint."""

    def __init__(self, scratch: Path) -> None:
        self.folder, self.scratch = scratch, scratch
        self.config = GPTConfig(vocab_size=11, context=16, n_layer=1, n_head=1, n_embd=4)
        self.jobs = [Job([1], 2), Job([2, 3], 1)]


def run(tmp_path: Path, program: str) -> results.Result:
    """A program in the place of a runner."""
    script = tmp_path / "runner.py"
    script.write_text(f"import json, pathlib, sys\n{program}\n")
    command = [sys.executable, str(script)]
    return SmallWork(tmp_path).do("it", command, "with_it", "float32", None, {})


def writes(outputs: str) -> str:
    done = f"{{'seconds': 0.5, 'settings': 'its own', 'outputs': {outputs}, 'passes': []}}"
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


def rounds_of(*tokens: int) -> list[results.Result]:
    """A second each."""
    return [results.Result(2, n, 1.0, passes=[Pass(1, 1, 1, 1)]) for n in tokens]


def found(rounds: dict[str, list[results.Result]], *dtypes: str) -> list[Found]:
    sides = dict.fromkeys(rounds, lambda _: None)
    ran = Found(Experiment(sides, results.METRICS, results.OURS), rounds)
    return [results.of_precision(ran, dtype) for dtype in dtypes]


def figures(tmp_path: Path, rounds: Sequence[Found]) -> dict[tuple[str, str], Any]:
    limits = Limits(1e9, {"float32": 1e9})
    told = results.summary(rounds, limits, SmallWork(tmp_path).least_seconds)
    return {(dtype, name): value for dtype, name, value in told}


def test_ours_is_compared_with_the_fastest_valid_peer_round_by_round(tmp_path: Path) -> None:
    rounds = {
        "float32 ours": rounds_of(100, 120, 80),  # the machine drifts by half
        "float32 slow": rounds_of(40, 40, 40),
        "float32 fast": rounds_of(80, 96, 64),
        "float32 broken": [results.Result(2, error="no tokens")] * 3,
        "int8 narrow": rounds_of(50, 60, 40),
    }
    of = found(rounds, "float32", "int8")
    assert list(of[0].turns) == ["ours", "slow", "fast"]
    best = figures(tmp_path, of)["float32", "ours / the best peer (fast)"]
    assert (best.value, best.low, best.high) == pytest.approx((1.25, 1.25, 1.25))
    assert best.drift == pytest.approx(1.5)
    assert "| float32 | fast | 80 | 80 | 2 | 0.800 [0.800, 0.800], a tie |" in table_of(of[:1])


def test_ours_is_also_compared_with_the_fastest_peer_in_any_precision(tmp_path: Path) -> None:
    rounds = {
        "float32 ours": rounds_of(100, 120),
        "float32 float": rounds_of(50, 60),
        "int8 narrow": rounds_of(80, 96),
    }
    told = figures(tmp_path, found(rounds, "float32", "int8"))
    assert told["float32", "ours / the best peer (float)"].value == pytest.approx(2)
    in_any = told["float32", "ours / the best peer in any precision (narrow in int8)"]
    assert in_any.value == pytest.approx(1.25)


def test_peers_are_chosen_with_some_of_their_precisions() -> None:
    peers, with_nobatch = chosen(["llama.cpp=file,int8", "vLLM"])
    assert [(peer.name, peer.dtypes) for peer in peers] == [
        ("llama.cpp", ("file", "int8")),
        ("vLLM", ("bfloat16", "float32", "int8")),
    ]
    assert not with_nobatch
    assert chosen([results.NOBATCH]) == ([], True)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("vllm", "OpenVINO GenAI"), ("vLLM=q4_0", "allowed: bfloat16, float32, int8")],
)
def test_an_unknown_peer_or_precision_is_refused_with_those_that_exist(
    name: str, allowed: str
) -> None:
    with pytest.raises(ArgumentTypeError, match=allowed):
        chosen([name])


def test_every_peer_has_pins_and_a_runner() -> None:
    for peer in PEERS:
        assert (HERE / "pins" / f"{peer.environment}.txt").exists()
        assert (HERE / "engines" / f"{peer.runner}.py").exists()
