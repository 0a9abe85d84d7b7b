"""Server and model server load a model by the same function, and say alike why they cannot."""

from __future__ import annotations

import pytest
import torch

from loading import LoadError, load_local_model
from model_server.config import ServeConfig
from serving.config import Config

CONFIGS = {"server": Config, "model server": ServeConfig}


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_gpu_that_is_not_there_is_an_error_that_names_the_option(
    config: type[Config | ServeConfig],
) -> None:
    with pytest.raises(LoadError, match="--device cuda: torch finds no GPU; allowed here: auto"):
        load_local_model(config(mode="dynamic", device="cuda"))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_too_large_a_pool_is_an_error_that_names_the_option(
    config: type[Config | ServeConfig],
) -> None:
    with pytest.raises(LoadError, match="a smaller --kv-memory"):
        load_local_model(config(mode="dynamic", device="cpu", kv_memory="999999999GiB"))
