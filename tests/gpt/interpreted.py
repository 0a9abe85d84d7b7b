"""Triton's kernels on a CPU: import this before anything that imports them."""

import os

os.environ["TRITON_INTERPRET"] = "1"
