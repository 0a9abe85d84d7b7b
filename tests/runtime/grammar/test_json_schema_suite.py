"""The official JSON Schema Test Suite, a part of jsonschema's source distribution: what a grammar
takes is a value of its schema. What it leaves, and what is refused, is recorded."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import GrammarError, Grammars
from tests.runtime.grammar.conftest import of_bytes, takes

DRAFT = "draft2020-12"
RECORDED = Path(__file__).parents[3] / "results/reference-json-schema/json-schema.md"
SCHEMAS = "schemas"
SHOWN_CHARACTERS = 110


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


def differing(folder: Path) -> str:
    """What differs from the standard, as Markdown: schemas that are refused and why, and values
    that a grammar takes or leaves although its schema says otherwise."""
    grammars, schemas, values = Grammars(of_bytes), 0, 0
    refused: Counter[str] = Counter()
    rows: dict[str, list[tuple[str, ...]]] = {"taken": [], "left": []}
    for path in sorted(folder.rglob("*.json")):
        name = str(path.relative_to(folder).with_suffix(""))
        for case in json.loads(path.read_text()):
            if not isinstance(case["schema"], dict):
                continue
            schemas += 1
            try:
                compiled = grammars.compiled(of_schema(case["schema"]))
            except GrammarError as error:
                refused.update(reasons(str(error)))
                refused[SCHEMAS] += 1
                continue
            for tried in case["tests"]:
                values += 1
                text = json.dumps(tried["data"], ensure_ascii=False)
                if takes(compiled, text) != tried["valid"]:
                    kind = "left" if tried["valid"] else "taken"
                    asked = {k: value for k, value in case["schema"].items() if k != "$schema"}
                    shown = cell(json.dumps(asked, ensure_ascii=False))
                    rows[kind].append((name, f"`{shown}`", f"`{cell(text)}`", kind))
    versions = [importlib.metadata.version(name) for name in ("jsonschema", "llguidance")]
    number = refused.pop(SCHEMAS)
    return "\n".join([
        f"JSON Schema Test Suite, {DRAFT}, of jsonschema {versions[0]}, with llguidance "
        f"{versions[1]}: {number} of {schemas} schemas are refused. Of {values} values for the "
        f"others, {len(rows['left'])} of their schema are left, and {len(rows['taken'])} that are "
        "none are taken.\n",
        "| why schemas are refused | schemas |\n| --- | ---: |",
        *(f"| {why} | {count} |" for why, count in refused.most_common()),
        "\n| file | schema | value | it is |\n| --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in (*rows["taken"], *rows["left"])),
        "",
    ])  # fmt: skip


def reasons(text: str) -> list[str]:
    """The keywords that are not enforced, or the reason without what belongs to one schema."""
    if keys := re.fullmatch(r"Unimplemented keys: (\[.*\])", text):
        return [f"`{key}` is not enforced" for key in json.loads(keys[1])]
    return [cell(re.sub(r"'?https?://\S+|/\S+/ and /\S+/|: [0-9]+$", "…", text))]


def cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "…"


@pytest.mark.long
def test_what_differs_from_the_standard_is_what_was_recorded(tmp_path: Path) -> None:
    """`python -m tests.runtime.grammar.test_json_schema_suite` records it. Only one value is taken
    that is none of its schema: the byte order mark, a blank in ECMAScript's expressions alone."""
    assert differing(downloaded(tmp_path)) == RECORDED.read_text()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        RECORDED.write_text(differing(downloaded(Path(folder))))
