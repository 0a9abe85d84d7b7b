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


def git(root: Path, *arguments: str, at_s: int = 1_000) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    date = {"GIT_AUTHOR_DATE": f"@{at_s} +0000", "GIT_COMMITTER_DATE": f"@{at_s} +0000"}
    subprocess.run(
        ["git", *who, *arguments], cwd=root, check=True, capture_output=True,
        env={**os.environ, **date},
    )  # fmt: skip


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
    assert state(IT, checkout) == "recorded"
    (checkout / "other.py").write_text("2")
    git(checkout, "commit", "-am", "no concern of it", at_s=2_000)
    assert state(IT, checkout) == "recorded"
    (checkout / "code.py").write_text("2")
    assert state(IT, checkout) == "old", "before it is committed, too"
    git(checkout, "commit", "-am", "code", at_s=3_000)
    assert state(IT, checkout) == "old"
    (checkout / "results" / "it" / "it.json").write_text('{"new": 1}')
    assert state(IT, checkout) == "recorded", "so that an interrupted series continues"
    (checkout / "results" / "it" / "it.json").unlink()
    assert state(IT, checkout) == "missing"


def test_a_commit_that_affects_no_figure_makes_no_recording_old(checkout: Path) -> None:
    (checkout / "code.py").write_text("# a comment")
    text = "The reason for it\n\nFigures unaffected: only a comment changes."
    git(checkout, "commit", "-am", text, at_s=3_000)
    assert state(IT, checkout) == "recorded"
    (checkout / "code.py").write_text("2")
    git(checkout, "commit", "-am", "Figures unaffected by nothing else", at_s=4_000)
    assert state(IT, checkout) == "old"


def command(program: str) -> str:
    return f"{{python}} -c {shlex.quote(program)} {{out}}"


WRITES = command(
    "import pathlib, sys; print('said'); (pathlib.Path(sys.argv[1]) / 'it.json').write_text('new')"
)


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
    names = {path.name for path in folder.rglob("*")}
    assert names == {"it.json", "it.gz", "workloads"}


def test_a_command_that_only_prints_is_recorded_by_its_output(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "QUIET_CORES", math.inf)
    assert record(replace(IT, command="echo said"), checkout)
    assert (checkout / "results" / "it" / "it.json").read_text() == "said\n"


@pytest.mark.parametrize(
    ("program", "allowed", "reason"),
    [
        (WRITES, -1.0, "not recorded: others used "),
        (command("raise SystemExit(3)"), math.inf, "failed with status 3"),
        (command("pass"), math.inf, "left no it.json"),
    ],
    ids=["busy", "failed", "nothing"],
)
def test_a_failed_or_disturbed_recording_leaves_the_old_one(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    program: str, allowed: float, reason: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(recording, "QUIET_CORES", allowed)
    assert not record(replace(IT, command=program), checkout)
    assert (checkout / "results" / "it" / "it.json").read_text() == "{}"
    assert reason in capfd.readouterr().err


def test_the_table_names_code_and_commands_that_are_there() -> None:
    assert len({r.name for r in TABLE}) == len(TABLE)
    for one in TABLE:
        for path in one.measures:
            assert (ROOT / path).exists(), f"{one.name} measures {path}"
        words = shlex.split(one.command)
        if words[0] == "{python}":
            module = ROOT.joinpath(*words[2].split("."))
            assert (module / "__main__.py").exists() or module.with_suffix(".py").exists()
        else:
            assert (ROOT / words[0]).exists()


def test_every_recording_is_there_and_quoted() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    text = "".join(page.read_text() for page in pages)
    for one in TABLE:
        assert (ROOT / one.shows).exists(), one.name
        quoted = one.folder if one.folder.startswith("results/") else one.left
        assert quoted in text, f"no page quotes {one.name}"


def test_all_regular_recordings_fit_into_the_time_for_them() -> None:
    assert sum(one.minutes for one in TABLE if not one.rare) <= MOST_MINUTES


def test_a_rare_recording_is_not_due_and_says_of_which_commit_it_is(checkout: Path) -> None:
    rare = replace(IT, rare=True)
    (checkout / "code.py").write_text("2")
    git(checkout, "commit", "-am", "code", at_s=3_000)
    assert state(rare, checkout) == "rare"
    first = subprocess.run(
        ["git", "rev-list", "--max-parents=0", "--abbrev-commit", "HEAD"],
        cwd=checkout, check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    assert commit(rare, checkout) == f"{first} of 1970-01-01"
