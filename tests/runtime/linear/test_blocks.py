"""Layers over GGUF's quantised weights: read as the `gguf` package reads them, and computed by the
kernels as by the twin that defines them."""

from __future__ import annotations

import gguf
import pytest
import torch
from gguf import quants
from torch import Tensor, nn

import runtime.linear.layers
from models.weights.rounding import quantise_q4_0, quantise_q8_0
from runtime.linear.blocks import (
    FORMATS,
    KINDS,
    BlockEmbedding,
    BlockKind,
    BlockLinear,
)
from runtime.linear.choice import is_batch_invariant, pack_linears
from runtime.linear.layers import KernelLinear, Variant, variants

# inputs and outputs: fewer than a panel, odd numbers of both, several ranges
SIZES = [(32, 1), (96, 70), (1120, 130), (64, 16)]
OURS = [(kind, v) for kind in KINDS for v in variants(kind) if v.name != "torch"]


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


def name(of: object) -> str:
    return of.name if isinstance(of, Variant) else str(of)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
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


@pytest.mark.parametrize(("kind", "quantise"), [("q8_0", quantise_q8_0), ("q4_0", quantise_q4_0)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 100.0])
def test_quantising_rounds_as_the_gguf_package_does(
    kind: BlockKind, quantise: object, scale: float
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 320) * scale
    weight[3] = 0.0
    weight[4, :32] = torch.arange(32.0) - 20
    weight[5, :32] = torch.arange(32.0) * 0.5 - 4  # halves of a step
    assert callable(quantise)
    assert torch.equal(quantise(weight), raw_of(kind, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_is_near_the_layer_with_dequantised_weights(kind: BlockKind) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(70, 320), torch.randn(70)
    linear = BlockLinear.of(kind, raw_of(kind, weight), bias)
    x = torch.randn(9, 320)
    expected = x @ linear.dequantised().t() + bias
    assert (linear(x) - expected).abs().max() < 0.02 * expected.abs().max()
    exact = x.sign() * 127  # inputs that 8 bits hold
    expected = exact.double() @ linear.dequantised().double().t() + bias
    torch.testing.assert_close(linear(exact).double(), expected, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize(("kind", "variant"), OURS, ids=name)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_every_kernel_computes_the_layer(
    kind: BlockKind, variant: Variant, inputs: int, outputs: int
) -> None:
    torch.manual_seed(inputs)
    bias = torch.randn(outputs) if outputs % 2 else None
    linear = BlockLinear.of(kind, random_raw(kind, inputs, outputs), bias)
    made = variant.make(linear)
    for rows in (1, 5, 16, 17, 130, 700):
        x = torch.randn(rows, inputs).bfloat16()
        y, expected = made(x), linear(x)
        assert y.shape == (rows, outputs)
        # the order of float32 additions is the same, but a product and a sum are rounded once
        error = (y.float() - expected.float()).abs()
        size = linear(x.float()).abs().amax()
        assert (error <= 2.0**-7 * expected.abs() + 2.0**-18 * size).all(), rows


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_for_tiles_and_for_vectors_agree_to_the_last_bit(kind: BlockKind) -> None:
    ours = [v for v in variants(kind) if v.name != "torch"]
    if len(ours) < 2:
        pytest.skip("this processor has one kernel")
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    try:
        for number in {1, threads}:
            torch.set_num_threads(number)
            for inputs, outputs in SIZES:
                raw = random_raw(kind, inputs, outputs)
                linear = BlockLinear.of(kind, raw, torch.randn(outputs))
                made = [variant.make(linear) for variant in ours]
                for rows in (*range(1, 40), 1000):
                    x = torch.randn(rows, inputs).bfloat16()
                    first, *others = [each(x) for each in made]
                    assert all(torch.equal(first, other) for other in others), rows
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("kind", "variant"), OURS, ids=name)
def test_sums_within_a_block_are_exact(kind: BlockKind, variant: Variant) -> None:
    """With one block, scales of 1 and outputs that bfloat16 holds, to the last bit."""
    torch.manual_seed(0)
    raw = random_raw(kind, 32, 50)
    raw[:, : 2 * FORMATS[kind].numbers] = torch.ones(FORMATS[kind].numbers).half().view(torch.uint8)
    linear = BlockLinear.of(kind, raw)
    x = torch.zeros(33, 32)
    for row in range(32):
        x[row, row] = 127.0 if row % 2 else -127.0
    assert torch.equal(variant.make(linear)(x.bfloat16()), linear(x.bfloat16()))
    expected = linear.dequantised().t() * x.sum(1)[:32, None]
    assert torch.equal(linear(x)[:32], expected)
    assert not linear(x)[32].any(), "a row of zeros"


@pytest.mark.parametrize(("kind", "variant"), OURS, ids=name)
def test_the_largest_sums_do_not_overflow(kind: BlockKind, variant: Variant) -> None:
    """Instructions that add pairs of products in 16 bits saturate."""
    for stored in (0x00, 0x80, 0x7F, 0xFF):
        raw = random_raw(kind, 64, 20)
        form = FORMATS[kind]
        raw.view(20, 2, -1)[:, :, 2 * form.numbers :] = stored
        linear = BlockLinear.of(kind, raw)
        for sign in (1.0, -1.0):
            x = torch.full((3, 64), sign).bfloat16()
            torch.testing.assert_close(variant.make(linear)(x), linear(x), rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize(("kind", "variant"), OURS, ids=name)
def test_a_rows_result_does_not_depend_on_other_rows(kind: BlockKind, variant: Variant) -> None:
    torch.manual_seed(0)
    made = variant.make(BlockLinear.of(kind, random_raw(kind, 352, 40)))
    x = torch.randn(600, 352).bfloat16()
    alone = torch.cat([made(row) for row in x.split(1)])
    for rows in (*range(2, 70), 131, 600):
        first = rows * 3 % (601 - rows)
        assert torch.equal(made(x[first : first + rows]), alone[first : first + rows]), rows


@pytest.mark.parametrize("kind", KINDS)
def test_the_twins_rows_do_not_depend_on_each_other(kind: BlockKind) -> None:
    torch.manual_seed(0)
    linear = BlockLinear.of(kind, random_raw(kind, 96, 40))
    x = torch.randn(30, 96).bfloat16()
    assert torch.equal(torch.cat([linear(row) for row in x.split(1)]), linear(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ours", [True, False])
def test_a_networks_block_layers_are_replaced_and_hold_no_second_copy(
    kind: BlockKind, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ours:  # a machine without a compiler, or without the instructions
        monkeypatch.setattr(runtime.linear.layers, "linear_kernel", lambda _: None)
    torch.manual_seed(0)
    head = BlockLinear.of(kind, random_raw(kind, 64, 50))
    network = nn.ModuleDict(
        {"embedding": BlockEmbedding(head, torch.bfloat16), "head": head, "norm": nn.LayerNorm(64)}
    )
    names = pack_linears(network)
    assert names.keys() == {"64 x 50"}
    assert names["64 x 50"].split()[0] == kind
    assert is_batch_invariant(names)
    packed = network["head"]
    if any(of == kind for of, _ in OURS) and ours:
        assert isinstance(packed, KernelLinear)
        assert packed.weight.data_ptr() == head.panels.data_ptr()
        embedding = network["embedding"]
        assert isinstance(embedding, BlockEmbedding)
        assert embedding.panels.data_ptr() == head.panels.data_ptr()
    x = torch.randn(4, 64).bfloat16()
    torch.testing.assert_close(packed(x), head(x), rtol=2**-7, atol=1e-2)


def test_another_kind_or_half_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks of 'q5_0', allowed: q8_0, q4_0, q4_1"):
        BlockLinear.of("q5_0", torch.zeros(2, 34, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"35 bytes in a row, not a multiple of 34, q8_0's block"):
        BlockLinear.of("q8_0", torch.zeros(2, 35, dtype=torch.uint8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_file_takes_the_bytes_that_gguf_says(kind: BlockKind) -> None:
    block, size = gguf.GGML_QUANT_SIZES[type_of(kind)]
    assert (block, size) == (32, FORMATS[kind].size)
    linear = BlockLinear.of(kind, raw_of(kind, torch.zeros(64, 128)))
    assert linear.panels.nbytes == 64 * 128 // block * size
