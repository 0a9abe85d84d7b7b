"""What a decoder computes between its matrix products, by this project's kernels on a CPU.

Torch takes half a dozen operators for a norm and a dozen for a rotation, each with an overhead and
a tensor of its own; a kernel of `kernels/layers/layers.cpp` takes one pass. `models/decoder.py`
defines what is computed. A row's result does not depend on the rows beside it, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernels import layer_kernel

TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
MOST_HEAD_DIM = 496  # of `rotate`


def kernels_work(dtype: torch.dtype) -> bool:
    """Whether the modules below can be made for a network whose activations are of this type."""
    return dtype in TYPES and layer_kernel("gated", TYPES[dtype]) is not None


def _kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    found = layer_kernel(name, TYPES[dtype])
    assert found is not None, "ask kernels_work"
    return found


class KernelRMSNorm(nn.Module):
    """`[..., C]`, each row divided by its root mean square and multiplied by a weight `[C]`."""

    weight: Tensor

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().float().contiguous())
        self.eps, self.width = eps, len(weight)
        self.kernel = _kernel("add_rms_norm", dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        normed = torch.empty_like(x)
        self.kernel(
            x.data_ptr(), None, self.weight.data_ptr(), self.eps, x.numel() // self.width,
            self.width, None, normed.data_ptr(),
        )  # fmt: skip
        return normed


class KernelAddRMSNorm(KernelRMSNorm):
    """A residual sum and its RMSNorm."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, y = x.contiguous(), y.contiguous()
        summed, normed = torch.empty_like(x), torch.empty_like(x)
        self.kernel(
            x.data_ptr(), y.data_ptr(), self.weight.data_ptr(), self.eps, x.numel() // self.width,
            self.width, summed.data_ptr(), normed.data_ptr(),
        )  # fmt: skip
        return summed, normed


class KernelGated(nn.Module):
    """`[..., 2 * n]` -> `[..., n]`: the first half's activation times the second half."""

    def __init__(self, activation: str, dtype: torch.dtype) -> None:
        """`activation`: "silu", or otherwise GELU, approximated by tanh."""
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


class KernelRotation(nn.Module):
    """Norms of queries and keys, if they have weights `[D]`, and their rotation, in place."""

    def __init__(
        self,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        query_scale: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        weights = [None if w is None else w.detach().float() for w in (q_weight, k_weight)]
        self.q_weight, self.k_weight = weights
        self.addresses = [None if w is None else w.data_ptr() for w in weights]
        self.eps, self.query_scale = eps, query_scale
        self.kernel = _kernel("rotate", dtype)

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q `[N, heads, D]`, k `[N, kv_heads, D]`: views, the heads of a token side by side. cos,
        sin: contiguous float32 of `N * D / 2` numbers."""
        tokens, heads, dim = q.shape
        assert dim <= MOST_HEAD_DIM
        assert q.stride()[1:] == k.stride()[1:] == (dim, 1)
        self.kernel(
            q.data_ptr(), k.data_ptr(), tokens, heads, k.shape[1], dim, q.stride(0), k.stride(0),
            cos.data_ptr(), sin.data_ptr(), *self.addresses, self.eps, self.query_scale,
        )  # fmt: skip
        return q, k
