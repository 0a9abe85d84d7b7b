"""The official JSON Schema Test Suite."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.json_schema import download, topics


@pytest.mark.long
def test_grammars_take_no_value_that_is_none_of_its_schema(tmp_path: Path) -> None:
    try:
        folder = download(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("pip cannot download the source distribution of jsonschema")
    found = list(topics(folder))
    assert sum(topic.values for topic in found) > 900
    taken = [(topic.name, text) for topic in found for _, text in topic.taken]
    # the byte order mark is a blank in ECMAScript's expressions, not in Rust's
    assert taken == [("optional/ecmascript-regex", '"\ufeff"')]
