"""What the servers under test import (see `forked.py`). None of it may start a thread."""

from importlib import import_module

for name in ("gunicorn.app.wsgiapp", "tests.support.hash_app", "router.service"):
    import_module(name)
