"""The router's log: one JSON object per line on standard error."""

import logging

from web.requests import JsonFormatter

LOGGER = logging.getLogger("router")


def set_up(*, debug: bool) -> None:
    """Sends the router's logs and the libraries' warnings to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    LOGGER.setLevel(logging.DEBUG if debug else logging.INFO)


def event(level: int, name: str, /, **fields: object) -> None:
    """Logs one line: what happened, and its fields."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, name, extra={"fields": fields})
