"""A lead that the machine's drift explains is none, and a busy machine leaves no recording."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import report
from benchmarks.harness.turns import ratio

BURN = "import time\nwhile time.process_time() < 0.3: pass"
# its end closes the pipe
ORPHAN = f"""
import os, subprocess, sys
code = "import os\\nif os.fork(): os._exit(0)\\n" + {BURN!r}
subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
"""


def test_a_drift_of_the_machine_leaves_the_ratio_alone() -> None:
    found = ratio([10.0, 13.0, 17.0], [5.0, 6.5, 8.5])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert not found.tie
    for ours, theirs in (
        ([10.0, 13.0, 17.0], [9.1, 11.8, 15.4]),  # 10 %, always; the machine moved by 70 %
        ([10.0, 9.0, 11.0], [10.0, 10.0, 9.8]),  # at times ahead, at times behind
        ([20.0], [10.0]),  # who knows
    ):
        assert ratio(ours, theirs).tie


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
def test_work_of_others_is_company_and_that_of_adopted_orphans_is_not() -> None:
    """A child of a dead child is not counted before. In a process of its own: this one must not
    adopt, since other tests expect orphans to vanish."""
    code = f"""
import time
from client.load.machine import Company, _ours_s, adopt_orphans
company, began_s = Company(), time.monotonic()
{ORPHAN}
print(company.cores() * (time.monotonic() - began_s))
adopt_orphans()
before_s = _ours_s()
{ORPHAN}
print(_ours_s() - before_s)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    for used_s in map(float, done.stdout.split()):
        assert used_s >= 0.28  # the kernel counts in hundredths


def test_nothing_is_recorded_while_others_use_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "QUIET_CORES", -1.0)
    with pytest.raises(SystemExit, match=r"other processes used \d"):
        report.save({"a": 1}, "| a |", tmp_path / "out", "it")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(report, "QUIET_CORES", math.inf)
    report.save({"a": 1}, "| a |", tmp_path / "out", "it")
    assert (tmp_path / "out" / "it.json").exists()
