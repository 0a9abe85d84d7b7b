"""The example of docs/measuring.md: one run of the client against a server of its own.

python -m benchmarks.one_run --out results/reference-run
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.servers import server
from client import client

OPTIONS = (
    "--arrivals", "plan:high", "--numsamples", "150", "--rate", "4",
    "--output-tokens", "normal:50,25,1,100", "--slo", "ttft:500ms,tpot:50ms",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    args = parser.parse_args(argv)
    with server("embedded", "float32", 32) as url:
        return client.main([*OPTIONS, "--target", url, "--out", str(args.out)])


if __name__ == "__main__":
    sys.exit(main())
