"""The header of a GGUF file, read with bounds: metadata, and where which tensor lies.

A file may be cut off, damaged or made to harm, so every count, length, type and offset is checked
before anything is allocated by it. The format: ggml's docs/gguf.md, versions 2 and 3,
little-endian. Types are those of ggml.h (`enum ggml_type`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from seams import LoadError

Thing = TypeVar("Thing")
MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_HEADER_BYTES = 1 << 28  # vocabularies and merges take most of it: some 10 MB for 256,000
MOST_TENSORS, MOST_KEYS = 1 << 16, 1 << 16
MOST_STRING_BYTES, MOST_ARRAY_VALUES = 1 << 24, 1 << 20
MOST_DIMENSIONS, MOST_VALUES = 4, 1 << 40  # of a tensor
DEFAULT_ALIGNMENT, ALIGNMENTS = 32, [1 << power for power in range(21)]
STRING, ARRAY = 8, 9
SCALARS = dict(zip([*range(8), 10, 11, 12], "BbHhIif?Qqd", strict=True))  # codes of struct
# number in the file -> name, values of a block, bytes of a block
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
}  # fmt: skip


class TensorInfo(NamedTuple):
    kind: str  # a name of TYPES
    shape: tuple[int, ...]  # outputs first: the file has them last
    offset: int  # in the file
    row_bytes: int


class Header(NamedTuple):
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> Header:
    """Raises LoadError."""
    try:
        with path.open("rb") as file:
            return _Reader(file, path).header()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error}") from error


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._path, self._file, self._file_bytes = path, file, path.stat().st_size
        self._left = min(self._file_bytes, MOST_HEADER_BYTES)

    def header(self) -> Header:
        if self._take(4, "the magic") != MAGIC:
            raise self._error("it is no GGUF file")
        version = self._number("<I", "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            end = "; it is big-endian, allowed: little-endian" if swapped in VERSIONS else ""
            raise self._error(f"its version is {version}, allowed: 2, 3{end}")
        tensors, keys = self._count(MOST_TENSORS, "tensors"), self._count(MOST_KEYS, "keys")
        metadata = self._named(keys, "key", self._value)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment not in ALIGNMENTS:
            raise self._error(f"general.alignment is {alignment!r}, allowed: a power of two")
        found = self._named(tensors, "tensor", self._tensor)
        start = -(-self._file.tell() // alignment) * alignment
        placed = {name: self._placed(name, *of, start, alignment) for name, of in found.items()}
        return Header(metadata, placed)

    def _named(self, count: int, what: str, read: Callable[[str], Thing]) -> dict[str, Thing]:
        found: dict[str, Thing] = {}
        for _ in range(count):
            name = self._string(f"a {what}")
            if name in found:
                raise self._error(f"{what} '{name}' occurs twice")
            found[name] = read(name)
        return found

    def _tensor(self, name: str) -> tuple[int, tuple[int, ...], int]:
        dimensions = self._count(MOST_DIMENSIONS, f"dimensions of tensor '{name}'", "<I")
        shape = tuple(self._number("<Q", f"tensor '{name}'") for _ in range(dimensions))[::-1]
        return self._number("<I", f"tensor '{name}'"), shape, self._number("<Q", f"tensor '{name}'")

    def _placed(
        self, name: str, kind: int, shape: tuple[int, ...], offset: int, start: int, alignment: int
    ) -> TensorInfo:
        if kind not in TYPES:
            names = ", ".join(known for known, _, _ in TYPES.values())
            raise self._error(f"tensor '{name}' is of type {kind}, supported: {names}")
        values, (known, block, block_bytes) = math.prod(shape), TYPES[kind]
        if min(shape, default=0) < 1 or values > MOST_VALUES:
            raise self._error(f"tensor '{name}' has shape {shape}")
        if shape[-1] % block:
            raise self._error(f"tensor '{name}' has rows that are no multiple of {block} values")
        if offset % alignment:
            raise self._error(f"tensor '{name}' is not aligned to {alignment} bytes")
        row_bytes = shape[-1] // block * block_bytes
        if start + offset + values // shape[-1] * row_bytes > self._file_bytes:
            raise self._error(f"tensor '{name}' ends behind the end of the file")
        return TensorInfo(known, shape, start + offset, row_bytes)

    def _value(self, key: str) -> Any:
        kind = self._number("<I", f"key '{key}'")
        if kind != ARRAY:
            return self._entry(kind, key)
        of = self._number("<I", f"key '{key}'")
        count = self._count(MOST_ARRAY_VALUES, f"values of key '{key}'")
        if of in SCALARS:
            taken = self._take(count * struct.calcsize(f"<{SCALARS[of]}"), f"key '{key}'")
            return list(struct.unpack(f"<{count}{SCALARS[of]}", taken))
        return [self._entry(of, key) for _ in range(count)]

    def _entry(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self._string(f"key '{key}'")
        if kind not in SCALARS:
            raise self._error(f"key '{key}' is of type {kind}, allowed: scalars, strings, lists")
        return self._number(f"<{SCALARS[kind]}", f"key '{key}'")

    def _string(self, what: str) -> str:
        size = self._count(MOST_STRING_BYTES, f"bytes in {what}")
        return self._take(size, what).decode("utf-8", errors="replace")

    def _count(self, most: int, what: str, code: str = "<Q") -> int:
        if (count := self._number(code, what)) > most:
            raise self._error(f"it has {count} {what}, allowed: up to {most}")
        return int(count)

    def _number(self, code: str, what: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code), what))[0]

    def _take(self, size: int, what: str) -> bytes:
        self._left -= size
        if self._left < 0 or len(data := self._file.read(size)) < size:
            raise self._error(f"it ends within {what}")
        return data

    def _error(self, found: str) -> LoadError:
        return LoadError(f"{self._path}: {found}")
