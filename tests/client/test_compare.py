"""The comparison end to end, on servers whose iterations take a known time."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from client.analysis.comparison.headline import length_variance_gain
from client.analysis.comparison.results import Headline, Peak
from client.analysis.comparison.summary import final, measured_together, points
from client.analysis.metrics import Objectives
from client.analysis.statistics import Interval
from client.compare import main
from client.comparison.fleet import Fleet
from client.comparison.limits import calibrate
from client.comparison.plan import Plan
from client.comparison.runs import carry_out
from client.load.servers.stats import handled, reset_stats, stats
from client.load.servers.system import System
from client.options.compare import options_from, parser
from client.report.__main__ import main as report
from client.report.comparison import judged, write_comparison
from client.report.comparison_page import as_text, write_comparison_page
from client.workloads.recipe import Recipe
from client.workloads.workload_file import read_workload
from tests.client.conftest import StartServer, system

RECIPE = Recipe(prompts="request", output_tokens="uniform:1,30", exact_duration=True)


def test_shared_prefixes_are_one_option_of_a_comparison() -> None:
    asked = options_from(parser().parse_args(["--shared-prefixes"]))
    assert asked.recipe.prompts == "shared:prefixes=8,tokens=512"
    options = {c.name: (c.command or ())[4:] for c in asked.systems}
    assert options["dynamic"] == ("--prefix-caching", "true")
    assert options["static"] == options["nobatch"] == ()
    own = options_from(parser().parse_args(["--shared-prefixes", "--prompts", "conversation"]))
    assert own.recipe.prompts == "conversation"


def test_static_batching_without_its_wait_is_compared_beside_it() -> None:
    asked = options_from(parser().parse_args(["--", "--max-wait-ms", "20"]))
    command, beside = {c.name: (c.command, c.beside) for c in asked.systems}["static:nowait"]
    assert beside == "static"
    assert command is not None
    assert command[1] == "static"
    assert command[-4:] == ("--max-wait-ms", "20", "--max-wait-ms", "0"), "the last one counts"
    alone = options_from(parser().parse_args(["--modes", "static:nowait,dynamic"]))
    assert [c.beside for c in alone.systems] == [None, None], "it plays all loads"
    original = options_from(parser().parse_args(["--original"]))
    assert [c.name for c in original.systems] == ["nobatch", "static", "dynamic"]


def test_the_same_workloads_reach_every_mode_and_batching_wins_where_it_must(
    tmp_path: Path,
) -> None:
    base_s = 0.004
    modes = tuple(system(m, base_s=base_s) for m in ("nobatch", "static", "dynamic"))
    most = 1 / (base_s * 15.5)  # requests of 15.5 tokens a second, one at a time, on any machine
    with Fleet(RECIPE, tmp_path, 60.0, together=True) as fleet:
        calibration = calibrate(modes[0], fleet, RECIPE, seconds=0.5)
        assert calibration.capacity < 1.2 * most  # the drawn lengths have nearly that mean
        plan = planned(tmp_path, modes, loads=(0.5, 4.0), control="dynamic", window_s=0.5)
        played = list(carry_out(plan, fleet, most))
        assert not fleet.lost
    results = measured_together(played, Objectives(ttft_s=1.0))
    kept = final(results)
    assert len(kept) == 3 * 2
    assert [(r.job.system, r.job.load) for r in results if r.job.repeat] == [("dynamic", 4.0)]
    for load in plan.loads:
        for seed in plan.seeds:
            same = {r.run.workload.sha256 for r in kept if (r.job.load, r.job.seed) == (load, seed)}
            path = tmp_path / "workloads" / f"load{load:g}-seed{seed}.jsonl"
            assert same == {read_workload(path).sha256}
    table = {(p.system, p.load): p for p in points(results, calibration)}
    # At four times what one at a time can do, joining at every iteration keeps up.
    assert table["dynamic", 4.0].throughput.value > 2 * table["nobatch", 4.0].throughput.value
    assert table["nobatch", 4.0].verdict != "VALID"
    at_4 = Peak("static", 4.0, Interval(1.0, None, None), 1, 1.0)
    predicted = length_variance_gain(results, Headline(Objectives(), 0.9, (), (at_4,), (), (), ()))
    assert predicted is not None
    assert predicted.predicted > 1

    manifest: dict[str, Any] = {
        "model": "sleep", "started": "now", "commit": "none", "seeds": [0], "window_s": 0.8,
        "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "gpus": ["NVIDIA H200"]}, "recipe": {
            "arrivals": "poisson", "output_tokens": "uniform:1,30"}, "notes": ["random weights"],
        "servers": {"static": {"mode": "static", "machine": {"cpu": "c", "cores": 2, "gpu": "A1"}}},
        "systems": ["nobatch", "static", "dynamic"], "warnings": ["random weights"],
        "objectives": {"ttft_s": 1.0}, "share": 0.9,
    }  # fmt: skip
    comparison = judged(played, [], calibration, manifest, {})
    figures = write_comparison(tmp_path, comparison)
    write_comparison_page(tmp_path / "report.html", comparison)
    json.dumps(figures, allow_nan=False)
    page = (tmp_path / "report.html").read_text()
    measured = kept[0].measured
    cut = measured.warm_up_s / (measured.warm_up_s + measured.window_s)
    assert f"leaves out the first {cut:.0%} of a steady load" in page
    (tmp_path / "report.html").unlink()
    assert report([str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == page, "made again from the raw data"
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(figures))
    text = as_text(comparison)
    assert len(text.splitlines()) <= 24, "it fits on a screen"
    assert max(map(len, text.split("\n\n")[0].splitlines())) <= 100
    # at each of two loads: latency by size, a Gantt of three modes, two over time; and three
    assert page.count("<svg") == 2 * (1 + 3 + 2) + 3
    assert 'name="viewport"' in page
    assert "data:image" not in page
    assert "<script" not in page
    assert "1 x NVIDIA H200" in page, "the client's machine"
    assert "static: mode static, on A1, c, 2 cores" in page, "the server's machine"
    assert "dynamic: unknown, since no /stats were read" in page
    assert "random weights" in page
    assert not re.search(r"(src|href)=.?(http|/|\./)", page), "the page must be self-contained"
    rows = _rows(tmp_path / "summary.csv")
    assert {(r["system"], float(r["load"])) for r in rows} == set(table)
    assert {r["notes"] for r in rows} == {"random weights"}
    requests = _rows(tmp_path / "requests.csv")
    assert len(requests) == sum(len(r.run.outcomes) for r in results)
    del manifest["systems"]  # as before they had this name
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert report([str(tmp_path)]) == 1


def test_a_trace_is_calibrated_with_its_own_lengths(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival,prompt_tokens,output_tokens\n0,3,2\n1,3,2\n")
    recipe = Recipe(arrivals=f"trace:csv,path={tmp_path / 't.csv'}", output_tokens="fixed:90")
    one = system("dynamic")
    with Fleet(recipe, tmp_path, 60.0, together=True) as fleet:
        target = fleet.server(one).target
        reset_stats(target)
        found = calibrate(one, fleet, recipe, 0.1)
        assert handled(stats(target)) == 2 * (4 + found.requests)


def test_servers_that_do_not_fit_together_live_one_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modes = tuple(system(m, base_s=0.002) for m in ("nobatch", "dynamic"))
    plan = planned(tmp_path, modes, loads=(1.0, 2.0), control="dynamic", together=False)
    with Fleet(RECIPE, tmp_path, 60.0, together=False, watched=modes) as fleet:
        found = list(carry_out(plan, fleet, capacity=20.0))
        one, other = (Path(f"{tmp_path}/server-{m.name}.log").stat().st_mtime for m in modes)
        assert len({p.run.target for p in found}) == 2
    assert [p.job.system for p in found] == ["nobatch"] * 2 + ["dynamic"] * 3
    assert one <= other
    shown = "".join(capsys.readouterr())
    pages = re.findall(r"(http://127.0.0.1:\d+)/watch\?with=(\S+)#measured", shown)
    assert len(pages) == 1, "one address, that of the server that was ready first"
    ((first, everyone),) = pages
    assert everyone.split(",")[0] == first
    assert len(set(everyone.split(","))) == 2
    names = [p.run.name.rpartition("/")[0] for p in found]
    assert names == [f"load{p.job.load:g}-seed0/{p.job.system}" for p in found]


def planned(folder: Path, systems: tuple[System, ...], **changes: Any) -> Plan:
    """A plan of one seed and short runs."""
    values: dict[str, Any] = {
        "loads": (1.0, 2.0), "seeds": (0,), "control": None, "recipe": RECIPE, "window_s": 0.2,
        "drain_s": 1.0, "folder": folder, "order_seed": 0, "together": True, **changes,
    }  # fmt: skip
    return Plan(systems=systems, **values)


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_command_compares_servers_that_already_run(
    server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = server("nobatch", base_s=0.004), server("dynamic", base_s=0.004)
    numbers, hook = (signal.SIGTERM, signal.SIGHUP), sys.unraisablehook
    before = [signal.getsignal(number) for number in numbers]
    options = [
        "--modes", "", "--prompts", "request", "--output-tokens", "uniform:1,20",
        "--calibrate-s", "0.4", "--target", f"one={a.url}", "--target", f"many={b.url}",
        "--loads", "1,3", "--seeds", "2", "--numsamples", "6", "--json",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    status = main(options)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    sys.unraisablehook = hook
    told = capsys.readouterr()
    assert status == 0, told.err
    figures = json.loads(told.out)
    assert {p["system"] for p in figures["points"]} == {"one", "many"}
    assert "This model only sleeps." in told.err
    assert (tmp_path / "out" / "report.html").exists()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["machine"]["cores"] == os.cpu_count()
    assert sorted(manifest["order"]) != manifest["order"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--loads", "0.5,x"), "expected auto or numbers > 0"),
        (("--modes", "dynamic,turbo"), "nobatch, static, static:nowait, dynamic"),
        (("--target", "a=ftp://x"), "SCHEME one of"),
        ((), "nothing to compare"),
    ],
)
def test_bad_options_say_what_is_allowed(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--modes", "", *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
