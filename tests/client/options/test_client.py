"""What the client's options ask for."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from client.options.client import parser, workload_of
from client.options.rules import check
from client.workloads.workload_file import Workload


def made(options: str) -> Workload:
    """What would be sent."""
    args = parser().parse_args(shlex.split(options))
    check(args)
    return workload_of(args)


def test_a_duration_sends_what_the_rate_makes_of_it() -> None:
    workload = made("--duration 20 --rate 3")
    assert len(workload.requests) == 60


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ("--numtokens_range 3 5", {3, 5}),
        ("--selection range --numtokens_range 2", {2}),
        ("--selection buckets", set(range(5, 150, 5))),
    ],
)
def test_the_originals_options_choose_the_lengths(options: str, allowed: set[int]) -> None:
    assert {r.output_tokens for r in made(options).requests} <= allowed


def test_a_duration_ends_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:4{i}.0000000,3,2\n" for i in range(6))
    )
    workload = made(f"--arrivals trace:azure,path={path} --duration 2.5")
    assert [r.at_s for r in workload.requests] == [0.0, 1.0, 2.0]
    assert workload.duration_s == 2.5
