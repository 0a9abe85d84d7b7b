"""The GPU's benchmark, small and interpreted, with nothing else installed than it may need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.on_gpu.parts import SAMPLING, steps
from benchmarks.on_gpu.points import LeftOut, Point, StepTime
from benchmarks.on_gpu.work import TINY, Decoding, Models, Options

ROOT = Path(__file__).resolve().parents[2]

# packages are hidden, but for what the benchmark may need and what that needs in turn
BLOCKED = """
import importlib.metadata, re, runpy, sys
from pathlib import Path
def plain(name):
    return re.sub("[-_.]+", "-", name).lower()
allowed, wanted = set(), ["torch", "triton", "numpy", "safetensors"]
while wanted:
    name = plain(wanted.pop())
    try:
        of = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    if name in allowed:
        continue
    allowed.add(name)
    wanted += [re.match(r"[\\w.-]+", r)[0] for r in of.requires or [] if "extra ==" not in r]
for package, owners in importlib.metadata.packages_distributions().items():
    if not set(map(plain, owners)) & allowed and package not in sys.stdlib_module_names:
        sys.modules[package] = None  # an import of it fails
sys.argv = ["gpu.py", *sys.argv[1:]]
sys.path[0] = "benchmarks"
runpy.run_path("benchmarks/gpu.py", run_name="__main__")
"""


Points = list[dict[str, Any]]


def run(arguments: Sequence[str], cache: Path, *, code: str = BLOCKED) -> Points:
    """What it found."""
    out = cache / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, "--tiny", "--device", "cpu", *arguments, "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "gpu.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == report
    ET.parse(out / "gpu.svg")
    points: Points = report["points"]
    return points


def of(points: Points, kind: str) -> Points:
    return [point for point in points if point["kind"] == kind]


def test_it_runs_from_a_bare_checkout(tmp_path: Path) -> None:
    points = run(["--limits", "1", "2", "--contexts", "20"], tmp_path)
    assert not of(points, "LeftOut")
    checks = {p["name"]: p["found"] for p in of(points, "Check")}
    assert set(checks.values()) == {"agrees"}
    assert {
        "a kernel of Triton's runs",
        "graphs draw eager's tokens, 2 rows",
        "lookahead draws the same tokens, top_p 0.9",
    } <= set(checks)
    drafts = {p["of"]: p["facts"] for p in of(points, "Facts") if p["of"].startswith("drafts")}
    assert set(drafts) == {"drafts, greedy, float32", "drafts, temperature 1, float32"}
    assert {found["other tokens"] for found in drafts.values()} == {"0"}
    greedy = [(s["rows"], s["graphs"]) for s in of(points, "StepTime") if s["sampling"] == "greedy"]
    assert greedy == [(rows, graphs) for graphs in (True, False) for rows in (1, 2)]
    played = of(points, "Played")
    sides = [(p["mode"], p["limit"], p["lookahead"]) for p in played]
    turns = [("static", 0), ("dynamic", 0), ("dynamic", 1)]
    at = [(mode, limit, ahead) for limit in (1, 2) for mode, ahead in turns]
    assert sides == 3 * [("nobatch", 1, 0), *at]
    assert all(p["same_tokens"] == 1 for p in played if p["mode"] == "dynamic")


def options_of_torch(contexts: Sequence[int]) -> Options:
    """One row, without a kernel."""
    cpu = torch.device("cpu")
    return Options.of(cpu, "auto", "gpt2", tiny=True, limits=[1], contexts=contexts, kernel=False)


def test_steps_are_timed_after_as_many_tokens_as_the_model_has_positions() -> None:
    told: list[Point] = []
    steps(options_of_torch([TINY.context]), told.append, None)
    assert not [point for point in told if isinstance(point, LeftOut)]
    assert {p.context for p in told if isinstance(p, StepTime)} == {TINY.context}


def test_more_rows_than_the_memory_holds_are_refused_in_words() -> None:
    model = Models(options_of_torch([20])).get("dynamic", graphs=False)
    with pytest.raises(RuntimeError, match=r"2 rows of 212 tokens need 28 KV blocks, .* holds 14"):
        Decoding(model, 2, 20, [SAMPLING["greedy"](row) for row in range(2)])


def test_a_run_without_time_names_what_it_left_out(tmp_path: Path) -> None:
    points = run(["--seconds", "0"], tmp_path)
    assert {p["why"] for p in of(points, "LeftOut")} == {"no time left"}


TROUBLE = """
import os, signal, time
import benchmarks.gpu as gpu
from benchmarks.on_gpu import parts
from benchmarks.on_gpu.points import Bandwidth

def hang(options, emit):
    emit(Bandwidth(7.0))
    time.sleep(600)

gpu.planned = lambda report: [
    gpu.Part("hangs", 5.0, hang),
    gpu.Part("crashes", 60.0, lambda *_: os.kill(os.getpid(), signal.SIGKILL)),
    gpu.Part("fails", 60.0, lambda *_: 1 / 0),
    gpu.Part("the device", 60.0, parts.facts),
]
gpu.main()
"""


def test_a_part_that_hangs_crashes_or_fails_costs_the_others_nothing(tmp_path: Path) -> None:
    points = run([], tmp_path, code=TROUBLE)
    assert {p["what"]: p["why"] for p in of(points, "LeftOut")} == {
        "hangs": "not done after 5 s",
        "crashes": "ended with status -9",
        "fails": "ZeroDivisionError: division by zero",
    }
    assert of(points, "Bandwidth") == [{"kind": "Bandwidth", "gb_s": 7.0}]
    assert [p["of"] for p in of(points, "Facts")] == ["machine", "work", "device"]


def test_without_triton_the_parts_that_need_no_kernel_still_run(tmp_path: Path) -> None:
    code = f"import sys\nsys.modules['triton'] = None\n{BLOCKED}"
    points = run(["--limits", "1", "--contexts", "20"], tmp_path, code=code)
    first = of(points, "Check")[0]
    assert first["name"] == "a kernel of Triton's runs"
    assert first["found"].startswith("ModuleNotFoundError")
    assert {p["graphs"] for p in of(points, "StepTime")} == {False}
    assert {p["mode"] for p in of(points, "Played")} == {"nobatch", "static", "dynamic"}
