"""The linear layers of a CPU against torch's plain ones in double precision."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gpt.linear
from gpt.linear import PackedLinear, PanelLinear, pack_linears, runs_in_panels
from gpt.network import GPT, GeluLinear, GPTConfig, init_weights

DTYPES = [torch.float32, torch.bfloat16]
EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}
# inputs and outputs: less than a panel, not whole groups, several blocks of inputs, GPT-2's own
SIZES = [(2, 1), (16, 5), (50, 33), (300, 48), (1100, 130), (2600, 65), (768, 2304)]
ROWS = [1, 2, 8, 27, 28, 29, 57, 84, 85, 513]  # around the borders of a tile and of a block
ACTIVATIONS = ["none", "tanh", None]


def layer(inputs: int, outputs: int, activation: str | None, dtype: torch.dtype) -> nn.Linear:
    if activation is not None:
        made: nn.Linear = GeluLinear(inputs, outputs, activation)
    else:
        made = nn.Linear(inputs, outputs, bias=outputs % 2 == 0)
    if not runs_in_panels(made.to(dtype)):
        pytest.skip(f"this processor or machine has no kernel of ours for {dtype}")
    return made.requires_grad_(False)


def exact(linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the layer gives, and that before its activation."""
    double = copy.deepcopy(linear).double()
    return double(x.double()), F.linear(x.double(), double.weight, double.bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_our_kernel_computes_a_linear_layer(
    inputs: int, outputs: int, activation: str | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(inputs)
    linear = layer(inputs, outputs, activation, dtype)
    panels = PanelLinear(linear)
    for rows in ROWS:
        x = torch.randn(rows, inputs).to(dtype)
        y = panels(x).double()
        wanted, before = exact(linear, x)
        assert y.shape == wanted.shape
        # rounding before and behind an activation, and of a sum of that many terms
        allowed = EPSILON[dtype] * (wanted.abs() + before.abs()) + 2.0**-23 * inputs**0.5 * 4
        assert ((y - wanted).abs() <= allowed).all(), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [48, 1100])
def test_a_rows_result_does_not_depend_on_its_company(inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    panels = PanelLinear(layer(inputs, 100, "tanh", dtype))
    x = torch.randn(600, inputs).to(dtype)
    alone = torch.cat([panels(x[i : i + 1]) for i in range(len(x))])
    for rows in ROWS:
        assert torch.equal(panels(x[:rows]), alone[:rows])
        assert torch.equal(panels(x[-rows:]), alone[-rows:])


def test_no_rows_give_no_rows() -> None:
    assert PanelLinear(layer(32, 48, None, torch.float32))(torch.empty(0, 32)).shape == (0, 48)


def test_a_view_with_gaps_is_read_as_what_it_shows() -> None:
    panels = PanelLinear(layer(32, 48, None, torch.float32))
    x = torch.randn(5, 64)
    assert torch.equal(panels(x[:, ::2]), panels(x[:, ::2].clone()))


def test_odd_inputs_in_bfloat16_have_no_kernel() -> None:
    assert not runs_in_panels(nn.Linear(33, 64).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ours", [True, False])
def test_a_networks_layers_are_replaced_and_compute_the_same(
    dtype: torch.dtype, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = GPT(GPTConfig(vocab_size=50, context=8, n_layer=1, n_head=2, n_embd=32))
    init_weights(network, 0)
    network.to(dtype).requires_grad_(False)
    plain = {n: getattr(network.blocks[0], n) for n in ("qkv", "attn_proj", "fc", "mlp_proj")}
    if not ours:  # a machine without a compiler
        monkeypatch.setattr(gpt.linear, "linear_library", lambda: None)
    pack_linears(network)
    for name, linear in plain.items():
        packed = getattr(network.blocks[0], name)
        assert isinstance(packed, PanelLinear if runs_in_panels(linear) else PackedLinear)
        x = torch.randn(5, linear.in_features).to(dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        assert torch.allclose(packed(x), linear(x), atol=tolerance, rtol=tolerance)
    hidden = torch.randn(3, 32).to(dtype)
    assert torch.allclose(network.head(hidden), F.linear(hidden, network.wte.weight), atol=2e-2)
