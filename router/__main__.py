"""`python -m router`: the router as a command (`./server.sh router`)."""

import sys

from router.config import RouterConfig, parse_args
from router.service import run
from telemetry.journal import check_writable


def main() -> None:
    config = parse_args(sys.argv[1:])
    if config.record:
        try:
            check_writable(config.record)
        except OSError as error:
            RouterConfig.refuse(str(error))
    try:
        run(config)
    except OSError as error:
        sys.exit(f"router: {error}")


if __name__ == "__main__":
    main()
