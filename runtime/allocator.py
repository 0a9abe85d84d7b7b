"""glibc's allocator while weights are loaded: what is freed is returned to the system at once.

Layers are packed one after the other, and each one's own weights are freed. In the heap such a hole
is a little too small for the next layer of the same size, so memory would grow by a third.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
WHILE_LOADING = 1 << 18
# The most that glibc itself would choose in a process with allocations of this size (mallopt(3)):
# activations of an iteration come from the heap, without new pages each time.
AFTERWARDS = 1 << 25


@contextlib.contextmanager
def returning_what_is_freed() -> Iterator[None]:
    """Changes nothing where the allocator is another one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, WHILE_LOADING)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, AFTERWARDS)
        mallopt(M_TRIM_THRESHOLD, 2 * AFTERWARDS)
