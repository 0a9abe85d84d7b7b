"""The comparison end to end, on servers whose iterations take a known time."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from client.analysis.comparison.headline import length_variance_gain
from client.analysis.comparison.results import Headline, Peak
from client.analysis.comparison.summary import final
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
from client.report.comparison import read_comparison
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


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    numbers, hook = (signal.SIGTERM, signal.SIGHUP), sys.unraisablehook
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    sys.unraisablehook = hook


@pytest.mark.usefixtures("signals_as_before")
def test_the_same_workloads_reach_every_server_and_batching_wins_where_it_must(
    server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base_s = 0.004
    most = 1 / (base_s * 15.5)  # requests of 15.5 tokens a second, one at a time, on any machine
    names = ("nobatch", "static", "dynamic")
    targets = [f"{name}={server(name, base_s=base_s).url}" for name in names]
    status = main(
        [
            "--modes", "", "--prompts", "request", "--output-tokens", "uniform:1,30", "--slo",
            "ttft:1s", "--calibrate-s", "0.4", "--loads", "0.5,4", "--seeds", "2", "--numsamples",
            "8", "--json", "--out", str(tmp_path), *(x for t in targets for x in ("--target", t)),
        ]
    )  # fmt: skip
    told = capsys.readouterr()
    assert status == 0, told.err
    figures = json.loads(told.out)
    assert json.loads((tmp_path / "summary.json").read_text()) == figures
    comparison = read_comparison(tmp_path)
    calibration, kept = comparison.calibration, final(comparison.results)
    assert calibration is not None
    assert calibration.capacity < 1.2 * most  # the drawn lengths have nearly that mean
    order = [(r.job.system, r.job.load, r.job.seed) for r in kept]
    assert sorted(order) == sorted(product(names, (0.5, 4.0), (0, 1)))
    assert sorted(order) != order
    control = [(r.job.system, r.job.load) for r in comparison.results if r.job.repeat]
    assert control == [("dynamic", 4.0)] * 2
    for load, seed in product((0.5, 4.0), (0, 1)):
        same = {r.run.workload.sha256 for r in kept if (r.job.load, r.job.seed) == (load, seed)}
        path = tmp_path / "workloads" / f"load{load:g}-seed{seed}.jsonl"
        assert same == {read_workload(path).sha256}
    table = {(p.system, p.load): p for p in comparison.points}
    # At four times what one at a time can do, joining at every iteration keeps up.
    assert table["dynamic", 4.0].throughput.value > 2 * table["nobatch", 4.0].throughput.value
    assert table["nobatch", 4.0].verdict != "VALID"
    at_4 = Peak("static", 4.0, Interval(1.0, None, None), 1, 1.0)
    at_its_limit = Headline(Objectives(), 0.9, (), (at_4,), (), (), ())
    predicted = length_variance_gain(comparison.results, at_its_limit)
    assert predicted is not None
    assert predicted.predicted > 1

    text, page = as_text(comparison), (tmp_path / "report.html").read_text()
    assert len(text.splitlines()) <= 26, "it fits on a screen"
    assert max(map(len, text.split("\n\n")[0].splitlines())) <= 100
    cut = kept[0].measured.warm_up_s / (kept[0].measured.warm_up_s + kept[0].measured.window_s)
    assert f"leaves out the first {cut:.0%} of a steady load" in page
    # at each of two loads: latency by size, a Gantt of three modes, two over time; and three
    assert page.count("<svg") == 2 * (1 + 3 + 2) + 3
    assert 'name="viewport"' in page
    assert "data:image" not in page
    assert "<script" not in page
    assert "This model only sleeps." in page
    assert not re.search(r"(src|href)=.?(http|/|\./)", page), "the page must be self-contained"
    rows = _rows(tmp_path / "summary.csv")
    assert {(r["system"], float(r["load"])) for r in rows} == set(table)
    assert all("This model only sleeps." in r["notes"] for r in rows)
    requests = _rows(tmp_path / "requests.csv")
    assert len(requests) == sum(len(r.run.outcomes) for r in comparison.results)

    manifest = comparison.manifest
    assert manifest["machine"]["cores"] == os.cpu_count()
    (tmp_path / "report.html").unlink()
    assert report([str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == page, "made again from the raw data"
    manifest["machine"]["gpus"] = ["NVIDIA H200"]
    manifest["servers"] = {"static": {"mode": "static", "machine": {"cpu": "c", "gpu": "A1"}}}
    write_comparison_page(tmp_path / "report.html", comparison)
    page = (tmp_path / "report.html").read_text()
    assert "1 x NVIDIA H200" in page, "the client's machine"
    assert "static: mode static, on A1, c" in page, "the server's machine"
    assert "dynamic: unknown, since no /stats were read" in page
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
