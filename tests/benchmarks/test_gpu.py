"""The GPU's benchmark, small and interpreted, with nothing else installed than it may need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.on_gpu.points import TableRow, read, tables

ROOT = Path(__file__).resolve().parents[2]

HIDDEN = """
import sys
for package in (
    "aiohttp", "dotenv", "flask", "gguf", "google", "grpc", "gunicorn", "huggingface_hub",
    "llguidance", "matplotlib", "msgspec", "psutil", "pydantic", "requests", "scipy", "sqlalchemy",
    "tiktoken", "tokenizers", "tqdm", "transformers",
):
    sys.modules[package] = None  # an import of it fails
"""
RUN = """
import runpy, sys
sys.argv = ["gpu.py", *sys.argv[1:]]
sys.path[0] = "benchmarks"
runpy.run_path("benchmarks/gpu.py", run_name="__main__")
"""
BARE = HIDDEN + RUN


def run(arguments: Sequence[str], cache: Path, *, code: str = BARE) -> list[TableRow]:
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
    return points


def left_out(points: Sequence[TableRow]) -> dict[str, str]:
    found = [point.row for point in points if point.table == "left out"]
    return {str(row["what"]): str(row["why"]) for row in found}


NO_TRITON = f"import sys\nsys.modules['triton'] = None\n{BARE}"


def test_the_first_call_runs_from_a_bare_checkout_and_without_triton(tmp_path: Path) -> None:
    parts = ["device", "networks", "decodes of llama-3.2-1b"]
    points = run(["A", "--parts", *parts], tmp_path, code=NO_TRITON)
    assert not left_out(points)
    first = next(p.row for p in points if p.table == "checks")
    assert str(first["found"]).startswith("ModuleNotFoundError")
    judged = [p.row for p in points if p.table.startswith("tokens beside")]
    ways = ["eager", "eager, lookahead", "drafts", "plain torch"]
    assert [row["way"] for row in judged] == 2 * ways
    assert {row["not the best"] for row in judged} == {0}
    (step,) = [p.row for p in points if p.table.startswith("decode steps")]
    assert isinstance(step["served, lookahead"], float)


def test_the_second_call_runs_from_a_bare_checkout(tmp_path: Path) -> None:
    points = run(["B", "--parts", "mixed", "memcheck"], tmp_path)
    assert set(left_out(points)) <= {"memcheck"}  # its tool is a part of CUDA's
    sides = [
        (p.row["mode"], p.row["lookahead"]) for p in points if p.table.startswith("modes, mixed")
    ]
    assert sides == [(mode, ahead) for mode in ("nobatch", "static", "dynamic") for ahead in (0, 1)]


# the others take as long as the rest of these tests
WHOLE = ["device", "self-checks", "networks", "decodes of llama-3.2-1b", "attention", "kernels"]


@pytest.mark.parametrize(
    "parts", [["device", "attention"], pytest.param(WHOLE, marks=pytest.mark.long)], ids=len
)
def test_the_kernels_agree_under_the_interpreter(parts: list[str], tmp_path: Path) -> None:
    points = run(["A", "--parts", *parts], tmp_path)
    assert not left_out(points)
    assert {p.row["found"] for p in points if p.table == "checks"} == {"agrees"}
    judged = [p.row for p in points if p.table == "tokens beside a plain network in float32"]
    assert {row["not the best"] for row in judged} <= {0}


@pytest.mark.long
def test_no_stream_is_lost_over_http(tmp_path: Path) -> None:
    points = run(["B", "--parts", "http", "equal"], tmp_path, code=RUN)
    over_http = {p.row["mode"]: p.row["lost"] for p in points if p.table.startswith("over HTTP")}
    assert over_http == {"dynamic": 0, "launcher": 0}


TROUBLE = """
import os, signal, time
import benchmarks.gpu as gpu
def hang(options, emit):
    emit("found", {"before": 7.0})
    time.sleep(600)

gpu.parts_of = lambda call, points, tiny: [
    gpu.GpuPart("hangs", 3.0, hang),
    gpu.GpuPart("crashes", 60.0, lambda *_: os.kill(os.getpid(), signal.SIGKILL)),
    gpu.GpuPart("fails", 60.0, lambda *_: 1 / 0),
    gpu.GpuPart("the device", 60.0, gpu.trivial),
]
gpu.main()
"""


def test_a_part_that_hangs_crashes_or_fails_costs_the_others_nothing(tmp_path: Path) -> None:
    points = run(["A"], tmp_path, code=TROUBLE)
    assert left_out(points) == {
        "hangs": "not done after 3 s",
        "crashes": "ended with status -9",
        "fails": "ZeroDivisionError: division by zero",
    }
    assert [p.table for p in points if p.table in ("found", "the device")] == [
        "found",
        "the device",
    ]
