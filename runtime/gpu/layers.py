"""A network's layers as a GPU computes them: fewer launches, and a vocabulary of a size that matrix
products are fast for."""

from __future__ import annotations

from collections.abc import Callable
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
    from kernels.gpu import layers  # Triton is part of torch's CUDA build only

    for module in list(network.modules()):
        if isinstance(module, DecoderBlock) and not isinstance(module.rotation, TritonRotation):
            module.rotation = TritonRotation(module)
        for name, child in list(module.named_children()):
            match child:
                case AddRMSNorm():
                    new = OneLaunch(layers.add_rms_norm, child.weight, child.eps)
                case RMSNorm():
                    new = OneLaunch(layers.rms_norm, child.weight, child.eps)
                case Gated():
                    new = OneLaunch(layers.gated, child.activation != "silu")
                case AddNorm():
                    new = OneLaunch(layers.add_norm, child.weight, child.bias, child.eps)
                case GeluLinear() if child.approximate == "tanh":
                    new = OneLaunch(layers.bias_gelu, child.bias, weight=child.weight)
                case _:
                    continue
            setattr(module, name, new)


class OneLaunch(nn.Module):
    """A layer whose work is one operator over its inputs and these numbers; with a `weight`, after
    the product with that."""

    def __init__(
        self, operator: Callable[..., Any], *numbers: Any, weight: Tensor | None = None
    ) -> None:
        super().__init__()
        self._operator, self._numbers, self._weight = operator, numbers, weight

    def forward(self, *x: Tensor) -> Any:
        if self._weight is not None:
            x = (F.linear(x[0], self._weight),)
        return self._operator(*x, *self._numbers)


class TritonRotation(Rotation):
    """A Rotation in one launch, in place."""

    def __init__(self, block: DecoderBlock) -> None:
        super().__init__(block.rotation.query_scale)
        norms = block.q_norm, block.k_norm
        self._weights = [None if norm is None else norm.weight for norm in norms]
        self._eps = 0.0 if block.q_norm is None else block.q_norm.eps

    def forward(
        self, q: Tensor, k: Tensor, turns: Turns, q_norm: RMSNorm | None, k_norm: RMSNorm | None
    ) -> tuple[Tensor, Tensor]:
        """q `[N, heads, D]`, k `[N, kv_heads, D]`: views, the heads of a token side by side."""
        if turns is None or q.dim() != 3:
            return super().forward(q, k, turns, q_norm, k_norm)
        from kernels.gpu.layers import rotate

        rotate(q, k, *turns, *self._weights, self._eps, self.query_scale)
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
