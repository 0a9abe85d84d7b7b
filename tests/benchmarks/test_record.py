"""Recordings know what they are older than, and only a quiet machine leaves one."""

from __future__ import annotations

import gzip
import math
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.record import __main__ as recording
from benchmarks.record.__main__ import commit, record, state
from benchmarks.record.table import MOST_MINUTES, TABLE, Recording
from client.load.machine import ROOT

IT = Recording("it", 1, "true", "results/it/it.json", ("code", "code.py"))


def git(root: Path, *arguments: str, at_s: int = 1_000) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    date = {"GIT_AUTHOR_DATE": f"@{at_s} +0000", "GIT_COMMITTER_DATE": f"@{at_s} +0000"}
    return subprocess.run(
        ["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True,
        env={**os.environ, **date},
    ).stdout  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "other.py").write_text("1")
    (tmp_path / "results" / "it").mkdir(parents=True)
    (tmp_path / "results" / "it" / "it.json").write_text("{}")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    return tmp_path


def test_a_recording_is_old_once_the_code_it_measures_has_changed(checkout: Path) -> None:
    (checkout / "other.py").write_text("2")
    git(checkout, "commit", "-am", "no concern of it", at_s=2_000)
    (checkout / "code.py").write_text("# a comment")
    git(checkout, "commit", "-am", "Why\n\nFigures unaffected: only a comment changes.", at_s=3_000)
    assert state(IT, checkout) == "recorded"
    (checkout / "code.py").write_text("2")
    assert state(IT, checkout) == "old", "before it is committed, too"
    git(checkout, "commit", "-am", "Figures unaffected by nothing else", at_s=4_000)
    assert state(IT, checkout) == "old"
    assert state(replace(IT, rare=True), checkout) == "rare"
    assert commit(IT, checkout).endswith(" of 1970-01-01")
    (checkout / "results" / "it" / "it.json").write_text('{"new": 1}')
    assert state(IT, checkout) == "recorded", "so that an interrupted series continues"
    (checkout / "results" / "it" / "it.json").unlink()
    assert state(IT, checkout) == "missing"


def command(program: str) -> str:
    return f"{{python}} -c {shlex.quote(program)} {{out}}"


def test_the_files_of_a_command_replace_those_of_its_folder_without_paths_of_the_machine(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "QUIET_CORES", math.inf)
    program = """
import gzip, os, pathlib, sys
out, text = pathlib.Path(sys.argv[1]), os.getcwd() + "/data"
for inner in ("workloads", "dropped"):
    (out / inner).mkdir()
(out / "it.json").write_text(text)
(out / "requests.csv").write_text(text)
(out / "it.gz").write_bytes(gzip.compress(text.encode()))
"""
    folder = checkout / "results" / "it"
    (folder / "workloads").mkdir()
    (folder / "workloads" / "old.jsonl").write_text("of an earlier load")
    assert record(replace(IT, command=command(program), drops=("dropped",)), checkout)
    assert (folder / "it.json").read_text() == "data"
    assert gzip.decompress((folder / "it.gz").read_bytes()) == b"data"
    assert {path.name for path in folder.rglob("*")} == {"it.json", "it.gz", "workloads"}
    assert record(replace(IT, command="echo said"), checkout)
    assert (folder / "it.json").read_text() == "said\n"


@pytest.mark.parametrize(
    ("program", "allowed"),
    [
        ("import pathlib, sys; (pathlib.Path(sys.argv[1]) / 'it.json').write_text('new')", -1.0),
        ("raise SystemExit(3)", math.inf),
        ("pass", math.inf),
    ],
    ids=["busy", "failed", "nothing"],
)
def test_a_failed_or_disturbed_recording_leaves_the_old_one(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, program: str, allowed: float
) -> None:
    monkeypatch.setattr(recording, "QUIET_CORES", allowed)
    assert not record(replace(IT, command=command(program)), checkout)
    assert (checkout / "results" / "it" / "it.json").read_text() == "{}"


def test_every_recording_is_there_and_quoted_and_its_code_and_command_are_there() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("learn/*.md"), ROOT / "README.md"]
    text = "".join(page.read_text() for page in pages)
    for one in TABLE:
        assert (ROOT / one.shows).exists(), one.name
        quoted = one.folder if one.folder.startswith("results/") else one.left
        assert quoted in text, f"no page quotes {one.name}"
        for path in one.measures:
            assert (ROOT / path).exists(), f"{one.name} measures {path}"
        words = shlex.split(one.command)
        if words[0] == "{python}":
            module = ROOT.joinpath(*words[2].split("."))
            assert (module / "__main__.py").exists() or module.with_suffix(".py").exists()
        else:
            assert (ROOT / words[0]).exists()
    assert sum(one.minutes for one in TABLE if not one.rare) <= MOST_MINUTES
