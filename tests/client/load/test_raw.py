"""Files that are no runs. What was written is read again where reports are made from it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from client.load.records import RawError, read_raw

HEADER = gzip.compress(b"", mtime=0)[:10]


@pytest.mark.parametrize(
    "content", [b"no gzip", None, gzip.compress(b"3\n", mtime=0), HEADER + b"\xff" * 20]
)
def test_a_file_without_runs_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "runs.jsonl.gz").write_bytes(content)
    with pytest.raises(RawError, match=r"runs\.jsonl\.gz"):
        list(read_raw(tmp_path))
