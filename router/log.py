"""Structured logs: one JSON object per line on standard error. Independent of the router."""

import json
import logging
from typing import Any


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


LOGGER = logging.getLogger("router")


def set_up(*, debug: bool) -> None:
    """Sends the router's logs and the libraries' warnings to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    LOGGER.setLevel(logging.DEBUG if debug else logging.INFO)


def event(level: int, name: str, /, **facts: object) -> None:
    """Logs one line: what happened, and the facts."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, name, extra={"facts": facts})
