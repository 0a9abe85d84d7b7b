"""A network's layers as a GPU computes them: fewer launches, and a vocabulary of a size that matrix
products are fast for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.decoder import AddRMSNorm, DecoderBlock, Gated, RMSNorm, Rotation, Turns
from models.gpt2 import AddNorm, GeluLinear
from models.networks import Network

MULTIPLE = 64  # of the head's outputs: rows of logits begin where wide stores may


def adapt(network: Network, *, kernels: bool) -> None:
    """Replaces layers of a network on a GPU, once. `kernels`: by Triton kernels, too."""
    _pad_head(network)
    if not kernels:
        return
    for module in list(network.modules()):
        if isinstance(module, DecoderBlock):
            module.rotation = TritonRotation(module)
        for name, child in list(module.named_children()):
            if isinstance(child, AddRMSNorm):
                setattr(module, name, TritonAddRMSNorm(child))
            elif isinstance(child, RMSNorm):
                setattr(module, name, TritonRMSNorm(child))
            elif isinstance(child, Gated):
                setattr(module, name, TritonGated(child))
            elif isinstance(child, AddNorm):
                setattr(module, name, KernelAddNorm(child))
            elif isinstance(child, GeluLinear) and child.approximate == "tanh":
                setattr(module, name, KernelGeluLinear(child))


class KernelAddNorm(nn.Module):
    """An AddNorm in one launch."""

    def __init__(self, norm: AddNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from kernels.gpu.layers import add_norm  # Triton is part of torch's CUDA build only

        found: tuple[Tensor, Tensor] = add_norm(x, y, self.weight, self.bias, self.eps)
        return found


class KernelGeluLinear(nn.Module):
    """A GeluLinear whose bias and activation are one launch after the product."""

    def __init__(self, linear: GeluLinear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        from kernels.gpu.layers import bias_gelu

        found: Tensor = bias_gelu(F.linear(x, self.weight), self.bias)
        return found


class TritonRMSNorm(nn.Module):
    """An RMSNorm in one launch."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        from kernels.gpu.decoder import rms_norm

        found: Tensor = rms_norm(x, self.weight, self.eps)
        return found


class TritonAddRMSNorm(TritonRMSNorm):
    """An AddRMSNorm in one launch."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        from kernels.gpu.decoder import add_rms_norm

        found: tuple[Tensor, Tensor] = add_rms_norm(x, y, self.weight, self.eps)
        return found


class TritonGated(nn.Module):
    """A Gated in one launch."""

    def __init__(self, gated: Gated) -> None:
        super().__init__()
        self.gelu = gated.activation != "silu"

    def forward(self, x: Tensor) -> Tensor:
        from kernels.gpu.decoder import gated

        found: Tensor = gated(x, self.gelu)
        return found


class TritonRotation(Rotation):
    """A Rotation in one launch, in place."""

    def __init__(self, block: DecoderBlock) -> None:
        super().__init__(block.rotation.query_scale)

    def forward(
        self, q: Tensor, k: Tensor, turns: Turns, q_norm: RMSNorm | None, k_norm: RMSNorm | None
    ) -> tuple[Tensor, Tensor]:
        """q `[N, heads, D]`, k `[N, kv_heads, D]`: views, the heads of a token side by side."""
        if turns is None or q.dim() != 3:
            return super().forward(q, k, turns, q_norm, k_norm)
        from kernels.gpu.decoder import rotate

        weights = [None if norm is None else norm.weight for norm in (q_norm, k_norm)]
        rotate(q, k, *turns, *weights, 0.0 if q_norm is None else q_norm.eps, self.query_scale)
        return q, k


class PaddedHead(nn.Module):
    """A linear layer without bias; its outputs are padded in memory, which no caller sees."""

    def __init__(self, weight: Tensor, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight).narrow(-1, 0, self.outputs)


def _pad_head(network: Network) -> None:
    """A tied embedding keeps sharing the head's memory. A shard's head is
    a part of another layer."""
    holder: Any = network
    name = "head"
    if hasattr(network.head, "part"):
        holder, name = network.head, "part"
    head: nn.Linear | PaddedHead = getattr(holder, name)
    if isinstance(head, PaddedHead):
        return
    outputs = head.out_features
    with torch.no_grad():
        padded = F.pad(head.weight, (0, 0, 0, -outputs % MULTIPLE))
        setattr(holder, name, PaddedHead(padded, outputs))
        if network.config.tied:
            network.wte.weight = nn.Parameter(padded.narrow(0, 0, outputs), requires_grad=False)
