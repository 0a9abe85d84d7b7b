"""Records every figure that the README, the pages and `results/` show.

    python -m benchmarks.record --list            # all recordings, their time, and which are old
    python -m benchmarks.record                   # those older than the code they measure
    python -m benchmarks.record --rare            # the rare ones, too: some six hours more
    python -m benchmarks.record --only embedded   # these, old or not

In order, one at a time, on an idle machine: each recording begins when others do not use the cores,
and is discarded if they used more than 5 % of a core meanwhile. A virtual machine's hypervisor may
always take more than that: `QUIET_CORES=0.15` accepts 15 %. Each recording states what others used.
After an interruption the same command continues where it stopped, since finished recordings are not
old.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.report import QUIET_CORES
from benchmarks.record.table import DROPPED, TABLE, Recording
from client.load.machine import ROOT, Company

LOOK_S = 2.0
NO_EFFECT = "^Figures unaffected:"  # in the message of a commit that only changes texts


def changed_s(root: Path, paths: Sequence[str]) -> float | None:
    """When these last changed: their last commit, or the files' own time if they differ from it.

    Commits with a line that matches NO_EFFECT do not count. None if there are none.
    """
    if not any((root / path).exists() for path in paths):
        return None
    committed = _git(
        root, "log", "-1", "--format=%ct", "--invert-grep", f"--grep={NO_EFFECT}", "--", *paths
    )
    listed = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *paths)
    files = [root / line[3:].strip('"') for line in listed.splitlines()]
    times = [file.stat().st_mtime for file in files if file.exists()]
    return max([float(committed or 0), *times])


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True
    ).stdout.rstrip()


def state(recording: Recording, root: Path = ROOT) -> str:
    """``missing``, ``rare``, ``old`` or ``recorded``."""
    shown_s = changed_s(root, [recording.shows])
    code_s = changed_s(root, recording.measures)
    if shown_s is None:
        return "missing"
    if recording.rare:
        return "rare"
    return "old" if code_s is not None and code_s > shown_s else "recorded"


def commit(recording: Recording, root: Path = ROOT) -> str:
    """That which it was committed with, the state that it measured, and its date."""
    return _git(root, "log", "-1", "--format=%h of %cs", "--", recording.shows) or "not committed"


def lacks(recording: Recording) -> str | None:
    """A requirement that is missing: a folder, a program, an ability of the processor."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    for need in recording.needs:
        there = (ROOT / need).is_dir() or shutil.which(need, path=programs) is not None
        if not there and need not in Path("/proc/cpuinfo").read_text().split():
            return need
    return None


def listed(table: Sequence[Recording]) -> str:
    states = {r.name: state(r) for r in table}
    lines = [f"{'minutes':>7}  {'state':<8}  {'recording':<36}  {'commit':<21}  folder"]
    for r in table:
        missing = lacks(r)
        note = "" if missing is None else f"  (needs {missing})"
        lines.append(
            f"{r.minutes:>7g}  {states[r.name]:<8}  {r.name:<36}  {commit(r):<21}  {r.folder}{note}"
        )
    due = [r.minutes for r in table if states[r.name] in ("missing", "old") and lacks(r) is None]
    regular, rare = (sum(r.minutes for r in table if r.rare is kind) for kind in (False, True))
    told = (
        f"{len(due)} are due, {sum(due):g} minutes; all regular ones: {regular:g}, rare: {rare:g}"
    )
    return "\n".join([*lines, "", told])


def quiet() -> bool:
    """Whether the machine is idle."""
    company = Company()
    time.sleep(LOOK_S)
    if (cores := company.cores()) > QUIET_CORES:
        _say(f"others use {cores:.2f} of a core; at most {QUIET_CORES:g} is quiet")
    return cores <= QUIET_CORES


def record(recording: Recording, root: Path = ROOT) -> bool:
    """Makes one and moves it to its folder; False if it failed or the machine was not idle."""
    began_s = time.monotonic()
    scratch = root / "build" / "record"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        out = Path(folder)
        why = failure(recording, root, out)
        took = f"{(time.monotonic() - began_s) / 60:.1f} minutes"
        if why is not None:
            _say(f"{recording.name} {why}, {took}")
            return False
        for name in (*DROPPED, *recording.drops):
            shutil.rmtree(out / name, ignore_errors=True)
            with contextlib.suppress(OSError):
                (out / name).unlink()
        name_paths_from(root, out)
        for inner in (path for path in out.iterdir() if path.is_dir()):
            shutil.rmtree(root / recording.folder / inner.name, ignore_errors=True)
        shutil.copytree(out, root / recording.folder, dirs_exist_ok=True)
    _say(f"{recording.name} recorded in {recording.folder}, {took}")
    return True


def failure(recording: Recording, root: Path, out: Path) -> str | None:
    """Runs the command, which leaves its files in ``out``; why they do not count."""
    company = Company()
    words = shlex.split(recording.command)
    command = [word.format(python=sys.executable, out=out) for word in words]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return f"failed with status {done.returncode}"
    if company.cores() > QUIET_CORES:
        return f"not recorded: others used {company.cores():.2f} of a core"
    if "{out}" not in recording.command:
        (out / recording.left).write_text(done.stdout)
    return None if (out / recording.left).exists() else f"failed: it left no {recording.left}"


def name_paths_from(root: Path, folder: Path) -> None:
    """Makes absolute paths in the folder's files relative to the checkout, wherever that is."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        zipped = path.suffix == ".gz"
        content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
        content = content.replace(f"{root}/".encode(), b"")
        path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [r.name for r in TABLE]
    parser.add_argument("--list", action="store_true", help="print the table and measure nothing")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="record these")
    parser.add_argument("--all", action="store_true", help="also recordings that are not old")
    parser.add_argument("--rare", action="store_true", help="also those that are made seldom")
    args = parser.parse_args(argv)
    if args.list:
        print(listed(TABLE))
        return 0
    status = 0
    for recording in TABLE:
        due = args.all or recording.rare or state(recording) != "recorded"
        chosen = due and (args.rare or not recording.rare)
        if not (recording.name in args.only if args.only else chosen):
            continue
        if (missing := lacks(recording)) is not None:
            _say(f"{recording.name} left out: it needs {missing}")
            status = 1 if args.only else status
            continue
        if not quiet():
            return 1
        _say(f"{recording.name}: {recording.command}, about {recording.minutes:g} minutes")
        status = status if record(recording) else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
