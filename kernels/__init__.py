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


@functools.cache
def attention_kernels(head_dim: int) -> dict[str, Callable[..., None]]:
    """The functions of attention.cpp for one of HEAD_DIMS by name, as far as the processor has the
    instructions; empty if they cannot be compiled."""
    library = _library(ATTENTION_SOURCE, f"-DHEAD_DIM={head_dim}")
    found: dict[str, Callable[..., None]] = {}
    for name in ATTENTION:
        function = getattr(library, name, None)
        if function is None or ("amx" in name and not _amx_allowed(library)):
            continue
        function.restype = None
        function.argtypes = (
            [ctypes.c_void_p] * 4
            + [ctypes.c_int64] * 6
            + [ctypes.c_void_p] * 6
            + [ctypes.c_int64] * 2
            + [ctypes.c_float]
        )
        found[name] = function
    return found


@functools.cache
def linear_kernel(name: str) -> Callable[..., None] | None:
    """A function of LINEAR_SOURCES, such as `linear_f32`, or None if the processor lacks its
    instructions or it cannot be compiled."""
    for library in map(_linear_library, LINEAR_SOURCES):
        function = getattr(library, name, None)
        if function is not None:
            function.restype = None
            function.argtypes = [
                ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3,
                ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64,
            ]  # fmt: skip
            found: Callable[..., None] = function
            return found
    return None


@functools.cache
def _linear_library(name: str) -> ctypes.CDLL | None:
    library = _library(name)
    return library if _amx_allowed(library) else None


def _amx_allowed(library: ctypes.CDLL | None) -> bool:
    """False if the functions of `library` use AMX and the system refuses it."""
    allowed = getattr(library, "amx_allowed", None)
    if allowed is None or allowed():
        return True
    log.warning("the system refuses AMX to this process: other kernels are used")
    return False


def identity(*sources: str) -> tuple[str, ...]:
    """What the speed of kernels depends on: their sources and the processor."""
    return *(_text(_source(name)) for name in sources), _processor()


@functools.cache
def layer_kernel(name: str, dtype: str) -> Callable[..., None] | None:
    """A function of layers.cpp for `f32` or `bf16`, or None if it cannot be compiled."""
    function = getattr(_library("layers/layers"), f"{name}_{dtype}", None)
    if function is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.restype = None
    function.argtypes = {
        "add_rms_norm": [*[pointer] * 3, ctypes.c_float, *[number] * 2, *[pointer] * 2],
        "gated": [pointer, *[number] * 2, ctypes.c_int32, pointer],
        "rotate": [*[pointer] * 2, *[number] * 6, *[pointer] * 4, *[ctypes.c_float] * 2],
    }[name]
    found: Callable[..., None] = function
    return found


@functools.cache
def sampling_library() -> ctypes.CDLL | None:
    """`draw_f32` and `draw_bf16` of sampling.cpp, or None if they cannot be compiled."""
    library = _library("sampling/sampling")
    if library is not None:
        for function in (library.draw_f32, library.draw_bf16):
            function.restype = None
            function.argtypes = (
                [ctypes.c_void_p]
                + [ctypes.c_int64] * 2
                + [ctypes.c_void_p, ctypes.c_int64]
                + [ctypes.c_void_p] * 2
                + [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
                + [ctypes.c_void_p] * 2
            )
    return library


def cache_folder() -> Path:
    """Raises RuntimeError if the user has no home folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "effective-batching"


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
