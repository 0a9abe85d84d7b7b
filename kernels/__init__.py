"""Kernels for operations that are slow in torch, compiled at first use.

A kernel is a C++ file without dependencies, compiled for the machine's own processor and kept in
the user's cache. Without a compiler the caller uses the plain-torch twin, which defines what the
kernel computes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

FLAGS = [
    "-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC",
    "-fno-math-errno", "-fno-trapping-math",
]  # fmt: skip
LINEAR_SOURCES = ("linear/linear", "linear/blocks", "linear/amx", "linear/blocks_amx")
ATTENTION_SOURCE = "attention/attention"
ATTENTION = ("attend_f32", "attend_bf16", "attend_dot_bf16", "attend_amx_bf16")
HEAD_DIMS = range(16, 257, 16)  # of attention
KEYS_TOGETHER = 16  # read by attention at once: its blocks hold a multiple of it
# parameters of the functions, by the beginning of their names: p a pointer, n an int64, i an int32,
# f a float
PARAMETERS = {
    "attend": "pppp nnnnnn pppppp nn f",
    "linear": "p nn ppp i p n",
    "add_rms_norm": "ppp f nn pp",
    "gated": "p nn i p",
    "rotate": "pp nnnnnn pppp ff",
    "draw": "p nn p n pp n p n pp",
}
_TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "i": ctypes.c_int32, "f": ctypes.c_float}

Kernel = Callable[..., None]


@functools.cache
def attention_kernels(head_dim: int) -> dict[str, Kernel]:
    """The functions of attention.cpp for one of HEAD_DIMS by name, as far as the processor has the
    instructions; empty if they cannot be compiled."""
    library = _library(ATTENTION_SOURCE, f"-DHEAD_DIM={head_dim}")
    found = {name: _function(library, name) for name in ATTENTION}
    return {name: kernel for name, kernel in found.items() if kernel is not None}


@functools.cache
def linear_kernel(name: str) -> Kernel | None:
    """A function of LINEAR_SOURCES, such as `linear_f32`, or None if the processor lacks its
    instructions or it cannot be compiled."""
    found = (_function(_library(source), name) for source in LINEAR_SOURCES)
    return next((kernel for kernel in found if kernel is not None), None)


@functools.cache
def layer_kernel(name: str, dtype: str) -> Kernel | None:
    """A function of layers.cpp for `f32` or `bf16`, or None if it cannot be compiled."""
    return _function(_library("layers/layers"), f"{name}_{dtype}")


@functools.cache
def draw_kernel(dtype: str) -> Kernel | None:
    """As `layer_kernel`, of sampling.cpp."""
    return _function(_library("sampling/sampling"), f"draw_{dtype}")


def _function(library: ctypes.CDLL | None, name: str) -> Kernel | None:
    """None if the library has none, or if it uses AMX, which the system refuses."""
    function = getattr(library, name, None)
    if function is None or ("amx" in name and not _amx_allowed(library)):
        return None
    parameters = next(of for start, of in PARAMETERS.items() if name.startswith(start))
    function.restype = None
    function.argtypes = [_TYPES[letter] for letter in parameters.replace(" ", "")]
    found: Kernel = function
    return found


def _amx_allowed(library: ctypes.CDLL | None) -> bool:
    allowed = getattr(library, "amx_allowed", None)
    if allowed is None or allowed():
        return True
    log.warning("the system refuses AMX to this process: other kernels are used")
    return False


def identity(*sources: str) -> tuple[str, ...]:
    """What the speed of kernels depends on: their sources and the processor."""
    return *(_text(_source(name)) for name in sources), _processor()


def cache_folder() -> Path:
    """Raises RuntimeError if the user has no home folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "effective-batching"


@functools.cache
def _library(name: str, *flags: str) -> ctypes.CDLL | None:
    return load_library(_source(name), *flags)


def load_library(source: Path, *flags: str) -> ctypes.CDLL | None:
    """A C++ file, compiled; None if it cannot be. Call it after torch was imported: OpenMP's
    runtime must be torch's, or two thread pools would compete for the cores."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        log.warning("no C++ compiler found: %s uses torch's slower operators", source.stem)
        return None
    try:
        return ctypes.CDLL(str(_build(source, compiler, [*FLAGS, *flags])))
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # no home: RuntimeError
        detail = getattr(error, "stderr", "") or str(error)
        log.warning(
            "the %s kernel could not be compiled, torch's operators are used: %s",
            source.stem,
            detail,
        )
        return None


def _build(source: Path, compiler: str, flags: Sequence[str]) -> Path:
    """The compiled library, built again when source, flags, compiler or processor change."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    identity = (_text(source), flags, version.stdout, platform.machine(), _processor())
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    cache = cache_folder()
    library = cache / f"{source.stem}-{digest}.so"
    if not library.exists():
        log.warning("compiling %s for this machine (once, a few seconds)", source.name)
        cache.mkdir(parents=True, exist_ok=True)
        # built under another name and renamed, so that servers starting together never load half a
        # file
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            built = Path(folder) / library.name
            subprocess.run(
                [compiler, *flags, str(source), "-o", str(built)],
                capture_output=True,
                text=True,
                check=True,
            )
            built.replace(library)
    return library


def _source(name: str) -> Path:
    return Path(__file__).parent / f"{name}.cpp"


def _text(source: Path) -> str:
    """Of the source and of the headers beside it that it includes."""
    text = source.read_text()
    headers = re.findall(r'^#include "(.+)"$', text, re.MULTILINE)
    return "".join([*(_text(source.parent / header) for header in headers), text])


@functools.cache
def _processor() -> str:
    """What -march=native depends on: a cache in a shared home must not serve another processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
