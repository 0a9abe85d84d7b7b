"""What a model does without memory for an iteration: it says so, and goes on with the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from batching import LAYOUTS, Mode
from gpt.errors import with_our_errors
from seams import DeviceMemoryError
from tests.bare import Bare
from tests.model.peer import VOCAB, load, peer_logits

MODES: list[Mode] = ["static", "dynamic"]
TOO_MANY = range(2**40)  # blocks; no machine has the memory


@pytest.mark.parametrize("mode", MODES)
def test_without_memory_an_iteration_fails_as_one_that_may_fit_later_and_harms_no_other(
    mode: Mode, checkpoint: tuple[Path, GPT2LMHeadModel]
) -> None:
    folder, peer = checkpoint
    bare = Bare(load(folder, mode), LAYOUTS[mode])
    (fine,) = bare.open([[5, 7, 11]], 4)
    bare.advance([fine])
    (large,) = bare.open([[1, 2]], 4)
    large.blocks = TOO_MANY
    with pytest.raises(DeviceMemoryError, match="memory"):
        bare.advance([large])
    bare.released.append(large.id)
    for _ in range(2):
        text = list(fine.ids)
        assert bare.advance([fine]).tokens == [[int(peer_logits(peer, text).argmax())]]


def test_a_sequence_that_cannot_grow_is_opened_again_and_computed_anew(
    checkpoint: tuple[Path, GPT2LMHeadModel],
) -> None:
    """As the engine does it, which preempts all that were in the iteration."""
    folder, peer = checkpoint
    bare = Bare(load(folder, "dynamic"), LAYOUTS["dynamic"])
    first, second = bare.open([[5, 7, 11], [VOCAB - 1]], 1)
    bare.advance([first, second])
    texts = [list(first.ids), list(second.ids)]
    second.blocks = TOO_MANY
    with pytest.raises(DeviceMemoryError):
        bare.advance([first, second])
    again = bare.open(texts, 1)
    bare.released += [first.id, second.id]
    assert bare.advance(again).tokens == [[int(peer_logits(peer, t).argmax())] for t in texts]


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
