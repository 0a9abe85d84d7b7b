"""`python -m router`: the router as a command (`./server.sh router`)."""

import asyncio
import sys

from router.config import parse_args
from router.service import serve


def main() -> None:
    config = parse_args(sys.argv[1:])
    try:
        asyncio.run(serve(config))
    except OSError as error:
        sys.exit(f"router: {error}")


if __name__ == "__main__":
    main()
