"""The earlier name of `models.embedded`: its commands, such as `python -m embedded.train`."""

from models.embedded import __path__ as __path__
