"""`python -m launcher`: see `./server.sh launcher --help`."""

import asyncio
import sys

from launcher.config import read
from launcher.launcher import Launcher

if __name__ == "__main__":
    sys.exit(asyncio.run(Launcher(*read(sys.argv[1:])).run()))
