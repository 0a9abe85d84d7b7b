"""Every variant of a linear layer, over weights of every precision: against torch's plain layer in
double precision, or over quantised weights against the twin that defines it. Weights of GGUF files
are read and written as the `gguf` package does."""

from __future__ import annotations

import copy

import gguf
import pytest
import torch
from gguf import quants
from torch import Tensor, nn
from torch.nn import functional as F

from models.gpt2 import GeluLinear
from runtime.linear.blocks import FORMATS, KINDS, BlockEmbedding, BlockKind, BlockLinear
from runtime.linear.layers import (
    AnyLinear,
    Int8Linear,
    Precision,
    Variant,
    variants,
)

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8", *KINDS)
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "int8": 2.0**-7}
# inputs and outputs: less than a panel, odd, not whole groups, several ranges; blocks have whole
# ones of 32 inputs, an odd number of them and an even one
SIZES = [(2, 1), (33, 70), (1100, 130)]
MOST_ROWS = 130
VARIANTS = [(p, v) for p in PRECISIONS for v in variants(p) if p not in KINDS or v.name != "torch"]
OURS = [(p, v) for p, v in VARIANTS if v.name not in ("oneDNN", "torch")]


def name(of: object) -> str:
    return of.name if isinstance(of, Variant) else str(of)


each_of_ours = pytest.mark.parametrize(("precision", "variant"), OURS, ids=name)
kinds = pytest.mark.parametrize("kind", KINDS)


def dtype_of(precision: Precision) -> torch.dtype:
    return torch.float32 if precision == "float32" else torch.bfloat16


def type_of(kind: BlockKind) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind.upper()]


def raw_of(kind: BlockKind, weight: Tensor) -> Tensor:
    return torch.from_numpy(quants.quantize(weight.numpy(), type_of(kind)))


def random_raw(kind: BlockKind, inputs: int, outputs: int) -> Tensor:
    """Any integers, those included that no quantiser writes; scales and minima are about 1."""
    form = FORMATS[kind]
    raw = torch.randint(0, 256, (outputs, inputs // 32, form.size), dtype=torch.uint8)
    numbers = torch.randn(outputs, inputs // 32, form.numbers, dtype=torch.float16)
    raw[:, :, : 2 * form.numbers] = numbers.view(torch.uint8)
    return raw.flatten(1)


def plain(precision: Precision, inputs: int, outputs: int, activation: str | None) -> AnyLinear:
    """With a bias if the outputs are even, or there is an activation."""
    if precision in KINDS:
        bias = None if outputs % 2 else torch.randn(outputs)
        return BlockLinear.of(
            precision, random_raw(precision, -(-inputs // 32) * 32, outputs), bias
        )
    made: nn.Linear = (
        nn.Linear(inputs, outputs, bias=outputs % 2 == 0)
        if activation is None
        else GeluLinear(inputs, outputs, activation)
    )
    made = made.to(dtype_of(precision)).requires_grad_(False)
    return Int8Linear.of(made) if precision == "int8" else made


def check(linear: AnyLinear, x: Tensor, y: Tensor, precision: Precision) -> None:
    """Whether `y` is what the layer gives but for rounding."""
    if isinstance(linear, BlockLinear):
        # the order of float32 additions is the same, but a product and a sum are rounded once
        wanted = linear(x).double()
        limit = 2.0**-7 * wanted.abs() + 2.0**-18 * linear(x.float()).abs().amax()
    else:
        if isinstance(linear, Int8Linear):
            before = copy.copy(linear)
            before.approximate = None
            wanted, inner = linear(x).double(), before(x).double()
        else:
            double = copy.deepcopy(linear).double()
            wanted, inner = double(x.double()), F.linear(x.double(), double.weight, double.bias)
        # rounding before and behind an activation, and of a sum of that many terms
        limit = EPSILON[precision] * (wanted.abs() + inner.abs())
        limit += 2.0**-23 * linear.in_features**0.5 * 4
    assert y.shape == wanted.shape
    assert ((y.double() - wanted).abs() <= limit).all(), len(x)


@pytest.mark.parametrize(("precision", "variant"), VARIANTS, ids=name)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_every_variant_computes_the_layer(
    inputs: int, outputs: int, precision: Precision, variant: Variant
) -> None:
    torch.manual_seed(inputs)
    for activation in (None,) if precision in KINDS else (None, "none", "tanh"):
        linear = plain(precision, inputs, outputs, activation)
        made = variant.make(linear)
        for rows in (1, 5, 16, 17, MOST_ROWS, 700):
            x = torch.randn(rows, linear.in_features).to(dtype_of(precision))
            check(linear, x, made(x), precision)


@each_of_ours
def test_a_rows_result_does_not_depend_on_other_rows(
    precision: Precision, variant: Variant
) -> None:
    """To the last bit, at every number of rows, wherever the row stands."""
    torch.manual_seed(0)
    linear = plain(precision, 300, 40, "tanh")
    made = variant.make(linear)
    x = torch.randn(600, linear.in_features).to(dtype_of(precision))
    alone = torch.cat([made(row) for row in x.split(1)])
    for rows in (*range(2, MOST_ROWS + 1), 600):
        first = rows * 3 % (601 - rows)
        assert torch.equal(made(x[first : first + rows]), alone[first : first + rows]), rows


@each_of_ours
def test_no_rows_rows_of_zeros_and_a_view_with_gaps(precision: Precision, variant: Variant) -> None:
    """A row's largest value divides the others where inputs are quantised: of zeros there is
    none."""
    linear = plain(precision, 32, 48, None)
    made, dtype = variant.make(linear), dtype_of(precision)
    assert made(torch.empty(0, 32, dtype=dtype)).shape == (0, 48)
    assert linear.bias is not None
    assert torch.equal(made(torch.zeros(3, 32).to(dtype)), linear.bias.to(dtype).expand(3, 48))
    x = torch.randn(5, 64).to(dtype)
    assert torch.equal(made(x[:, ::2]), made(x[:, ::2].clone()))


# --- GGUF's blocks --------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 1), (96, 70), (1120, 130), (64, 16)])
def test_weights_are_those_that_the_gguf_package_reads(
    kind: BlockKind, inputs: int, outputs: int
) -> None:
    torch.manual_seed(inputs)
    raw = random_raw(kind, inputs, outputs)
    expected = torch.from_numpy(quants.dequantize(raw.numpy(), type_of(kind)))
    linear = BlockLinear.of(kind, raw)
    assert torch.equal(linear.dequantised(), expected)
    tokens = torch.randint(0, outputs, (2, 5))
    assert torch.equal(BlockEmbedding(linear, torch.float32)(tokens), expected[tokens])
    assert BlockEmbedding(linear, torch.bfloat16)(tokens).dtype == torch.bfloat16


@kinds
def test_the_twin_is_near_the_layer_with_dequantised_weights(kind: BlockKind) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(70, 320), torch.randn(70)
    linear = BlockLinear.of(kind, raw_of(kind, weight), bias)
    x = torch.randn(9, 320)
    expected = x @ linear.dequantised().t() + bias
    assert (linear(x) - expected).abs().max() < 0.02 * expected.abs().max()
    assert torch.equal(torch.cat([linear(row) for row in x.split(1)]), linear(x))
    exact = x.sign() * 127  # inputs that 8 bits hold
    expected = exact.double() @ linear.dequantised().double().t() + bias
    torch.testing.assert_close(linear(exact).double(), expected, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize(("kind", "variant"), [of for of in OURS if of[0] in KINDS], ids=name)
def test_the_largest_sums_are_exact(kind: BlockKind, variant: Variant) -> None:
    """Instructions that add pairs of products in 16 bits saturate."""
    for stored in (0x00, 0x80, 0x7F, 0xFF):
        raw = random_raw(kind, 64, 20)
        form = FORMATS[kind]
        raw.view(20, 2, -1)[:, :, 2 * form.numbers :] = stored
        linear = BlockLinear.of(kind, raw)
        for sign in (1.0, -1.0):
            x = torch.full((3, 64), sign).bfloat16()
            torch.testing.assert_close(variant.make(linear)(x), linear(x), rtol=2**-7, atol=1e-2)
