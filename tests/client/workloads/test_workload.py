"""Workload files: reproducible, independent in their parts, and refused when malformed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.workload import main
from client.workloads.lengths import draw, parse_sizes
from client.workloads.prompts import plain_prompts
from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from client.workloads.workload_file import read_workload, write_workload

RECIPE = Recipe(requests=50, rate=5.0, prompts="request", deferred_share=0.3, deadline_s=60.0)


def test_the_same_recipe_makes_the_same_file_which_is_read_as_it_was_written(
    tmp_path: Path,
) -> None:
    for recipe in (RECIPE, replace(RECIPE, arrivals="closed:users=2,think=1", rate=None)):
        write_workload(make(recipe), tmp_path / "w")
        assert read_workload(tmp_path / "w") == make(recipe)
        assert make(replace(recipe, seed=1)).sha256 != make(recipe).sha256


def test_changing_one_part_leaves_the_others_as_they_were() -> None:
    base = make(RECIPE)
    for changed, field in (
        (replace(RECIPE, arrivals="gamma:cv=3"), "at_s"),
        (replace(RECIPE, output_tokens="fixed:7"), "output_tokens"),
        (replace(RECIPE, deferred_share=0.9), "service"),
    ):
        other = make(changed)
        assert other.sha256 != base.sha256
        for r, s in zip(base.requests, other.requests, strict=True):
            kept = {
                f: getattr(r, f) for f in ("at_s", "output_tokens", "service", "prompt", "seed")
            }
            same = {f for f, value in kept.items() if getattr(s, f) == value}
            assert same >= set(kept) - {field}


def test_another_rate_is_the_same_path_scaled_and_an_exact_duration_ends_it() -> None:
    slow, fast = make(RECIPE), make(replace(RECIPE, rate=20.0, exact_duration=True))
    scale = (fast.requests[-1].at_s or 0.0) / (slow.requests[-1].at_s or 1.0)
    for r, s in zip(slow.requests, fast.requests, strict=True):
        assert r.at_s is not None
        assert s.at_s == pytest.approx(r.at_s * scale, abs=1e-6)
    assert fast.requests[-1].at_s == pytest.approx(2.5)
    assert fast.rate == pytest.approx(20.0)


def test_the_share_of_deferred_requests_is_the_one_asked_and_they_have_a_deadline() -> None:
    requests = make(replace(RECIPE, requests=4000)).requests
    deferred = [r for r in requests if r.service == "deferred"]
    assert len(deferred) == pytest.approx(1200, abs=6 * (4000 * 0.3 * 0.7) ** 0.5)
    assert {r.deadline_s for r in deferred} == {60.0}
    assert {r.deadline_s for r in requests if r.service == "immediate"} == {None}


def with_header(line: str, **values: object) -> str:
    return json.dumps({**json.loads(line), **values})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [], "1: expected a header"),
        (lambda lines: [*lines[:3], lines[3].replace("output", "x"), *lines[4:]], "4: expected"),
        (lambda lines: [*lines[:3], lines[3].replace("immediate", "x"), *lines[4:]], "4: expected"),
        (lambda lines: lines[:-1], "sha256"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "order of at_s"),
        (lambda lines: lines[:1], "contains no requests"),
        (lambda lines: [with_header(lines[0], duration_s=math.inf), *lines[1:]], "1: .*duration_s"),
        (lambda lines: [with_header(lines[0], users=0), *lines[1:]], "1: expected a header.*users"),
        (lambda lines: [with_header(lines[0], users=2), *lines[1:]], "2: .*null in a closed loop"),
    ],
)  # fmt: skip
def test_a_changed_file_is_refused_with_file_and_line(
    tmp_path: Path, change: object, line: str
) -> None:
    path = tmp_path / "w.jsonl"
    write_workload(make(replace(RECIPE, deferred_share=0.0)), path)
    lines = change(path.read_text().splitlines())  # type: ignore[operator]
    path.write_text("\n".join(lines))
    with pytest.raises(SpecError, match=rf"w\.jsonl.*({line})"):
        read_workload(path)


@pytest.mark.parametrize(
    ("sizes", "low", "high"),
    [("fixed:9", 9, 9), ("uniform:3,40", 3, 40), ("normal:100,50,1,200", 1, 200),
     ("lognormal:50,1,4,99", 4, 99), ("choice:1/25/100", 1, 100)],
)  # fmt: skip
def test_sizes_stay_within_their_bounds_and_are_whole(sizes: str, low: int, high: int) -> None:
    drawn = draw(parse_sizes(sizes), 5000, np.random.default_rng(0))
    assert drawn.dtype == np.int64
    assert (drawn.min(), drawn.max()) == (low, high)


@pytest.mark.parametrize("sizes", ["uniform:1,100", "normal:50,25,1,100"])
def test_workloads_of_two_seeds_ask_for_the_same_work_in_another_order(sizes: str) -> None:
    one, two = (
        [r.output_tokens for r in make(replace(RECIPE, output_tokens=sizes, seed=seed)).requests]
        for seed in (0, 1)
    )
    assert one != two
    assert sum(one) == pytest.approx(sum(two), rel=0.05)  # independent draws: 7 to 40 %
    assert all(abs(a - b) <= 9 for a, b in list(zip(sorted(one), sorted(two), strict=True))[:40])


def test_prompts_come_from_sharegpt_and_from_lines(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\ntwo\n")
    entries = [
        {"id": "a", "conversations": [{"from": "human", "value": "hello"}]},
        {"id": "b", "conversations": [{"from": "runtime", "value": "not this"}]},
        {"id": "c", "conversations": []},
    ]
    share = tmp_path / "share.json"
    share.write_text(json.dumps(entries))
    rng = np.random.default_rng(0)
    assert set(plain_prompts(f"lines:{lines}", 40, rng)[0]) == {"one", "two"}
    assert set(plain_prompts(f"sharegpt:{share}", 40, rng)[0]) == {"hello"}
    share.write_text('[{"conversations": 3}]')
    with pytest.raises(SpecError, match=r"share\.json: expected"):
        plain_prompts(f"sharegpt:{share}", 40, rng)
    lines.write_bytes(b"\xff\xfe\x00")
    for path in (lines, tmp_path / "none"):
        with pytest.raises(SpecError, match="cannot be read as text"):
            plain_prompts(f"lines:{path}", 40, rng)


def test_the_command_makes_and_describes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "w.jsonl")
    make_it = ["make", path, "--requests", "600", "--arrivals", "plan:high", "--prompts", "request"]
    assert main(make_it) == 0
    assert main(["describe", path, "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])["found"]
    assert found["n"] == 600
    assert found["cv_rate"] > 0.8
    assert main(["make", path, "--arrivals", "burst"]) == 0
    assert main(["describe", path]) == main(["describe", path, "--json"]) == 0
    *_, told, _, _, burst = capsys.readouterr().out.splitlines()
    assert "all at once" in told
    assert json.loads(burst, parse_constant=pytest.fail)["found"]["rate"] is None
    assert main(["describe", str(tmp_path / "none")]) == 2
    assert "none: cannot be read" in capsys.readouterr().err
    assert main(["make", path, "--deadline-s", "3"]) == 2
    assert "--deadline-s has no effect without --deferred-share" in capsys.readouterr().err


@pytest.mark.parametrize("rest", ["", ",window=0/20000", ",resample=true"])
def test_describe_finds_the_busiest_hour_and_the_window_that_cuts_it_out(
    rest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One request a minute; in the minutes 100 to 130, four."""
    path, log = str(tmp_path / "w.jsonl"), tmp_path / "log.csv"
    times = [60 * k for k in range(300)] + [6000 + 20 * k + 7 for k in range(90)]
    rows = "".join(f"{100 + at},{30 + at % 2},{9}\n" for at in times)
    log.write_text("arrival,prompt_tokens,output_tokens\n" + rows)
    assert main(["make", path, "--arrivals", f"trace:csv,path={log}{rest}"]) == 0
    assert main(["describe", path]) == 0
    told = capsys.readouterr().out
    assert "prompt tokens: mean 30.2, sd 0.4, 30..31" in told or rest
    found = re.search("busiest hour: seconds ([0-9]+) to ([0-9]+), ([0-9.]+) requests/s(.*)", told)
    assert found
    start, end = int(found[1]), int(found[2])
    assert end - start == 3600
    if rest:
        assert not found[4]
        return
    hours = [sum(at <= t < at + 3600 for t in times) for at in range(18000 - 3600)]
    assert hours[start] == max(hours)
    assert float(found[3]) == pytest.approx(max(hours) / 3600, abs=5e-5)
    window = re.fullmatch("; the trace with (window=.*)", found[4])
    assert window
    assert main(["make", path, "--arrivals", f"trace:csv,path={log},{window[1]}"]) == 0
    assert f"{max(hours)} requests over 3600.000 s" in capsys.readouterr().out
