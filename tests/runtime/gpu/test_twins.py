"""The kernels beside attention are compared with plain torch before they are used."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch

import kernels.gpu.decoder
import kernels.gpu.layers
import kernels.gpu.sampling
import runtime.gpu.twins
from runtime.gpu.layers import MULTIPLE
from runtime.gpu.twins import draws_differ, layers_differ, others_differ
from runtime.sampling.sampler import Sampler
from tests.kernels.test_gpu_sampling import Forms

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is slow."""
    monkeypatch.setattr(runtime.gpu.twins, "VOCABULARY", 201)
    monkeypatch.setattr(runtime.gpu.twins, "SEEDS", 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_with_the_same_results_pass(dtype: torch.dtype) -> None:
    assert others_differ(CPU, dtype) is None


@pytest.mark.parametrize(
    ("of", "told"), [("layers.bias_gelu", "a GELU"), ("decoder.gated", "a gate of SiLU")]
)
def test_a_layer_that_differs_is_named(of: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attrgetter(of)(kernels.gpu)
    monkeypatch.setattr(f"kernels.gpu.{of}", lambda *given: kernel(*given) + 0.01)
    assert f"{told} differs by 0.01" in str(layers_differ(CPU, torch.float32))


def test_another_token_is_reported_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = kernels.gpu.sampling.draw

    def wrong(*asked: object) -> torch.Tensor:
        tokens: torch.Tensor = draw(*asked)
        return tokens + (asked[4] < 0.85)  # type: ignore[operator]

    monkeypatch.setattr(kernels.gpu.sampling, "draw", wrong)
    assert "top_p=0.8" in str(draws_differ(CPU, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_form_of_a_draw_that_a_batch_may_need_is_compared(dtype: torch.dtype) -> None:
    """Triton compiles a form for a type, an alignment, and whether there are noise and cuts."""
    with Forms() as served:
        head = torch.zeros(1, 201 + -201 % MULTIPLE, dtype=dtype).narrow(1, 0, 201)
        Sampler(kernel=True).warm_up(head)
    with Forms() as compared:
        draws_differ(CPU, dtype)
    assert compared.found >= served.found
