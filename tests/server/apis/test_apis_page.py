"""The examples of the pages on APIs run."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.server.process import PATIENCE_S, ROOT, Server

PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("apis", "openai", "tgi")]
FENCED = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLES = [example for page in PAGES for example in FENCED.findall(page)]


@pytest.mark.parametrize(("language", "source"), EXAMPLES)
def test_an_example_runs(embedded: Server, language: str, source: str) -> None:
    source = source.replace("http://127.0.0.1:8500", embedded.url)
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
    done = subprocess.run(
        [*command, source], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert '{"error"' not in done.stdout
