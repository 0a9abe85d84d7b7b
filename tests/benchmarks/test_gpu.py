"""The GPU's benchmark, small and interpreted, with nothing else installed than it may need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

TINY = ["--tiny", "--device", "cpu"]
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


def test_it_runs_from_a_bare_checkout(tmp_path: Path) -> None:
    arguments = [*TINY, "--limits", "1", "2", "--out", str(tmp_path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == report
    assert report["left_out"] == []
    assert list(report["self_check"].values()) == ["agrees"]
    assert [(s["rows"], s["graphs"]) for s in report["steps"]] == [
        (rows, graphs) for graphs in (False, True) for rows in (1, 2)
    ]
    modes = [("nobatch", 1), ("static", 1), ("dynamic", 1), ("static", 2), ("dynamic", 2)]
    assert [(p["mode"], p["limit"]) for p in report["played"]] == 4 * modes
    assert all(p["same_tokens"] == 1 for p in report["played"] if p["mode"] == "dynamic")
    ET.parse(tmp_path / "gpu.svg")


def test_a_run_without_time_names_what_it_left_out(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *TINY, "--seconds", "0", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert len(report["left_out"]) == 8
    ET.parse(tmp_path / "gpu.svg")
