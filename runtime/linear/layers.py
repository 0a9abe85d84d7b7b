"""Linear layers with weights laid out once for a CPU's kernels, instead of in every call.

`KernelLinear` runs one of this project's kernels (kernels/linear/). A `BlockLinear`, over a GGUF
file's weights, is laid out for them already.
`PackedLinear` runs oneDNN's through private operators of torch; if they are missing, or do not
compute a linear layer, they are not offered. The plain layer is always a variant: torch's own, or
for quantised weights `Int8Linear` and `BlockLinear`, which also define what their kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import linear_kernel
from models.gpt2 import GeluLinear
from models.weights.loader import StoredLayers
from models.weights.source import Raw, quantise_int8
from runtime.linear.blocks import KINDS, BlockKind, BlockLinear

Precision = Literal["float32", "bfloat16", "int8"] | BlockKind  # of a layer's weights
# sums in integers: plain layers are batch invariant
EXACT: tuple[Precision, ...] = ("int8", *KINDS)
LEAST = 1e-30  # a row of smaller inputs counts as zeros, as in kernels/linear/linear.h
# outputs whose weights are stored together: two panels of 16, as in kernels/linear/linear.h
GROUP = 32


class Int8Linear(nn.Module):
    """A linear layer over int8 weights with a scale for each output.

    Inputs are quantised row by row, each to its own largest value; products are summed in integers,
    which is exact, so the result for a row does not depend on other rows. Scales and bias are
    float32, whatever the type of the network's inputs.
    """

    kind: Literal["int8"] = "int8"
    weight: Tensor
    scale: Tensor

    def __init__(
        self, linear: nn.Linear, weight: Tensor, scale: Tensor, bias: Tensor | None
    ) -> None:
        """In the place of `linear`. `weight`: int8 `[out, in]`; `scale`, `bias`: `[out]`."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.approximate = linear.approximate if isinstance(linear, GeluLinear) else None
        self.register_buffer("scale", scale)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """From its weights, which are rounded."""
        weight = linear.weight.detach().float()
        bias = None if linear.bias is None else linear.bias.detach()
        return cls(linear, *quantise_int8(weight, weight.abs().amax(1)), bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, in_features]` -> `[N, out_features]`"""
        largest = x.float().abs().amax(1, keepdim=True)  # [N, 1]
        # torch takes 127 / tensor as a product with the reciprocal, which rounds twice
        factor = torch.where(largest > LEAST, torch.full_like(largest, 127) / largest, 0.0)
        whole = (x.double() * factor).round().to(torch.int8)  # in double the product is exact
        sums = torch._int_mm(whole, self.weight.t())
        y = sums.float() * (self.scale * (largest / 127))
        if self.bias is not None:
            y = y + self.bias
        if self.approximate is not None:
            y = F.gelu(y, approximate=self.approximate)
        return y.to(x.dtype)


AnyLinear = nn.Linear | Int8Linear | BlockLinear


def _int8_layer(empty: nn.Linear, raw: Raw, bias: Tensor | None) -> Int8Linear:
    assert raw.scale is not None
    return Int8Linear(empty, raw.data, raw.scale, bias)


# by the type of the weights that a network holds
INT8_LAYERS: StoredLayers = {"int8": _int8_layer}
BLOCK_LAYERS: StoredLayers = dict.fromkeys(
    KINDS, lambda _, raw, bias: BlockLinear.of(raw.kind, raw.data, bias)
)


def precision_of(linear: AnyLinear) -> Precision | None:
    """None if there are no kernels for it."""
    if isinstance(linear, BlockLinear | Int8Linear):
        return linear.kind
    names: dict[torch.dtype, Precision] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
    return names.get(linear.weight.dtype)


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A compiled kernel, and the layout of weights that it expects."""

    name: str
    function: str
    per_word: int  # inputs in a word of 32 bits
    words: int = 1  # of a row that it processes at once


KERNELS: dict[Precision, list[KernelFunction]] = {
    "float32": [KernelFunction("fma", "linear_f32", 1)],
    "bfloat16": [
        KernelFunction("amx", "linear_amx_bf16", 2, 16),
        KernelFunction("widened", "linear_widened_bf16", 2),
        KernelFunction("dot", "linear_dot_bf16", 2),
    ],
    "int8": [
        KernelFunction("amx", "linear_amx_int8", 4, 16),
        KernelFunction("vnni", "linear_int8", 4),
    ],
    **{
        kind: [
            KernelFunction("amx", f"linear_amx_{kind}", 4),
            KernelFunction("vnni", f"linear_vnni_{kind}", 4),
            KernelFunction("maddubs", f"linear_maddubs_{kind}", 4),
        ]
        for kind in KINDS
    },
}


class KernelLinear(nn.Module):
    """`x @ weight.T + bias`, followed by the layer's GELU if it has one, by a compiled kernel.

    The result for a row does not depend on other rows, to the last bit. Inputs are of the type of
    the weights, and bfloat16 where these are quantised.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor

    def __init__(self, linear: AnyLinear, kernel: KernelFunction) -> None:
        super().__init__()
        function = linear_kernel(kernel.function)
        assert function is not None, "ask variants"
        self.function = function
        self.inputs, self.outputs = linear.in_features, linear.out_features
        absent = -self.outputs % GROUP
        scale = torch.zeros(0)
        if isinstance(linear, BlockLinear):
            weight = linear.panels
        else:
            block = kernel.per_word * kernel.words
            missing = -self.inputs % block
            padded = linear.weight.detach()
            if missing or absent:  # else it would copy the weights once more
                padded = F.pad(padded, (0, missing, 0, absent))
            words = padded.view(-1, GROUP, padded.shape[1] // kernel.per_word, kernel.per_word)
            weight = words.transpose(1, 2).contiguous()
            if isinstance(linear, Int8Linear):
                # the integers that the kernel for unsigned inputs subtracts follow the scales
                # (summed by numpy: torch would copy all weights as int32)
                excess = 128 * torch.from_numpy(padded.numpy().sum(1, dtype=np.int32))
                scale = torch.cat([F.pad(linear.scale, (0, absent)), excess.view(torch.float32)])
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        bias = torch.zeros(self.outputs) if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", F.pad(bias, (0, absent)))
        # read in every layer of every iteration, slow to look up: nothing moves these buffers
        self.addresses = self.weight.data_ptr(), self.bias.data_ptr(), self.scale.data_ptr()
        gelu = _activation(linear)
        self.fused_gelu = gelu == "tanh"
        self.gelu_after = None if self.fused_gelu else gelu

    def forward(self, x: Tensor) -> Tensor:
        """`[N, in_features]` -> `[N, out_features]`"""
        x, rows = x.contiguous(), x.shape[0]
        y = x.new_empty(rows, self.outputs)
        self.function(
            x.data_ptr(), rows, self.inputs, *self.addresses, self.fused_gelu, y.data_ptr(),
            self.outputs,
        )  # fmt: skip
        return y if self.gelu_after is None else F.gelu(y, approximate=self.gelu_after)

    __call__ = forward  # at once: nn.Module's own call looks for hooks, which takes a while


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` over a weight in oneDNN's own layout, an activation fused with it."""

    def __init__(self, linear: AnyLinear) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear), "ask variants"
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias
        approximate = _activation(linear)
        self.activation = ("none", "") if approximate is None else ("gelu", approximate)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, in_features]` -> `[N, out_features]`"""
        name, approximate = self.activation
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, name, [], approximate
        )
        return y


def _activation(linear: AnyLinear) -> str | None:
    return linear.approximate if isinstance(linear, GeluLinear | Int8Linear) else None


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compute a linear layer on this machine."""

    name: str
    make: Callable[[AnyLinear], nn.Module]
    batch_invariant: bool  # a row's result does not depend on other rows, to the last bit


def variants(precision: Precision) -> list[Variant]:
    """Every variant that this machine can run, torch's own last."""

    def made_by(kernel: KernelFunction) -> Callable[[AnyLinear], nn.Module]:
        return lambda linear: KernelLinear(linear, kernel)

    found = [
        Variant(kernel.name, made_by(kernel), True)
        for kernel in KERNELS[precision]
        if linear_kernel(kernel.function) is not None
    ]
    if precision not in EXACT and _packing_works(getattr(torch, precision)):
        found.append(Variant("oneDNN", PackedLinear, False))
    return [*found, Variant("torch", lambda linear: linear, precision in EXACT)]


def _packing_works(dtype: torch.dtype) -> bool:
    linear = GeluLinear(64, 96, "tanh").to(dtype).requires_grad_(False)
    x = torch.randn(3, 64, dtype=dtype)
    try:
        packed = PackedLinear(linear)(x)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(packed, linear(x), rtol=2e-2, atol=2e-2)
