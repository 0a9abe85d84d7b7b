"""Which iterations replay a graph, as a count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kernels.replays import MODES, shares
from runtime.gpu.buckets import FIRST_KEYS, MIXED, Buckets, Load

TILE = 64


@given(
    prompts=st.lists(st.integers(2, 400), max_size=40),
    decodes=st.integers(0, 200),
    padding=st.integers(0, 50),
    keys=st.integers(1, 5000),
    context=st.sampled_from([64, 1024, 5000]),
    max_rows=st.sampled_from([1, 5, 32, 240]),
)
def test_every_iteration_up_to_the_largest_size_has_a_graph(
    prompts: list[int], decodes: int, padding: int, keys: int, context: int, max_rows: int
) -> None:
    """Whatever its prompts are, and no larger one than it needs."""
    prompts, decodes = prompts[:max_rows], min(decodes, max(0, max_rows - len(prompts)))
    pieces = sum(-(-count // TILE) for count in prompts)
    rows = len(prompts) + decodes
    load = Load(sum(prompts) + decodes + padding * bool(rows), decodes, pieces, rows, keys)
    buckets = Buckets(max_rows, context, TILE)
    found = buckets.fitting(load)
    fits = load.tokens <= min(max_rows * context, MIXED[-1]) and keys <= context
    if fits:
        assert found is not None
        assert found in list(buckets)
    if found is not None:
        assert found.holds(load)
        assert found.rows > rows
        less = [b for b in buckets if b.holds(load) and b.pieces == found.pieces]
        assert all(b.tokens >= found.tokens and b.keys >= found.keys for b in less)


@pytest.mark.parametrize("rows", [2, 9, 32])
def test_drafts_run_in_a_graph_that_stores_keys_before_it_attends(rows: int) -> None:
    buckets = Buckets(32, 1024, TILE)
    plain = buckets.fitting(Load(rows, rows, 0, rows, 100))
    drafts = buckets.fitting(Load(rows, rows, 0, rows, 100, shared=True))
    assert plain is not None
    assert drafts is not None
    assert (plain.pieces, drafts.pieces > 0) == (0, True)


def test_the_shortest_graphs_split_no_row_and_the_longest_hold_the_context() -> None:
    from kernels.gpu.attention import SPLIT_KEYS

    keys = [bucket.keys for bucket in Buckets(32, 5000, TILE)]
    assert sorted(set(keys)) == [256, 1024, 4096, 5000]
    assert keys == sorted(keys, reverse=True)
    assert FIRST_KEYS <= SPLIT_KEYS
    assert {bucket.keys for bucket in Buckets(32, 100, TILE)} == {100}


@pytest.mark.parametrize("name", MODES)
def test_nearly_all_iterations_replay_in_every_mode(name: str) -> None:
    """At a limit of 8 all of them do; at 96 dynamic's first prompts and static's are larger than
    any graph. In dynamic mode many have a prompt."""
    assert shares(name, 8, 24).replayed == 1
    found = shares(name, 96, 192)
    assert found.replayed > 0.98
    if name != "static":
        assert found.decodes < 0.9
