"""Every variant of a linear layer against torch's plain one in double precision, or, over int8
weights, against the twin that defines it."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import linear_kernel
from models.gpt2 import GeluLinear
from runtime.linear.layers import (
    KERNELS,
    Int8Linear,
    KernelLinear,
    PackedLinear,
    Precision,
    Variant,
    variants,
)

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "int8": 2.0**-7}
# inputs and outputs: less than a panel, odd, not whole groups, several ranges
SIZES = [(2, 1), (33, 70), (1100, 130)]
MOST_ROWS = 130
VARIANTS = [(p, v) for p in PRECISIONS for v in variants(p)]
OURS = [(p, v) for p, v in VARIANTS if v.name not in ("oneDNN", "torch")]


def name(of: object) -> str:
    return of.name if isinstance(of, Variant) else str(of)


def layer(inputs: int, outputs: int, activation: str | None, precision: Precision) -> nn.Linear:
    if activation is not None:
        made: nn.Linear = GeluLinear(inputs, outputs, activation)
    else:
        made = nn.Linear(inputs, outputs, bias=outputs % 2 == 0)
    return made.to(dtype_of(precision)).requires_grad_(False)


def dtype_of(precision: Precision) -> torch.dtype:
    return torch.float32 if precision == "float32" else torch.bfloat16


def plain(linear: nn.Linear, precision: Precision) -> nn.Linear | Int8Linear:
    return Int8Linear.of(linear) if precision == "int8" else linear


def exact(linear: nn.Linear | Int8Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the layer gives, and that before its activation."""
    if isinstance(linear, Int8Linear):
        before = copy.copy(linear)
        before.approximate = None
        return linear(x).double(), before(x).double()
    double = copy.deepcopy(linear).double()
    return double(x.double()), F.linear(x.double(), double.weight, double.bias)


@pytest.mark.parametrize(("precision", "variant"), VARIANTS, ids=name)
@pytest.mark.parametrize("activation", ["none", "tanh", None])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_every_variant_computes_the_layer(
    inputs: int, outputs: int, activation: str | None, precision: Precision, variant: Variant
) -> None:
    torch.manual_seed(inputs)
    linear = plain(layer(inputs, outputs, activation, precision), precision)
    made = variant.make(linear)
    for rows in (1, MOST_ROWS, 513):
        x = torch.randn(rows, inputs).to(dtype_of(precision))
        y = made(x).double()
        wanted, before = exact(linear, x)
        assert y.shape == wanted.shape
        # rounding before and behind an activation, and of a sum of that many terms
        allowed = EPSILON[precision] * (wanted.abs() + before.abs()) + 2.0**-23 * inputs**0.5 * 4
        assert ((y - wanted).abs() <= allowed).all(), rows


@pytest.mark.parametrize(("precision", "variant"), OURS, ids=name)
def test_a_rows_result_does_not_depend_on_other_rows(
    precision: Precision, variant: Variant
) -> None:
    """To the last bit, at every number of rows, wherever the row stands."""
    torch.manual_seed(0)
    made = variant.make(plain(layer(300, 40, "tanh", precision), precision))
    x = torch.randn(600, 300).to(dtype_of(precision))
    alone = torch.cat([made(row) for row in x.split(1)])
    for rows in (*range(2, MOST_ROWS + 1), 600):
        first = rows * 3 % (601 - rows)
        assert torch.equal(made(x[first : first + rows]), alone[first : first + rows]), rows


@pytest.mark.parametrize(("precision", "variant"), OURS, ids=name)
def test_results_too_many_for_the_caches_are_those_of_single_rows(
    precision: Precision, variant: Variant
) -> None:
    torch.manual_seed(3)
    made = variant.make(plain(layer(40, 2080, "tanh", precision), precision))
    x = torch.randn(520, 40).to(dtype_of(precision))  # more than 2 MB of results
    together = made(x)
    for row in (0, 31, 519):
        assert torch.equal(together[row], made(x[row : row + 1])[0])


@pytest.mark.parametrize(("precision", "variant"), OURS, ids=name)
def test_no_rows_give_no_rows(precision: Precision, variant: Variant) -> None:
    made = variant.make(plain(layer(32, 48, None, precision), precision))
    assert made(torch.empty(0, 32, dtype=dtype_of(precision))).shape == (0, 48)


@pytest.mark.parametrize(("precision", "variant"), OURS, ids=name)
def test_a_view_with_gaps_is_read_as_what_it_shows(precision: Precision, variant: Variant) -> None:
    made = variant.make(plain(layer(32, 48, None, precision), precision))
    x = torch.randn(5, 64).to(dtype_of(precision))
    assert torch.equal(made(x[:, ::2]), made(x[:, ::2].clone()))


@pytest.mark.parametrize(("precision", "variant"), OURS, ids=name)
def test_rows_of_zeros_give_the_bias(precision: Precision, variant: Variant) -> None:
    """An int8 row's largest value divides the others: of zeros there is none."""
    linear = layer(32, 48, None, precision)
    y = variant.make(plain(linear, precision))(torch.zeros(3, 32).to(dtype_of(precision)))
    assert torch.equal(y, linear.bias.expand(3, 48))


def test_all_int8_kernels_give_the_same_bits() -> None:
    """Sums of integers are exact."""
    torch.manual_seed(0)
    linear = plain(layer(300, 70, "tanh", "int8"), "int8")
    x = torch.randn(40, 300).bfloat16()
    results = [v.make(linear)(x) for p, v in OURS if p == "int8"]
    if len(results) < 2:
        pytest.skip("this processor runs one int8 kernel")
    assert all(torch.equal(a, b) for a, b in itertools.pairwise(results))


def test_int8_keeps_each_output_within_half_a_step_of_its_weights() -> None:
    torch.manual_seed(0)
    linear = layer(64, 40, None, "float32")
    linear.weight[3] = 0.0
    quantised = Int8Linear.of(linear)
    step = linear.weight.abs().amax(1) / 127
    error = (quantised.weight * quantised.scale[:, None] - linear.weight).abs().amax(1)
    assert (error <= step / 2 + 1e-7).all()


def test_every_function_that_the_processor_has_is_a_variant() -> None:
    there = {p: [k.name for k in KERNELS[p] if linear_kernel(k.function)] for p in PRECISIONS}
    for precision, names in there.items():
        found = variants(precision)
        assert [v.name for v in found if v.batch_invariant and v.name != "torch"] == names
        assert found[-1].name == "torch"
    assert isinstance(PackedLinear(nn.Linear(4, 4)), nn.Module)
    if there["float32"]:
        assert isinstance(variants("float32")[0].make(nn.Linear(4, 4)), KernelLinear)
