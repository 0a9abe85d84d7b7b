"""The GPU's benchmark, small and interpreted, with nothing else installed than it may need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import main
from benchmarks.on_gpu.points import Point, read, tables
from benchmarks.on_gpu.work import SAMPLING, Decoding, Models, Options

ROOT = Path(__file__).resolve().parents[2]

# packages are hidden, but for what the benchmark may need and what that needs in turn
HIDDEN = """
import importlib.metadata, re, sys
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
"""
RUN = """
import runpy, sys
sys.argv = ["gpu.py", *sys.argv[1:]]
sys.path[0] = "benchmarks"
runpy.run_path("benchmarks/gpu.py", run_name="__main__")
"""
BARE = HIDDEN + RUN


def run(
    arguments: Sequence[str], cache: Path, *, code: str = BARE
) -> tuple[list[Point], list[str]]:
    """What it found, and what it printed."""
    out = cache / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--tiny", "--device", "cpu", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    points = list(read(out / "points.jsonl"))
    assert done.stdout.endswith(tables(points) + "\n")
    return points, done.stdout.splitlines()


def left_out(points: Sequence[Point]) -> dict[str, str]:
    found = [point.row for point in points if point.table == "left out"]
    return {str(row["what"]): str(row["why"]) for row in found}


def begun(printed: Sequence[str]) -> list[str]:
    """The parts, in their order."""
    return [line.split(" s: ")[1] for line in printed if " s: " in line[:9]]


# half of the first call's time: the server's own comparison, which tests/runtime/gpu has too
WHOLE = pytest.mark.parametrize("left", ["self-checks", pytest.param("", marks=pytest.mark.long)])


@WHOLE
def test_the_first_call_runs_from_a_bare_checkout(left: str, tmp_path: Path) -> None:
    parts = ["device", "self-checks", "networks", "decodes of llama-3.2-1b", "attention", "kernels"]
    parts = [part for part in parts if part != left]
    points, printed = run(["A", "--parts", *parts], tmp_path)
    assert not left_out(points)
    assert begun(printed) == parts
    assert {p.row["found"] for p in points if p.table == "checks"} == {"agrees"}
    judged = [p.row for p in points if p.table == "tokens beside a plain network in float32"]
    ways = ["eager", "eager, lookahead", "graphs", "graphs, lookahead", "drafts", "plain torch"]
    assert [row["way"] for row in judged] == 2 * ways
    assert {row["not the best"] for row in judged} == {0}
    assert {row.get("at temperature 1", 0) for row in judged} == {0}
    (step,) = [p.row for p in points if p.table.startswith("decode steps")]
    assert all(isinstance(step[name], float) for name in ("served, lookahead", "served, none"))


@pytest.mark.parametrize(
    "parts",
    [
        ["mixed", "peer", "memcheck"],  # without servers, which take as long as the others
        pytest.param(["mixed", "http", "equal", "peer", "memcheck"], marks=pytest.mark.long),
    ],
    ids=len,
)
def test_the_second_call_runs_to_its_end(parts: list[str], tmp_path: Path) -> None:
    points, printed = run(["B", "--parts", *parts], tmp_path, code=RUN)
    assert set(left_out(points)) <= {"memcheck"}  # its tool is a part of CUDA's
    assert begun(printed) == parts
    sides = [
        (p.row["mode"], p.row["lookahead"]) for p in points if p.table.startswith("modes, mixed")
    ]
    assert sides == [(mode, ahead) for mode in ("nobatch", "static", "dynamic") for ahead in (0, 1)]
    over_http = {p.row["mode"]: p.row["lost"] for p in points if p.table.startswith("over HTTP")}
    assert over_http == ({"dynamic": 0, "launcher": 0} if "http" in parts else {})


def test_more_rows_than_the_memory_holds_are_refused_in_words() -> None:
    options = Options.of(torch.device("cpu"), "auto", tiny=True, kernel=False)
    model = Models(options, "gpt2-medium", 1, 212).get(graphs=False)
    with pytest.raises(RuntimeError, match=r"2 rows of 212 tokens need 28 KV blocks, .* holds 14"):
        Decoding(model, 2, 20, SAMPLING["greedy"])


def test_a_part_that_no_call_has_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["A", "--parts", "prefil"])
    assert "no part 'prefil' in call A; allowed: device, " in capsys.readouterr().err


TROUBLE = """
import os, signal, time
import benchmarks.gpu as gpu
def hang(options, emit):
    emit("found", {"before": 7.0})
    time.sleep(600)

gpu.parts_of = lambda call, points, tiny: [
    gpu.Part("hangs", 3.0, hang),
    gpu.Part("crashes", 60.0, lambda *_: os.kill(os.getpid(), signal.SIGKILL)),
    gpu.Part("fails", 60.0, lambda *_: 1 / 0),
    gpu.Part("the device", 60.0, gpu.trivial),
]
gpu.main()
"""


def test_a_part_that_hangs_crashes_or_fails_costs_the_others_nothing(tmp_path: Path) -> None:
    points, _ = run(["A"], tmp_path, code=TROUBLE)
    assert left_out(points) == {
        "hangs": "not done after 3 s",
        "crashes": "ended with status -9",
        "fails": "ZeroDivisionError: division by zero",
    }
    assert [p.table for p in points if p.table != "left out"] == [
        *("machine", "found", "checks", "the device"),
    ]


def test_without_time_or_triton_what_is_left_out_is_named(tmp_path: Path) -> None:
    main(["A", "--seconds", "0", "--tiny", "--device", "cpu", "--out", str(tmp_path)])
    points = list(read(tmp_path / "points.jsonl"))
    assert set(left_out(points).values()) == {"no time left"}
    code = f"import sys\nsys.modules['triton'] = None\n{BARE}"
    points, _ = run(["A", "--parts", "device", "networks"], tmp_path, code=code)
    first = next(p.row for p in points if p.table == "checks")
    assert str(first["found"]).startswith("ModuleNotFoundError")
    judged = [p.row["way"] for p in points if p.table.startswith("tokens beside")]
    assert judged == 2 * ["eager", "eager, lookahead", "drafts", "plain torch"]
