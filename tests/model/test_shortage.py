"""What a model does without memory for an iteration: it says so, and continues with the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from generate.modes import LAYOUTS, Mode
from gpt.budget import KVMemoryError
from gpt.errors import with_our_errors
from model import LoadOptions, load_model
from seams import DeviceMemoryError
from tests.bare import Bare
from tests.model.peer import load, peer_logits

MODES: list[Mode] = ["static", "dynamic"]


@pytest.mark.parametrize("mode", MODES)
def test_without_memory_an_iteration_fails_as_one_that_may_fit_later_and_harms_no_other(
    mode: Mode, checkpoint: tuple[Path, GPT2LMHeadModel]
) -> None:
    folder, peer = checkpoint
    model = load(folder, mode)
    bare = Bare(model, LAYOUTS[mode])
    (fine,) = bare.open([[5, 7, 11]], 4)
    bare.advance([fine])
    (large,) = bare.open([[1, 2]], 4)
    greedy = model.network.register_forward_pre_hook(lambda *_: torch.empty(2**55))
    with pytest.raises(DeviceMemoryError, match="memory"):
        bare.advance([large])
    greedy.remove()
    bare.released.append(large.id)
    for _ in range(2):
        text = list(fine.ids)
        assert bare.advance([fine]).tokens == [[int(peer_logits(peer, text).argmax())]]


def test_a_model_without_memory_for_its_pool_is_not_served() -> None:
    asked = LoadOptions("dynamic", "embedded", "cpu", "float32", 0, 8, kv_memory="999999999GiB")
    with pytest.raises(KVMemoryError, match="a smaller --kv-memory"):
        load_model(asked)


class Allocating:
    device = torch.device("cpu")

    @with_our_errors
    def iterate(self) -> None:
        torch.empty(2**55)


def test_the_error_keeps_no_tensor_of_the_failed_iteration() -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        Allocating().iterate()
    assert caught.value.__cause__ is caught.value.__context__ is None
    frames, traceback = [], caught.value.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "iterate" not in frames
