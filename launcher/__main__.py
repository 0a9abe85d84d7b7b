"""`python -m launcher`: see `./server.sh launcher --help`."""

import sys

from launcher.config import read
from launcher.launcher import launch

if __name__ == "__main__":
    sys.exit(launch(*read(sys.argv[1:])))
