"""The passages of a page that state what was measured, filled from a recording.

A passage stands between ``<!-- measured: POLICY -->`` and ``<!-- end -->``. Without a recording it
names the command that makes one.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.claims.record import recorded
from client.claims.report import ratio, smallest

_PASSAGE = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = 120
_OPPOSITE = "the opposite"


def fill(page: Path, folder: Path) -> None:
    linked = os.path.relpath(folder, page.parent)
    page.write_text(filled(page.read_text(), recorded(folder), linked))


def filled(text: str, found: Sequence[dict[str, Any]], folder: str) -> str:
    """``folder``: of the recording, as the page links it."""

    def passage(match: re.Match[str]) -> str:
        mine = [one for one in found if one["policy"] == match[2]]
        return f"{match[1]}{measured(match[2], mine, folder)}{match[3]}"

    return _PASSAGE.sub(passage, text)


def measured(policy: str, found: Sequence[dict[str, Any]], folder: str) -> str:
    """The picture of the first model, and what was found with each."""
    if not found:
        command = f"`python -m client.claims {policy}`"
        return _wrapped(f"*Measured*: {command} measures it on your machine.")
    first = found[0]
    paper = "" if first["paper"] is None else f"; the paper's is {first['paper']:.2g}"
    over = f"`{policy}` / `{first['baseline']}`"
    picture = f"{folder}/{first['model']}/{policy}/picture.svg"
    head = f"*Measured*, {first['metric']}, {over}{paper}:"
    text = " ".join([head, *map(_one, found)])
    return f"![{policy} beside {first['baseline']}]({picture})\n\n{_wrapped(text)}"


def _one(found: dict[str, Any]) -> str:
    traffic, calm = found["traffic"], found["calm"]
    # of the others, the page says what they mean
    why, calm_why = (f": {_OPPOSITE}" if _OPPOSITE in p["reason"] else "" for p in (traffic, calm))
    return (
        f"{found['model']} **{ratio(traffic)}, {traffic['verdict']}**{why} (smallest visible "
        f"effect {smallest(found, 'traffic')}); calm {ratio(calm)}, {calm['verdict']}{calm_why}."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False) + "\n"
