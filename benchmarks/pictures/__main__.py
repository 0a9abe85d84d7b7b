"""The pictures of the pages, from real iterations and from what was recorded.

python -m benchmarks.pictures                 # all of them, in docs/img
python -m benchmarks.pictures --only modes
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path

from benchmarks.pictures import load, memory, requests, step

PICTURES: dict[str, Callable[[Path], None]] = {
    "modes": lambda folder: requests.draw(requests.MODES, folder / "modes.png"),
    "policies": lambda folder: requests.draw(requests.POLICIES, folder / "policies.png"),
    "memory": memory.draw,
    "load": load.draw,
    "step": step.draw,
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="default: %(default)s")
    parser.add_argument("--only", choices=PICTURES, help="one of the pictures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        if args.only in (None, name):
            draw(args.out)


if __name__ == "__main__":
    main()
