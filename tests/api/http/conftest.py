"""Sockets of a test."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Ours, as a server's, and theirs, as its client's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs
