"""``python -m client.report FOLDER``: compute and render a report again from its raw data.

The measurements stay; figures, verdicts and pages are those of this version.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from client.load.records import RawError
from client.report.comparison import as_text, read_comparison, write_comparison
from client.report.run import read_run, run_text, write_run_report
from client.workloads.spec import SpecError


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m client.report", description=__doc__)
    p.add_argument("folder", type=Path, help="a folder written by compare.sh or client.py --out")
    folder = p.parse_args(argv).folder
    try:
        if (folder / "manifest.json").exists():
            comparison = read_comparison(folder)
            write_comparison(folder, comparison)
            text = as_text(comparison)
        else:
            run = read_run(folder)
            write_run_report(folder, run)
            text = run_text(run)
    except (RawError, SpecError, OSError) as error:  # the last: of what it writes
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
