"""Traces in the exact formats they are published in; the few lines here are our own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.workloads.recipe import Recipe, make, varied
from client.workloads.spec import SpecError
from client.workloads.traces import LoadTrace, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:48.0000001,879,55
2023-11-16 18:15:51.2222222,91,0
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,API log
150,ChatGPT,100,0,100,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 2]}
{"timestamp": 3000, "input_length": 7236, "output_length": 794, "hash_ids": [3]}
"""
CSV = """id,arrival,prompt_tokens,output_tokens
a,10.5,120,40
b,11.0,900,12
"""
ISO_CSV = """arrival,prompt_tokens,output_tokens
2026-11-16T09:00:00.5+02:00,120,40
2026-11-16T07:00:01Z,900,12
2026-11-16 07:00:02,75,9
1794812403,30,8
"""


def read(tmp_path: Path, text: str, options: str) -> LoadTrace:
    path = tmp_path / "trace"
    path.write_text(text)
    name, comma, rest = options.partition(",")
    return read_trace(f"trace:{name},path={path}{comma}{rest}", np.random.SeedSequence(0))


@pytest.mark.parametrize(
    ("text", "kind", "times", "prompt", "output"),
    [
        (AZURE, "azure", [0.0, 1.31941, 4.314579], [374, 879, 396], [44, 55, 109]),
        (AZURE_2024, "azure", [0, 0.007405], [2162, 2399], [5, 6]),
        (BURSTGPT, "burstgpt", [0.0, 40.5, 113.0], [472, 1087, 417], [18, 230, 276]),
        (MOONCAKE, "mooncake", [0.0, 0.0, 3.0], [6758, 7322, 7236], [500, 490, 794]),
        (CSV, "csv", [0.0, 0.5], [120, 900], [40, 12]),
        (ISO_CSV, "csv", [0.0, 0.5, 1.5, 2.5], [120, 900, 75, 30], [40, 12, 9, 8]),
    ],
)
def test_published_formats_are_read_in_order_without_requests_that_failed(
    tmp_path: Path, text: str, kind: str, times: list[float], prompt: list[int], output: list[int]
) -> None:
    trace = read(tmp_path, text, kind)
    assert trace.rows["at_s"].tolist() == pytest.approx(times, abs=2e-6)
    assert trace.rows["prompt_tokens"].tolist() == prompt
    assert trace.rows["output_tokens"].tolist() == output
    dropped = len(text.strip().splitlines()) - (kind != "mooncake") - len(times)
    assert f"{dropped} dropped" in trace.note


def test_a_trace_can_be_cut_and_rounded_times_be_spread_over_their_tick(tmp_path: Path) -> None:
    spread = read(tmp_path, MOONCAKE, "mooncake,dequantise=3")
    assert len(set(spread.rows["at_s"].tolist())) == 3
    assert spread.rows["at_s"].min() >= 0
    assert spread.rows["at_s"].max() < 6
    assert sorted(spread.rows["output_tokens"].tolist()) == [490, 500, 794]
    cut = read(tmp_path, BURSTGPT, "burstgpt,window=30/110")
    assert cut.rows["at_s"].tolist() == [10.5]
    assert cut.duration_s == 80.0


def test_requests_with_more_tokens_than_a_model_takes_are_dropped_and_counted(
    tmp_path: Path,
) -> None:
    """The window is that of the whole trace."""
    cut = read(tmp_path, BURSTGPT, "burstgpt,most_tokens=693,window=113/200")
    assert cut.rows["prompt_tokens"].tolist() == [417]
    whole = read(tmp_path, BURSTGPT, "burstgpt,most_tokens=693")
    assert whole.rows["at_s"].tolist() == [0.0, 113.0]
    assert "2 requests kept, 1 dropped (failed or empty), 1 dropped (more than 693" in whole.note
    late = read(
        tmp_path, BURSTGPT.replace("5,ChatGPT,472,", "5,ChatGPT,4720,"), "burstgpt,most_tokens=693"
    )
    assert late.rows["at_s"].tolist() == [113.0]
    with pytest.raises(SpecError, match=r"no request: 1 dropped .* 3 dropped \(more than 9 tokens"):
        read(tmp_path, BURSTGPT, "burstgpt,most_tokens=9")


def long_trace(tmp_path: Path, size: int = 80) -> str:
    """Of which no two requests are alike."""
    lines = (f"{k * k / 10},{1000 + k},{k + 1}" for k in range(size))
    path = tmp_path / "long.csv"
    path.write_text("arrival,prompt_tokens,output_tokens\n" + "\n".join(lines))
    return f"trace:csv,path={path}"


@pytest.mark.parametrize(("requests", "block"), [(None, 10), (6, 6), (200, 10)])
def test_each_seed_plays_other_blocks_of_a_trace_that_is_resampled(
    tmp_path: Path, requests: int | None, block: int
) -> None:
    recipe = Recipe(requests=requests, rate=None, arrivals=long_trace(tmp_path), prompts="request")
    drawn = [make(replace(varied(recipe), seed=seed)) for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    assert f"{requests or 80}, drawn in blocks of {block}, of 80" in drawn[0].generator["trace"]
    rows = np.array([(r.output_tokens, r.at_s) for r in drawn[0].requests])
    lengths, times = rows.T
    inside = np.diff(lengths) == 1  # the next request of the trace, after its own gap
    around = np.diff(lengths) == -79
    assert (inside | around).sum() >= (block - 1) * (lengths.size // block)
    assert np.diff(times)[inside] == pytest.approx((2 * lengths[1:][inside] - 3) / 10)
    assert times[0] == 0


def test_a_trace_is_replayed_as_it_was_recorded_unless_resampling_is_asked_for(
    tmp_path: Path,
) -> None:
    recipe = Recipe(requests=5, rate=None, arrivals=long_trace(tmp_path), prompts="request")
    for seed in (0, 1):
        same = make(replace(recipe, seed=seed))
        assert [r.output_tokens for r in same.requests] == [1, 2, 3, 4, 5]
        assert same.generator["trace"].startswith("the first 5 of 80 requests kept")
    fixed = replace(recipe, arrivals=recipe.arrivals + ",resample=false")
    assert varied(fixed) == fixed


def test_a_closed_loop_of_a_trace_has_the_lengths_of_the_trace(tmp_path: Path) -> None:
    """So that what is calibrated is what is played afterwards."""
    loop = make(Recipe(requests=300, arrivals=long_trace(tmp_path), prompts="words"), users=7)
    assert (loop.users, len(loop.requests)) == (7, 300)
    assert all(r.prompt_tokens == 999 + r.output_tokens for r in loop.requests)
    assert len({r.output_tokens for r in loop.requests}) > 40
    assert not loop.generator.keys() & {"prompt_tokens", "output_tokens", "exact_duration"}


def test_a_trace_becomes_a_workload_at_any_rate(tmp_path: Path) -> None:
    recipe = Recipe(requests=None, rate=10.0, arrivals=long_trace(tmp_path))
    fast, own = make(recipe), make(replace(recipe, rate=None))
    assert fast.rate == pytest.approx(10.0)
    for r, s in zip(fast.requests, own.requests, strict=True):
        assert r.at_s == pytest.approx((s.at_s or 0.0) * fast.duration_s / own.duration_s, abs=1e-6)
        assert r.prompt_tokens == s.prompt_tokens == 999 + r.output_tokens


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (AZURE.replace("396,", "many,"), "azure", r":3: expected 'YYYY-MM-DD .* found '2023"),
        (AZURE.replace("TIMESTAMP", "TIME"), "azure", ":1: expected a header with TIMESTAMP"),
        (BURSTGPT.replace("45.5", "x"), "burstgpt", ":3: expected 'seconds,model"),
        (MOONCAKE.replace("7322", '"7322"'), "mooncake", ":2: expected"),
        ("[" * 100_000, "mooncake", ":1: expected"),
        (MOONCAKE.replace("7322", "9" * 400), "mooncake", ":2: expected"),
        (CSV.replace("900", "9" * 30), "csv", ":3: expected"),
        ("a" * 200_000, "csv", "cannot be read as text: field larger than"),
        ("", "mooncake", "contains no request"),
        (BURSTGPT.replace(",417,276,693,API log", ""), "burstgpt", ":4: expected"),
        (ISO_CSV.replace("16 07", "16 77"), "csv", ":4: expected 'seconds or YYYY"),
        (AZURE, "azure,window=5", "START/END"),
        (AZURE, "azure,window=900/1000", "no request lies in the window"),
        (CSV.replace("11.0", "nan"), "csv", ":3: expected 'seconds or YYYY"),
        (AZURE, "azure,dequantise=-1", "dequantise: Input should be greater"),
    ],
)
def test_a_malformed_line_is_refused_with_file_line_and_expectation(
    tmp_path: Path, text: str, kind: str, words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        read(tmp_path, text, kind)
