"""JSON of clients: the values are those of Python's reader, and all of them can be encoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.json_text import read_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=8,
)


def whole(value: Any) -> Any:
    """Each half of a surrogate pair as U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [whole(one) for one in value]
    if isinstance(value, dict):
        return {whole(name): whole(one) for name, one in value.items()}
    return value


@given(values, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_halves_of_surrogate_pairs_become_replacement_characters(value: Any, code: str) -> None:
    assert read_json(json.dumps(value).encode(code)) == whole(value)


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b'"\xed\xa0\x80"', b"\xff", b"1" * 5000])
def test_what_is_no_json_or_no_text_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|NaN|decode|limit"):
        read_json(body)
