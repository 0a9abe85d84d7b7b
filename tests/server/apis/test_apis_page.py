"""The examples of the README and of the pages on APIs and jobs run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import PATIENCE_S, ROOT, Server

NAMES = ("apis", "openai", "responses", "tgi", "deferred")
PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in NAMES]
FENCED = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
README = FENCED.findall((ROOT / "README.md").read_text())
EXAMPLES = [
    *((language, body) for language, body in README if body.startswith(("from ", "curl "))),
    *(example for page in PAGES[:-1] for example in FENCED.findall(page)),
    *((language, body) for language, body in FENCED.findall(PAGES[-1]) if language == "python"),
]


@pytest.mark.parametrize(("language", "source"), EXAMPLES)
def test_an_example_runs(embedded: Server, tmp_path: Path, language: str, source: str) -> None:
    of_a_job = "batches.create" in source
    source = re.sub(r"(127\.0\.0\.1|localhost):8500", rf"\1:{embedded.config.port}", source)
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
    done = subprocess.run(
        [*command, source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert '{"error"' not in done.stdout
    if of_a_job:
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert {answer["custom_id"] for answer in answers} == {f"f{n}" for n in range(20)}
