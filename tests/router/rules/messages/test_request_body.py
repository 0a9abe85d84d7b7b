"""What is read of a body, against the standard library's JSON."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.rules.messages.request_body import BLOCK_BYTES, MAX_BLOCKS, parse_body, prefix_blocks

NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.none() | st.text(),
        "service_tier": st.sampled_from(["flex", "auto", None, 1, {}]),
        "class": st.sampled_from(["deferred", "immediate", ["deferred"]]),
        "prompt": NESTED,
        "messages": NESTED,
        "other": NESTED,
    },
)


@given(FIELDS, st.booleans(), st.sampled_from([None, 2]))
def test_a_body_is_read_as_the_standard_library_reads_it(
    fields: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    try:
        body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:  # a lone surrogate is no text that could be sent
        return
    read = parse_body(body, "named")
    assert read.model == (fields.get("model") or "named")
    deferred = fields.get("service_tier") == "flex" or fields.get("class") == "deferred"
    assert read.deferred == deferred


def test_reading_a_large_prompt_builds_nothing_of_it() -> None:
    body = json.dumps({"model": "m", "prompt": [*range(10**6)], "messages": ["é" * 10**6]}).encode()
    tracemalloc.start()
    try:
        read = parse_body(body)
        blocks = prefix_blocks("m", read.prompt)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (read.model, len(blocks)) == ("m", MAX_BLOCKS)
    assert peak_bytes < 256 * 2**10


@given(st.text(min_size=1), st.integers(1, 5))
def test_a_conversation_shares_the_blocks_of_its_earlier_turns(text: str, turns: int) -> None:
    earlier = [{"role": "user", "content": text * 50}] * turns
    first, second = (
        prefix_blocks("m", parse_body(json.dumps({"messages": said}).encode()).prompt)
        for said in (earlier, [*earlier, {"role": "user", "content": "and then?"}])
    )
    whole = len(json.dumps(earlier)) - 1  # but for the closing bracket
    shared = whole // BLOCK_BYTES
    assert list(first[:shared]) == list(second[:shared])
    assert prefix_blocks("other", memoryview(b"x" * 256)) != prefix_blocks(
        "m", memoryview(b"x" * 256)
    )


@pytest.mark.parametrize(
    ("path", "body", "repeatable"),
    [
        ("/v1/chat/completions", b"{}", True),
        ("/v1/engines/a/b/completions", b"{}", True),
        ("/v1/embeddings", b"{}", True),
        ("/generate", b"{}", True),
        ("/v1/responses", b'{"store": false}', True),
        ("/v1/responses", b'{"background": true}', False),
        ("/v1/images/generations", b"{}", False),
        ("/v1/fine_tuning/jobs", b"{}", False),
        ("/v1/vector_stores", b"{}", False),
    ],
)
def test_what_changes_nothing_may_be_sent_again(path: str, body: bytes, repeatable: bool) -> None:
    assert parse_body(body).is_repeatable(path) is repeatable
