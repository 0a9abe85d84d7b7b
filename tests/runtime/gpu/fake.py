"""A GPU that is not there: tensors on `cuda:0` without contents (torch's FakeTensorMode), and a log
of every operator that an iteration calls.

The executor runs as it is, but for what needs memory: copies to and from the device are counted
instead of made, and graphs are not recorded. A CPU build of torch has no device guard, which Python
takes in `x[...]` and `~x`, so these two become operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import kernels.gpu.attention
import runtime.errors
import runtime.executor
import runtime.gpu.device
import runtime.gpu.graphs
import runtime.gpu.paged
import runtime.sampling.sampler
import runtime.transfer
from models.gpt2 import GPT, GPTConfig
from runtime.executor import Executor
from runtime.gpu.graphs import Graphs
from runtime.transfer import Array, padded_bytes

GPU = torch.device("cuda:0")
# nothing is launched for these
FREE = ("empty", "new_empty", "detach", "alias", "_unsafe_view", "lift", "device")


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """An operator, and the tensors that it reads and returns."""

    name: str
    ours: bool
    inputs: list[Tensor]
    outputs: list[Tensor]

    def __str__(self) -> str:
        def told(tensors: list[Tensor]) -> list[tuple[str, tuple[int, ...]]]:
            return [(str(tensor.dtype), tuple(tensor.shape)) for tensor in tensors]

        return f"{self.name} {told(self.inputs)} {told(self.outputs)}"


def tensors_of(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors_of(value)]
    return []


class Operators(TorchDispatchMode):
    """The operators that were called; views and allocations are left out of `launched`."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Called] = []
        self._views: set[int] = set()

    @property
    def launched(self) -> list[Called]:
        return [c for i, c in enumerate(self.called) if i not in self._views]

    @property
    def names(self) -> list[str]:
        return [called.name for called in self.launched]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name.startswith(FREE):
            self._views.add(len(self.called))
        inputs = tensors_of([*args, *(kwargs or {}).values()])
        ours = func.namespace == "effective_batching"
        self.called.append(Called(name, ours, inputs, tensors_of(out)))
        return out


class Items(TorchFunctionMode):
    """`x[...]`, `~x` and `x.copy_(y)` as operators."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is Tensor.__invert__:
            return torch.bitwise_not(args[0])
        if func is Tensor.copy_:
            return torch.ops.aten.copy_(*args, **(kwargs or {}))
        if func is Tensor.__getitem__:
            return indexed(*args)
        return func(*args, **(kwargs or {}))


def indexed(x: Tensor, at: Any) -> Tensor:
    parts = at if isinstance(at, tuple) else (at,)
    if any(part is Ellipsis for part in parts):
        cut = next(i for i, part in enumerate(parts) if part is Ellipsis)
        missing = x.dim() - sum(part is not None and part is not Ellipsis for part in parts)
        parts = (*parts[:cut], *([slice(None)] * missing), *parts[cut + 1 :])
    dim, index = 0, dict[int, Tensor]()
    for part in parts:
        if part is None:
            x = torch.ops.aten.unsqueeze(x, dim)
        elif isinstance(part, Tensor):
            index[dim] = part
        elif isinstance(part, slice):
            x = torch.ops.aten.slice(x, dim, part.start, part.stop, part.step or 1)
        else:
            x = torch.ops.aten.select(x, dim, int(part))
            continue
        dim += 1
    if index:
        x = torch.ops.aten.index(x, [index.get(i) for i in range(max(index) + 1)])
    return x


@dataclass
class Traffic:
    """What crossed between host and device, and the graphs that were replayed."""

    sent: int = 0
    read: int = 0
    replayed: int = 0
    device: torch.device = field(default=GPU)

    def send(self, arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
        assert device == self.device
        self.sent += 1
        types = runtime.transfer._TORCH
        return [torch.empty(a.shape, dtype=types[a.dtype], device=device) for a in arrays]

    def stage(self, arrays: Sequence[Array], *, pinned: bool) -> Tensor:
        """In the host's memory; who copies it to the device sends."""
        assert pinned
        self.sent += 1
        return torch.empty(sum(map(padded_bytes, arrays)), dtype=torch.uint8, device=self.device)

    def read_back(self, tensors: Sequence[Tensor], device: torch.device) -> FakeReadBack:
        self.read += 1
        assert all(tensor.device == self.device for tensor in tensors)
        return FakeReadBack(tensors)

    def replay(self) -> None:
        self.replayed += 1


class FakeReadBack:
    """Zeros, where the device's numbers would be."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        numpy = runtime.transfer._NUMPY
        self._arrays = [np.zeros(tensor.shape, numpy[tensor.dtype]) for tensor in tensors]

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        return list(self._arrays)


class Replays(dict[Any, Any]):
    """A graph for any bucket."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def __missing__(self, _: object) -> Traffic:
        return self._traffic


def contiguous(x: Tensor) -> Tensor:
    """Another function that takes the guard, called within torch."""
    return (
        x if x.is_contiguous() else torch.ops.aten.clone(x, memory_format=torch.contiguous_format)
    )


@contextlib.contextmanager
def fake_gpu() -> Iterator[Traffic]:
    traffic = Traffic()

    def no_recording(graphs: Graphs) -> None:
        graphs._graphs = Replays(traffic)

    with (
        pytest.MonkeyPatch.context() as patch,
        FakeTensorMode(),
        Items(),
        torch.no_grad(),  # inference mode would hide operators
        mock.patch.object(FakeTensor, "data_ptr", return_value=0, create=True),
        mock.patch.object(FakeTensor, "contiguous", contiguous, create=True),
    ):
        for module in (
            runtime.executor,
            runtime.gpu.device,
            runtime.gpu.paged,
            runtime.sampling.sampler,
        ):
            patch.setattr(module, "send", traffic.send)
        patch.setattr(runtime.gpu.graphs, "stage", traffic.stage)
        patch.setattr(runtime.executor, "ReadBack", traffic.read_back)
        patch.setattr(Graphs, "_record", no_recording)
        patch.setattr(runtime.gpu.device.Device, "_difference", lambda *_: None)
        patch.setattr(runtime.errors, "_is_lost", lambda _: False)
        patch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
        # nothing can be timed
        patch.setattr(runtime.gpu.paged, "decode_launch", lambda *_: kernels.gpu.attention.Launch())
        patch.setattr(Executor, "start", Executor.start.__wrapped__)  # type: ignore[attr-defined]
        yield traffic


def fake_network(config: GPTConfig, dtype: torch.dtype) -> GPT:
    """Its parameters are made on no device, since that of `cuda:0` would be asked for."""
    with torch.device("meta"):
        network = GPT(config)
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                there = torch.empty(parameter.shape, device=GPU, dtype=dtype)
                module._parameters[name] = torch.nn.Parameter(there, requires_grad=False)
    network.head.weight = network.wte.weight
    return network.eval()
