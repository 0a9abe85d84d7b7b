"""Runs on disk are the runs that were measured."""

from __future__ import annotations

import gzip
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from client.load.records import Outcome, RawError, Run, read_raw, write_raw
from client.workloads.workload_file import write_workload
from tests.client.conftest import workload

micros = st.integers(0, 10**9).map(lambda n: n / 1e6)
deliveries = st.lists(st.tuples(micros, st.integers(1, 3)), max_size=5).map(tuple)
outcomes = st.builds(
    Outcome, index=st.integers(0, 99), deadline_s=st.none() | micros, intended_s=st.none() | micros,
    sent_s=micros, first_s=st.none() | micros,
    deliveries=deliveries, failure=st.none() | st.text(), unfinished=st.booleans(),
)  # fmt: skip
WORKLOAD = workload(requests=3)


@given(st.lists(outcomes, max_size=4), st.lists(st.tuples(micros, st.integers(0, 9)), max_size=4))
def test_reading_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    seen: list[Outcome],
    samples: list[tuple[float, int]],
) -> None:
    run = Run("t", WORKLOAD, tuple(seen), tuple(samples), 1.5, "ids", streamed=True)
    folder = tmp_path_factory.mktemp("raw")
    write_workload(WORKLOAD, folder / "workload.jsonl")
    write_raw(folder, [({"seed": 1}, run), ({"seed": 2}, run)])
    assert list(read_raw(folder)) == [({"seed": 1}, run), ({"seed": 2}, run)]


HEADER = gzip.compress(b"", mtime=0)[:10]


@pytest.mark.parametrize(
    "content", [b"no gzip", None, gzip.compress(b"3\n", mtime=0), HEADER + b"\xff" * 20]
)
def test_a_file_without_runs_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "runs.jsonl.gz").write_bytes(content)
    with pytest.raises(RawError, match=r"runs\.jsonl\.gz"):
        list(read_raw(tmp_path))
