"""What of the official JSON Schema Test Suite differs: schemas that are refused, and values that a
grammar takes or leaves against the standard.

    python -m benchmarks.json_schema --out results/reference-json-schema

The suite is a part of jsonschema's source distribution, which pip downloads. Each of its values is
tried as `json.dumps` writes it. A schema is asked for as by `guided_json`, with all of its keywords
enforced. A value of a schema may be left, since a grammar writes each in one of its forms; a value
that is none of the schema must not be taken.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.report import options, table
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import Compiled, GrammarError, Grammars
from text.tokenizer import Tokenizer

DRAFT = "draft2020-12"
END = 256
SHOWN_CHARACTERS = 110


@dataclass(slots=True)
class Tried:
    """The suite's schemas and values. `left` are values of their schemas, and `taken` values that
    are none; each with its file and its schema."""

    schemas: int = 0
    values: int = 0  # of the schemas that are not refused
    refused: list[str] = field(default_factory=list)  # why
    left: list[tuple[str, str, str]] = field(default_factory=list)
    taken: list[tuple[str, str, str]] = field(default_factory=list)


def main() -> None:
    out: Path | None = options(__doc__, rounds=None).parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        report = card(tried(download(Path(folder))))
    print(report)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "json-schema.md").write_text(report + "\n")


def download(folder: Path) -> Path:
    """The suite's values for one draft, of the installed version of jsonschema."""
    wanted = f"jsonschema=={importlib.metadata.version('jsonschema')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run(
        [*pip, "--no-binary", "jsonschema", "--dest", str(folder), wanted],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as held:
        held.extractall(folder, filter="data")
    (found,) = folder.glob(f"*/json/tests/{DRAFT}")
    return found


def tried(folder: Path) -> Tried:
    """All files of the suite, its optional ones included."""
    grammars, found = Grammars(lambda: _of_bytes()), Tried()
    for path in sorted(folder.rglob("*.json")):
        name = str(path.relative_to(folder).with_suffix(""))
        for case in json.loads(path.read_text()):
            if isinstance(case["schema"], dict):
                _try(found, name, case["schema"], case["tests"], grammars)
    return found


def _of_bytes() -> Tokenizer:
    tokens = {i: bytes([i]) for i in range(END)} | {END: b"<end>"}
    return Tokenizer(lambda text: list(text.encode()), tokens, [END])


def _try(found: Tried, name: str, schema: Any, cases: list[Any], grammars: Grammars) -> None:
    found.schemas += 1
    try:
        compiled = grammars.compiled(of_schema(schema))
    except GrammarError as error:
        found.refused.append(str(error))
        return
    for case in cases:
        found.values += 1
        text = json.dumps(case["data"], ensure_ascii=False)
        if takes(compiled, text) != case["valid"]:
            differing = found.left if case["valid"] else found.taken
            shown = {key: value for key, value in schema.items() if key != "$schema"}
            differing.append((name, json.dumps(shown, ensure_ascii=False), text))


def takes(compiled: Compiled, text: str) -> bool:
    matcher, ids = compiled.matcher.deep_copy(), list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def card(found: Tried) -> str:
    versions = [importlib.metadata.version(name) for name in ("jsonschema", "llguidance")]
    differing = [
        (name, f"`{_cell(schema)}`", f"`{_cell(text)}`", kind)
        for kind, values in (("taken", found.taken), ("left", found.left))
        for name, schema, text in values
    ]
    reasons = Counter(kind for why in found.refused for kind in _kinds(why))
    return "\n\n".join([
        f"JSON Schema Test Suite, {DRAFT}, of jsonschema {versions[0]}, with llguidance "
        f"{versions[1]}: {len(found.refused)} of {found.schemas} schemas are refused. Of "
        f"{found.values} values for the others, {len(found.left)} of their schema are left, and "
        f"{len(found.taken)} that are none are taken.",
        table("why schemas are refused | schemas:", reasons.most_common()),
        table("file | schema | value | it is", differing),
    ])  # fmt: skip


def _kinds(reason: str) -> list[str]:
    """The keywords that are not enforced, or the reason without what belongs to one schema."""
    if keys := re.fullmatch(r"Unimplemented keys: (\[.*\])", reason):
        return [f"`{key}` is not enforced" for key in json.loads(keys[1])]
    return [_cell(re.sub(r"'?https?://\S+|/\S+/ and /\S+/|: [0-9]+$", "…", reason))]


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "…"


if __name__ == "__main__":
    main()
