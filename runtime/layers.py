"""A network's layers by this project's kernels: fewer operators between matrix products, and, on a
GPU, a vocabulary of a size that matrix products are fast for.

Torch takes half a dozen operators for a norm and a dozen for a rotation, each with an overhead and
a tensor of its own; a kernel takes one pass. `models/decoder.py` and `models/gpt2.py` define what
is computed. On a CPU a row's result does not depend on the rows beside it, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import layer_kernel
from models.decoder import AddRMSNorm, DecoderBlock, Gated, RMSNorm, Rotation, Turns
from models.gpt2 import AddNorm, GeluLinear
from models.networks import Network

TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}  # of activations, on a CPU
MOST_HEAD_DIM = 496  # of `rotate`, on a CPU
MULTIPLE = 64  # of the head's outputs, on a GPU: rows of logits begin where wide stores may

Operator = Callable[..., Any]


class CPULayers:
    """The functions of kernels/layers/layers.cpp, with the parameters of those of
    kernels/gpu/layers.py. `works`: they can be used for activations of this type."""

    def __init__(self, dtype: torch.dtype) -> None:
        names = ("add_rms_norm", "gated", "rotate")
        found: list[Any]
        found = [layer_kernel(name, TYPES[dtype]) if dtype in TYPES else None for name in names]
        self.works = None not in found
        self._add_rms_norm, self._gated, self._rotate = found

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, width = x.contiguous(), len(weight)
        normed = torch.empty_like(x)
        self._add_rms_norm(
            x.data_ptr(), None, weight.data_ptr(), eps, x.numel() // width, width, None,
            normed.data_ptr(),
        )  # fmt: skip
        return normed

    def add_rms_norm(
        self, x: Tensor, y: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        x, y, width = x.contiguous(), y.contiguous(), len(weight)
        summed, normed = torch.empty_like(x), torch.empty_like(x)
        self._add_rms_norm(
            x.data_ptr(), y.data_ptr(), weight.data_ptr(), eps, x.numel() // width, width,
            summed.data_ptr(), normed.data_ptr(),
        )  # fmt: skip
        return summed, normed

    def gated(self, x: Tensor, gelu: bool) -> Tensor:
        x, width = x.contiguous(), x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        self._gated(x.data_ptr(), out.numel() // width, width, gelu, out.data_ptr())
        return out

    def rotate(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor,
        q_weight: Tensor | None, k_weight: Tensor | None, eps: float, scale: float,
    ) -> None:  # fmt: skip
        tokens, heads, dim = q.shape
        assert q.stride()[1:] == k.stride()[1:] == (dim, 1)
        addresses = [None if of is None else of.data_ptr() for of in (q_weight, k_weight)]
        self._rotate(
            q.data_ptr(), k.data_ptr(), tokens, heads, k.shape[1], dim, q.stride(0), k.stride(0),
            cos.data_ptr(), sin.data_ptr(), *addresses, eps, scale,
        )  # fmt: skip


def adapt_to_cpu(network: nn.Module, dtype: torch.dtype) -> None:
    """Replaces a decoder's layers, if the kernels work; leaves other networks as they are."""
    kernels = CPULayers(dtype)
    if not kernels.works:
        return
    for module in network.modules():
        if isinstance(module, DecoderBlock):
            # Python finds them there before it asks nn.Module, which takes longer
            vars(module).update(module._modules)
        for name, child in module.named_children():
            is_wide = isinstance(module, DecoderBlock) and module.head_dim > MOST_HEAD_DIM
            operator = _of_a_decoder(module, child, kernels)
            if operator is not None and not (is_wide and isinstance(child, Rotation)):
                vars(module)[name] = operator


def adapt_to_gpu(network: Network, *, kernels: bool) -> None:
    """Pads the head and, with `kernels`, replaces layers by Triton's."""
    _pad_head(network)
    if not kernels:
        return
    from kernels.gpu import layers  # Triton is part of torch's CUDA build only

    for module in network.modules():
        for name, child in module.named_children():
            operator = _of_a_decoder(module, child, layers)
            if isinstance(child, AddNorm):
                operator = _with(layers.add_norm, child.weight, child.bias, child.eps)
            elif isinstance(child, GeluLinear) and child.approximate == "tanh":
                operator = partial(_linear_gelu, layers.bias_gelu, child.weight, child.bias)
            if operator is not None:
                vars(module)[name] = operator


def _of_a_decoder(module: nn.Module, layer: nn.Module, kernels: Any) -> Operator | None:
    """What computes a layer of `module`, in the place of the layer, whose call by nn.Module looks
    for hooks: for one row that takes as long as some of these kernels. None: the layer itself."""
    match layer:
        case RMSNorm():
            adds = isinstance(layer, AddRMSNorm)
            weight = layer.weight.detach().float()
            return _with(kernels.add_rms_norm if adds else kernels.rms_norm, weight, layer.eps)
        case Gated():
            return _with(kernels.gated, layer.activation != "silu")
        case Rotation():
            return _rotation(dict(module.named_children()), layer, kernels.rotate)
    return None


def _with(operator: Operator, *numbers: Any) -> Operator:
    """The operator with these as its last arguments."""
    return lambda *x: operator(*x, *numbers)


def _linear_gelu(bias_gelu: Operator, weight: Tensor, bias: Tensor, x: Tensor) -> Any:
    return bias_gelu(F.linear(x, weight), bias)


def _rotation(siblings: dict[str, nn.Module], layer: Rotation, rotate: Operator) -> Operator:
    """In place."""
    norms = [siblings.get(name) for name in ("q_norm", "k_norm")]
    weights = [
        norm.weight.detach().float() if isinstance(norm, RMSNorm) else None for norm in norms
    ]
    eps = next((norm.eps for norm in norms if isinstance(norm, RMSNorm)), 0.0)

    def rotated(
        q: Tensor, k: Tensor, turns: Turns, q_norm: Operator | None, k_norm: Operator | None
    ) -> tuple[Tensor, Tensor]:
        """q `[N, heads, D]`, k `[N, kv_heads, D]`: views, the heads of a token side by side."""
        if turns is None or q.dim() != 3:
            q, k = layer(q, k, turns, q_norm, k_norm)
            return q, k
        rotate(q, k, *turns, *weights, eps, layer.query_scale)
        return q, k

    return rotated


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
