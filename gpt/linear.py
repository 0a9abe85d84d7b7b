"""Linear layers with weights laid out once for oneDNN's CPU kernels.

With plain weights torch re-packs the matrix in every call. Packed once at load, GPT-2 medium's
layers ran 2 to 3.6 times as fast in float32 at 8 rows and more (measured on two Zen 5 cores).
A GELU behind a layer runs inside its kernel, which at 64 rows saved two thirds of its time.
The operators are torch's, but private: where they are missing, or do not compute what a
linear layer does, the network keeps its plain layers.

One or two rows of float32 are computed as four: oneDNN's kernel for a lone row read weights at
22 to 31 GB/s where that for four read at 27 to 41 (1024 x 4096, two Zen 4 cores), which made GPT-2
medium's decoding of one sequence 1.15 to 1.2 times as fast. bfloat16 gained nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpt.network import GeluLinear

FULL_ROWS = 4
# a smaller matrix comes from the caches, and has no reading to save
MEMORY_BOUND_BYTES = 2 * 2**20


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` over a weight in oneDNN's own layout, an activation fused with it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias
        fused = isinstance(linear, GeluLinear)
        self.activation = ("gelu", linear.approximate) if fused else ("none", "")
        weight = linear.weight
        fills = weight.dtype == torch.float32 and weight.nbytes >= MEMORY_BOUND_BYTES
        self.fill = weight.new_zeros(FULL_ROWS - 1, linear.in_features) if fills else None

    def forward(self, x: Tensor) -> Tensor:
        """`[N, in_features]` -> `[N, out_features]`"""
        rows = len(x)
        if self.fill is not None and rows <= FULL_ROWS // 2:
            return self._linear(torch.cat((x, self.fill[: FULL_ROWS - rows])))[:rows]
        return self._linear(x)

    def _linear(self, x: Tensor) -> Tensor:
        name, approximate = self.activation
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, name, [], approximate
        )
        return y


def pack_linears(network: nn.Module) -> None:
    """Replaces the linear layers of a CPU network, if this torch and machine can."""
    parameter = next(network.parameters())
    if parameter.device.type != "cpu" or not _packing_works(parameter.dtype):
        return
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child))


def _packing_works(dtype: torch.dtype) -> bool:
    linear = GeluLinear(64, 96, "tanh").to(dtype).requires_grad_(False)
    x = torch.randn(3, 64, dtype=dtype)
    try:
        packed = PackedLinear(linear)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(packed, linear(x), rtol=2e-2, atol=2e-2)
