"""How many tokens' keys and values a server holds: fixed at start, its arithmetic in the log."""

from __future__ import annotations

import logging
import re

import psutil
import torch

from gpt.cache import KVShape
from gpt.container import container_room_bytes
from gpt.executor import WARM_UP_TOKENS, Executor
from seams import DeviceMemoryError, Opening, Sampling, Step

log = logging.getLogger(__name__)

AVAILABLE_MEMORY_SHARE = 0.25  # of what a CPU server finds available
FREE_GPU_MEMORY_SHARE = 0.9  # the rest is for fragments, and for a sequence copied as it grows


class KVMemoryError(ValueError):
    """The KV memory that is asked for cannot be had."""


_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip


def _parse(amount: str, token_bytes: int) -> int:
    """`2GiB` or `30000tokens` as tokens. Raises KVMemoryError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", amount)
    if found is None or found[2] not in (*_UNITS, "tokens"):
        raise KVMemoryError(
            f"--kv-memory is '{amount}'; allowed: auto, or a number with one of "
            f"{', '.join(_UNITS)}, tokens"
        )
    number, unit = float(found[1]), found[2]
    return int(number if unit == "tokens" else number * _UNITS[unit] / token_bytes)


def asked_tokens(amount: str, shape: KVShape) -> int:
    """Raises KVMemoryError for less than the server's own warm-up takes."""
    tokens = _parse(amount, shape.token_bytes)
    if tokens < WARM_UP_TOKENS:
        raise KVMemoryError(
            f"--kv-memory {amount} holds {tokens} tokens of {shape.token_bytes} bytes; allowed: "
            f"{WARM_UP_TOKENS} tokens or more"
        )
    log.info(
        "KV budget: --kv-memory %s, at %d bytes a token: %d tokens",
        amount,
        shape.token_bytes,
        tokens,
    )
    return tokens


def cpu_tokens(shape: KVShape, most_tokens: int) -> int:
    """All that the batch limit can use, or a share of the available memory where that is less.

    Available is what the machine has, or what the container's limit leaves where that is less.
    Raises KVMemoryError where the share is less than the server's own warm-up takes.
    """
    machine_bytes, room_bytes = psutil.virtual_memory().available, container_room_bytes()
    available_bytes, whose = machine_bytes, "on the machine"
    if room_bytes is not None and room_bytes < machine_bytes:
        available_bytes = room_bytes
        whose = f"under the container's limit, of {machine_bytes / 2**30:.1f} GiB on the machine"
    fitting = int(available_bytes * AVAILABLE_MEMORY_SHARE) // shape.token_bytes
    log.info(
        "KV budget: the smaller of batch limit x context = %d tokens, and %.0f %% of %.1f GiB "
        "available (%s) / %d bytes a token = %d tokens",
        most_tokens,
        100 * AVAILABLE_MEMORY_SHARE,
        available_bytes / 2**30,
        whose,
        shape.token_bytes,
        fitting,
    )
    if fitting < WARM_UP_TOKENS:
        raise KVMemoryError(
            f"{available_bytes / 2**30:.2f} GiB of memory are available ({whose}), of which the KV "
            f"budget takes {100 * AVAILABLE_MEMORY_SHARE:.0f} %: {fitting} tokens of "
            f"{shape.token_bytes} bytes, and {WARM_UP_TOKENS} are the least"
        )
    return min(most_tokens, fitting)


def gpu_tokens(shape: KVShape, most_tokens: int, activation_bytes: int) -> int:
    """As on a CPU, of what the worst iteration leaves free. Raises KVMemoryError."""
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info(shape.device)[0]
    fitting = int((free_bytes - activation_bytes) * FREE_GPU_MEMORY_SHARE) // shape.token_bytes
    log.info(
        "KV budget: the smaller of batch limit x context = %d tokens, and %.0f %% of (%.1f GiB "
        "free - %.1f GiB for the worst iteration) / %d bytes a token = %d tokens",
        most_tokens,
        100 * FREE_GPU_MEMORY_SHARE,
        free_bytes / 2**30,
        activation_bytes / 2**30,
        shape.token_bytes,
        fitting,
    )
    if fitting < WARM_UP_TOKENS:
        raise KVMemoryError(
            f"the GPU has {free_bytes / 2**30:.1f} GiB free beside the weights, the worst "
            f"iteration takes {activation_bytes / 2**30:.1f} GiB of it; a smaller "
            "--max-batch-size leaves more"
        )
    return min(most_tokens, fitting)


def worst_activation_bytes(model: Executor, rows: int) -> int:
    """What a CUDA device takes for an iteration beside weights, keys and values: measured with
    `rows` prompts of the model's context, the most that a batch can hold. Where that many do not
    fit the loop would halve its batch, and so does this. Raises KVMemoryError."""
    while True:
        try:
            return _activation_bytes(model, rows)
        except DeviceMemoryError as error:
            if rows == 1:
                raise KVMemoryError(f"not one sequence fits into the GPU: {error}") from error
            rows //= 2
        finally:
            model.forget()


def _activation_bytes(model: Executor, rows: int) -> int:
    context = model.context
    model.open([Opening(i, [0] * context, context, Sampling()) for i in range(rows)])
    steps = [Step(i, 0, context, True, range(context)) for i in range(rows)]
    torch.cuda.reset_peak_memory_stats(model.device)
    held_bytes = torch.cuda.memory_allocated(model.device)
    model.start(steps, ())
    kv_bytes = rows * context * model.shape.token_bytes
    return torch.cuda.max_memory_allocated(model.device) - held_bytes - kv_bytes
