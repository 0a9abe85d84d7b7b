"""The official JSON Schema Test Suite, a part of jsonschema's source distribution: what a grammar
takes is a value of its schema. What it leaves, and what is refused, only grows by a choice."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import GrammarError, Grammars
from tests.runtime.grammar.conftest import of_bytes, takes

DRAFT = "draft2020-12"


def downloaded(folder: Path) -> Path:
    """The suite for one draft, of the installed version of jsonschema, by pip."""
    wanted = f"jsonschema=={importlib.metadata.version('jsonschema')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    try:
        subprocess.run([*pip, "--dest", str(folder), wanted], check=True)
    except subprocess.CalledProcessError:
        pytest.skip("pip cannot download the source distribution of jsonschema")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as held:
        held.extractall(folder, filter="data")
    (found,) = folder.glob(f"*/json/tests/{DRAFT}")
    return found


@pytest.mark.long
def test_grammars_take_no_value_that_is_none_of_its_schema(tmp_path: Path) -> None:
    grammars, refused, left, values = Grammars(of_bytes), 0, 0, 0
    taken: list[tuple[str, str]] = []
    folder = downloaded(tmp_path)
    for path in sorted(folder.rglob("*.json")):
        for case in json.loads(path.read_text()):
            if not isinstance(case["schema"], dict):
                continue
            try:
                compiled = grammars.compiled(of_schema(case["schema"]))
            except GrammarError:
                refused += 1
                continue
            for tried in case["tests"]:
                values += 1
                text = json.dumps(tried["data"], ensure_ascii=False)
                if takes(compiled, text) and not tried["valid"]:
                    taken.append((str(path.relative_to(folder)), text))
                left += tried["valid"] and not takes(compiled, text)
    # the byte order mark is a blank in ECMAScript's expressions, not in Rust's
    assert taken == [("optional/ecmascript-regex.json", '"\ufeff"')]
    assert values > 900
    assert refused <= 240
    assert left <= 65
