"""What a decoder computes between its matrix products, by this project's kernels on a CPU.

Torch takes half a dozen operators for a norm and a dozen for a rotation, each with an overhead and
a tensor of its own; a kernel of `kernels/layers/layers.cpp` takes one pass. `models/decoder.py`
defines what is computed. A row's result does not depend on the rows beside it, to the last bit.

A call of a module goes to its `forward` at once: for one row, nn.Module's own call, which looks for
hooks, takes as long as some of these kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernels import layer_kernel
from models.decoder import AddRMSNorm, DecoderBlock, Gated, RMSNorm, Rotation, Turns

TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
MOST_HEAD_DIM = 496  # of `rotate`


def kernels_work(dtype: torch.dtype) -> bool:
    """Whether the modules below can be made for a network whose activations are of this type."""
    return dtype in TYPES and layer_kernel("gated", TYPES[dtype]) is not None


def use_kernels(network: nn.Module, dtype: torch.dtype) -> None:
    """Replaces a decoder's layers, once, if the kernels work; leaves other networks as they are."""
    if not kernels_work(dtype):
        return
    for module in list(network.modules()):
        if isinstance(module, DecoderBlock) and module.head_dim <= MOST_HEAD_DIM:
            module.rotation = KernelRotation(module, dtype)
        for name, child in list(module.named_children()):
            if isinstance(child, AddRMSNorm):
                setattr(module, name, KernelAddRMSNorm(child, dtype))
            elif isinstance(child, RMSNorm):
                setattr(module, name, KernelRMSNorm(child, dtype))
            elif isinstance(child, Gated):
                setattr(module, name, KernelGated(child.activation, dtype))
    for module in network.modules():
        if isinstance(module, DecoderBlock):
            # Python finds them there before it asks nn.Module, which takes longer
            vars(module).update(module._modules)


def _kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    found = layer_kernel(name, TYPES[dtype])
    assert found is not None, "ask kernels_work"
    return found


class KernelRMSNorm(nn.Module):
    """An RMSNorm in one pass."""

    def __init__(self, norm: RMSNorm, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().float(), requires_grad=False)
        self.eps, self.width = norm.eps, len(norm.weight)
        self.kernel = _kernel("add_rms_norm", dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        normed = torch.empty_like(x)
        self.kernel(
            x.data_ptr(), None, self.weight.data_ptr(), self.eps, x.numel() // self.width,
            self.width, None, normed.data_ptr(),
        )  # fmt: skip
        return normed

    __call__ = forward


class KernelAddRMSNorm(KernelRMSNorm):
    """An AddRMSNorm in one pass."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, y = x.contiguous(), y.contiguous()
        summed, normed = torch.empty_like(x), torch.empty_like(x)
        self.kernel(
            x.data_ptr(), y.data_ptr(), self.weight.data_ptr(), self.eps, x.numel() // self.width,
            self.width, summed.data_ptr(), normed.data_ptr(),
        )  # fmt: skip
        return summed, normed

    __call__ = forward  # type: ignore[assignment]


class KernelGated(nn.Module):
    """A Gated in one pass."""

    def __init__(self, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.with_gelu = activation != "silu"
        self.kernel = _kernel("gated", dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        width = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        rows = out.numel() // width
        self.kernel(x.data_ptr(), rows, width, self.with_gelu, out.data_ptr())
        return out

    __call__ = forward


class KernelRotation(Rotation):
    """A Rotation in one pass, in place."""

    def __init__(self, block: DecoderBlock, dtype: torch.dtype) -> None:
        super().__init__(block.rotation.query_scale)
        norms = block.q_norm, block.k_norm
        self.eps = next((norm.eps for norm in norms if norm is not None), 0.0)
        weights = [None if norm is None else norm.weight.detach().float() for norm in norms]
        self.q_weight, self.k_weight = weights
        self.addresses = [None if weight is None else weight.data_ptr() for weight in weights]
        self.kernel = _kernel("rotate", dtype)

    def forward(
        self, q: Tensor, k: Tensor, turns: Turns, q_norm: RMSNorm | None, k_norm: RMSNorm | None
    ) -> tuple[Tensor, Tensor]:
        """q `[N, heads, D]`, k `[N, kv_heads, D]`: views, the heads of a token side by side."""
        if turns is None or q.dim() != 3:
            return super().forward(q, k, turns, q_norm, k_norm)
        tokens, heads, dim = q.shape
        assert q.stride()[1:] == k.stride()[1:] == (dim, 1)
        cos, sin = turns
        self.kernel(
            q.data_ptr(), k.data_ptr(), tokens, heads, k.shape[1], dim, q.stride(0), k.stride(0),
            cos.data_ptr(), sin.data_ptr(), *self.addresses, self.eps, self.query_scale,
        )  # fmt: skip
        return q, k

    __call__ = forward
