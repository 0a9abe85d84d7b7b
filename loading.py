"""Loads a model into this process, for the server and for shards.

Torch is imported here and not before, by the thread that will own the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from seams import Model

if TYPE_CHECKING:
    from models.part import Part
    from runtime.executor import Executor


class LoadError(Exception):
    """The model cannot be served; the message says why and what is allowed."""


class LoadedModel(Model, Protocol):
    """What its process needs of a model besides executing iterations."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def info(self) -> Any: ...  # runtime.executor.ModelInfo

    def warm_up(self) -> None: ...


class ModelOptions(Protocol):
    """The options that server and model server share, as in `model.LoadOptions`."""

    @property
    def mode(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def revision(self) -> str | None: ...

    @property
    def device(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def max_batch_size(self) -> int: ...

    @property
    def kv_memory(self) -> str: ...

    @property
    def max_model_len(self) -> int | None: ...

    @property
    def cuda_graphs(self) -> bool: ...

    @property
    def speculate(self) -> int: ...


def load_local_model(
    options: ModelOptions, part: Part | None = None, rendezvous: str | None = None
) -> Executor:
    """The model, or a `part` of it that meets the others at `rendezvous`. Raises LoadError."""
    from model import LoadOptions, ModelOptionError, load_model
    from models.part import WHOLE
    from models.weights.source import CheckpointError
    from runtime.budget import KVMemoryError, WeightMemoryError
    from runtime.gpu.choice import DeviceError

    try:
        return load_model(
            LoadOptions(
                mode=options.mode,
                model=options.model,
                revision=options.revision,
                device=options.device,
                dtype=options.dtype,
                seed=options.seed,
                max_batch_size=options.max_batch_size,
                kv_memory=options.kv_memory,
                max_model_len=options.max_model_len,
                part=part or WHOLE,
                rendezvous=rendezvous or "",
                graphs=options.cuda_graphs,
                speculate=options.speculate if options.mode == "dynamic" else 0,
            )
        )
    except (
        CheckpointError,
        DeviceError,
        KVMemoryError,
        ModelOptionError,
        WeightMemoryError,
    ) as error:
        raise LoadError(str(error)) from error
