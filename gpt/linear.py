"""Linear layers with weights laid out once for a CPU's kernels, instead of in every call.

`PanelLinear` runs our own kernel, made for the few rows of a decoding batch (kernels/linear.cpp).
Where the processor lacks what that needs, `PackedLinear` runs oneDNN's, which with weights packed
at load was 2 to 3.6 times as fast as torch's plain layer in float32 at 8 rows and more (GPT-2
medium, two Zen 5 cores). oneDNN's operators are torch's, but private: where they are missing, or
do not compute what a linear layer does, the network keeps its plain layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpt.network import GeluLinear
from kernels import linear_library

PANEL = 16  # outputs whose weights lie together: the kernel's W


class PanelLinear(nn.Module):
    """`x @ weight.T + bias`, GELU behind it where the layer has one, by our own kernel.

    The result for a row does not depend on the rows beside it, not even in its last bit.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        function = _kernel(weight.dtype)
        assert function is not None, "ask runs_in_panels"
        self.function = function
        self.outputs = linear.out_features
        word = 1 if weight.dtype == torch.float32 else 2  # inputs that the kernel takes at once
        self.words = linear.in_features // word
        absent = -self.outputs % PANEL
        panels = F.pad(weight, (0, 0, 0, absent)).view(-1, PANEL, self.words, word)
        self.register_buffer("weight", panels.transpose(1, 2).contiguous())
        bias = torch.zeros(self.outputs) if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", F.pad(bias, (0, absent)))
        gelu = linear.approximate if isinstance(linear, GeluLinear) else None
        self.fused_gelu = gelu == "tanh"
        self.gelu_after = None if self.fused_gelu else gelu

    def forward(self, x: Tensor) -> Tensor:
        """`[N, in_features]` -> `[N, out_features]`"""
        x = x.contiguous()
        y = x.new_empty(len(x), self.outputs)
        self.function(
            x.data_ptr(), len(x), self.words, self.weight.data_ptr(), self.bias.data_ptr(),
            self.fused_gelu, y.data_ptr(), self.outputs,
        )  # fmt: skip
        return y if self.gelu_after is None else F.gelu(y, approximate=self.gelu_after)


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` over a weight in oneDNN's own layout, an activation fused with it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias
        fused = isinstance(linear, GeluLinear)
        self.activation = ("gelu", linear.approximate) if fused else ("none", "")

    def forward(self, x: Tensor) -> Tensor:
        """`[N, in_features]` -> `[N, out_features]`"""
        name, approximate = self.activation
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, name, [], approximate
        )
        return y


def pack_linears(network: nn.Module) -> None:
    """Replaces the linear layers of a CPU network by the best that this machine can run."""
    parameter = next(network.parameters())
    if parameter.device.type != "cpu":
        return
    onednn = _packing_works(parameter.dtype)
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if not isinstance(child, nn.Linear):
                continue
            if runs_in_panels(child):
                setattr(module, name, PanelLinear(child))
            elif onednn:
                setattr(module, name, PackedLinear(child))


def runs_in_panels(linear: nn.Linear) -> bool:
    """Whether this machine has our kernel for the layer: bfloat16 goes by pairs of inputs."""
    dtype = linear.weight.dtype
    even = dtype != torch.bfloat16 or linear.in_features % 2 == 0
    return even and _kernel(dtype) is not None


def _kernel(dtype: torch.dtype) -> Callable[..., None] | None:
    name = {torch.float32: "linear_f32", torch.bfloat16: "linear_bf16"}.get(dtype)
    library = linear_library()
    return getattr(library, name, None) if library is not None and name else None


def _packing_works(dtype: torch.dtype) -> bool:
    linear = GeluLinear(64, 96, "tanh").to(dtype).requires_grad_(False)
    x = torch.randn(3, 64, dtype=dtype)
    try:
        packed = PackedLinear(linear)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(packed, linear(x), rtol=2e-2, atol=2e-2)
