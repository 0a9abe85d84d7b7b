"""Code and pages use the field's words: no private ones, no software that is a person."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|left-?over|mend(ed)?|doors?|to be had|anew"
    r"|go(es)? on|(is|are|was|were|be|been) told|tells|stands in)\b",
    re.IGNORECASE,
)
TEXTS = ("*.md", "*.py", "*.cpp", "*.h", "*.js", "*.html", "*.sh", "*.proto", "*.yaml", "*.yml")
EXCEPT = (
    "results/",  # as they were recorded
    "embedded/README.md",  # the model's own words
    "tests/support/postgres.py",  # the user of that name
    "tests/test_plain_words.py",
)


def test_no_text_uses_a_private_word() -> None:
    listed = subprocess.run(
        ["git", "ls-files", *TEXTS], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in listed.stdout.splitlines()
        if not name.startswith(EXCEPT) and (ROOT / name).exists()
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)
