"""The comparison end to end, on servers whose iterations take a known time."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from client.compare import main
from client.comparison.fleet import Fleet
from client.comparison.plan import Plan
from client.comparison.runs import calibrate, carry_out
from client.load.servers.processes import System
from client.load.servers.stats import handled, reset_stats, stats
from client.report.__main__ import main as report
from client.report.comparison import read_comparison
from client.workloads.recipe import Recipe
from client.workloads.workload_file import read_workload
from tests.client.conftest import StartServer, system

RECIPE = Recipe(prompts="request", output_tokens="uniform:1,30", exact_duration=True)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


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
    calibration, kept = comparison.calibration, [r for r in comparison.results if not r.job.repeat]
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
    page = (tmp_path / "report.html").read_text()
    assert "This model only sleeps." in page
    assert not re.search(r"(src|href)=.?(http|/|\./)", page), "the page must be self-contained"
    summary = rows(tmp_path / "summary.csv")
    assert {(r["system"], float(r["load"])) for r in summary} == set(table)
    assert all("This model only sleeps." in r["notes"] for r in summary)
    requests = rows(tmp_path / "requests.csv")
    assert len(requests) == sum(len(r.run.outcomes) for r in comparison.results)

    (tmp_path / "report.html").unlink()
    assert report([str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == page, "made again from the raw data"


def test_the_manifest_knows_the_file_of_a_policy_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EB_POLICY_FOLDER", str(tmp_path))
    (tmp_path / "mine.py").write_text("this is no policy\n")
    assert main(["--modes", "dynamic:mine:Policy", "--out", str(tmp_path / "out")]) == 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    digest = hashlib.sha256(b"this is no policy\n").hexdigest()
    assert manifest["policies_sha256"] == {"dynamic:mine:Policy": digest}


def test_a_trace_is_calibrated_with_its_own_lengths(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival,prompt_tokens,output_tokens\n0,3,2\n1,3,2\n")
    recipe = Recipe(arrivals=f"trace:csv,path={tmp_path / 't.csv'}", output_tokens="fixed:90")
    one = system("dynamic")
    with Fleet(recipe, tmp_path, 60.0, together=True) as fleet:
        target = fleet.server(one).target
        reset_stats(target)
        found = calibrate(one, fleet, 0.1)
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
        "loads": (1.0, 2.0), "seeds": (0,), "control": None, "window_s": 0.2,
        "drain_s": 1.0, "folder": folder, "order_seed": 0, "together": True, **changes,
    }  # fmt: skip
    return Plan(systems=systems, **values)
