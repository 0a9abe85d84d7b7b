"""`python -m cluster`: see `./server.sh cluster --help`."""

import os
import sys

from cluster.config import read

# Ray reads these when it is imported. It reports nothing to anyone, ends no server to free memory,
# and shows each line that a server prints.
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
}
# Ray listens on 127.0.0.1, as it does by itself on other systems than Linux.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def main() -> int:
    config, server = read(sys.argv[1:])
    os.environ.update({**RAY, **({} if config.address else ALONE), **os.environ})
    try:
        from cluster.driver import run
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        sys.exit("error: Ray is not installed: pip install -r requirements-cluster.txt")
    return run(config, server)


if __name__ == "__main__":
    sys.exit(main())
