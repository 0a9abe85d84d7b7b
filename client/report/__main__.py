"""``python -m client.report FOLDER``: compute and render a report again from its raw data.

Whatever was measured stays as it is; figures, gates and pages are those of this version.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from client.load.raw import RawError
from client.report.run import read_run, write_run_report
from client.workloads.workload_file import WorkloadError


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m client.report", description=__doc__)
    p.add_argument("folder", type=Path, help="what client.py --out wrote")
    folder = p.parse_args(argv).folder
    try:
        write_run_report(folder, read_run(folder))
    except (RawError, WorkloadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(folder / "report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
