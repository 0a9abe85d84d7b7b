"""A GGUF file that is cut off, foreign or lies is refused with a sentence, whatever it says."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from models.weights.gguf_header import read_header
from seams import LoadError
from tests.models.gguf_files import finish


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 1e5)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "\N{GRINNING FACE}"])
    writer.add_array("tokenizer.ggml.token_type", [1, 3, 1])
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(3, 2))
    blocks = np.zeros((4, 34), np.uint8)
    writer.add_tensor("b.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(writer)
    return path.read_bytes()


def test_metadata_and_places_are_those_that_the_package_reads(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(whole)
    header, peer = read_header(path), gguf.GGUFReader(path)
    own = {k: f.contents() for k, f in peer.fields.items() if not k.startswith("GGUF.")}
    assert header.metadata == own
    for tensor in peer.tensors:
        info = header.tensors[tensor.name]
        assert info.kind == tensor.tensor_type.name
        assert info.shape == tuple(int(n) for n in tensor.shape)[::-1]
        assert info.offset == tensor.data_offset
        assert info.row_bytes * info.shape[0] == tensor.n_bytes


def number(code: str, *values: float) -> bytes:
    return struct.pack(code, *values)


def text(of: str) -> bytes:
    return number("<Q", len(of)) + of.encode()


def file(keys: bytes = b"", count: int = 0, tensors: bytes = b"", named: int = 0) -> bytes:
    head = b"GGUF" + number("<I", 3) + number("<Q", named) + number("<Q", count)
    return head + keys + tensors + bytes(256)


def tensor(name: str, sizes: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    shape = number("<I", len(sizes)) + b"".join(number("<Q", size) for size in sizes)
    return text(name) + shape + number("<I", kind) + number("<Q", offset)


class Counting(io.FileIO):
    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        Counting.taken += len(data)
        return data


COUNTED = text("a") + number("<I", 9)  # a key whose value is an array


FALSE = [
    (b"", "it ends within the magic"),
    (b"PK\x03\x04" + bytes(64), "it is no GGUF file"),
    (b"GGUF" + number(">I", 3) + bytes(64), "it is big-endian, allowed: little-endian"),
    (file(number("<Q", 2000), 1), "it ends within a key"),
    (file(text("a") + number("<I", 13), 1), "key 'a' is of type 13, allowed"),
    (file((text("a") + number("<I", 0) + b"\1") * 2, 2), "key 'a' occurs twice"),
    (
        file(text("a") + number("<I", 9) + number("<I", 9) + number("<Q", 1), 1),
        "key 'a' is of type 9, allowed",
    ),
    (
        file(text("general.alignment") + number("<I", 4) + number("<I", 33), 1),
        "general.alignment is 33, allowed: a power of two",
    ),
    (file(tensors=tensor("t", (2,), kind=10), named=1), "tensor 't' is of type 10, supported"),
    (file(tensors=tensor("t", (33, 2), kind=8), named=1), "no multiple of 32 values"),
    (file(tensors=tensor("t", (2**33, 2**33)), named=1), "tensor 't' has shape"),
    (file(tensors=tensor("t", (0, 2)), named=1), "tensor 't' has shape"),
    (file(tensors=tensor("t", (2,), offset=3), named=1), "is not aligned to 32 bytes"),
    (file(tensors=tensor("t", (200,)), named=1), "tensor 't' ends behind the end of the file"),
    (file(tensors=tensor("t", (2,)) * 2, named=2), "tensor 't' occurs twice"),
]
LYING = [  # a count is more than is allowed, or than the file has
    (file(named=2**40)[:16], "it has 1099511627776 tensors"),
    (file(count=2**63)[:24], "it has 9223372036854775808 keys"),
    (file(number("<Q", 2**60), 1)[:32], "bytes in a key"),
    # beyond what is allowed
    (file(COUNTED, 1)[:37] + number("<IQ", 8, 2**24), "values of key 'a', allowed"),
    (file(COUNTED, 1)[:37] + number("<IQ", 12, 2**21), "values of key 'a', allowed"),
    # allowed, but beyond the file
    (file(COUNTED, 1)[:37] + number("<IQ", 12, 2**20), "it ends within key 'a'"),
    (file(text("a") + number("<I", 8), 1)[:37] + number("<Q", 2**24), "it ends within key 'a'"),
]


@pytest.mark.parametrize(
    ("data", "message", "behind"),
    [*((*each, 0) for each in FALSE), *((*each, 2**22) for each in LYING)],
)
def test_a_false_header_is_refused_and_what_it_announces_is_not_read(
    data: bytes, message: str, behind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a lying count are zeros, which would do as values."""
    path = tmp_path / "false.gguf"
    with path.open("wb") as opened:
        opened.write(data)
        opened.truncate(len(data) + behind)

    monkeypatch.setattr(Counting, "taken", 0)
    monkeypatch.setattr(Path, "open", lambda path, mode: Counting(path, mode))
    with pytest.raises(LoadError) as refused:
        read_header(path)
    assert message in str(refused.value)
    assert Counting.taken <= len(data)
