"""The example of docs/deferred.md runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.server.process import PATIENCE_S, ROOT, Server

PAGE = (ROOT / "docs" / "deferred.md").read_text()


def test_the_job_of_the_page_is_answered(embedded: Server) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    source = source.replace("http://127.0.0.1:8500", embedded.url)
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {answer["custom_id"] for answer in answers} == {f"f{n}" for n in range(20)}
