"""How many blocks of keys and values a server has: fixed at start, with the arithmetic in the log.

How much memory a container's limit leaves is read from Linux control groups (kernel documentation,
admin-guide/cgroup-v2.rst, "Memory Interface Files", and cgroup-v1/memory.rst), since the machine's
own figures do not show it. The process's own group or any group above it may have a limit.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from runtime.cache import KVShape
from runtime.executor import Executor
from runtime.sampling.scoring import CHUNK_LOGITS
from seams import DeviceMemoryError, LoadError, Opening, Sampling, Step

log = logging.getLogger(__name__)

AVAILABLE_MEMORY_SHARE = 0.25  # of what a CPU server finds available
ONE_CONTEXT_SHARE = 0.75  # of that, where less would not hold one sequence of the whole context
FREE_GPU_MEMORY_SHARE = 0.9  # the rest is for fragments
LOADING_SHARE = 0.15  # of the weights: what loading them takes at most besides
WARM_UP_BLOCKS = 1  # for Executor.warm_up
CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
# files of a group with its limit and its use, and, in memory.stat, its file pages that are
# reclaimed before any process is killed
_V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_V2 = "memory.max", "memory.current", "inactive_file"
PROBED_TOKENS = 32_768  # of an iteration, at most, if the context is not longer


# all rows together score as many tokens of their prompts as exist at once (CHUNK_LOGITS)
_COSTLIEST = Sampling(
    top_p=0.9, typical_p=0.9, repetition_penalty=1.1, logprobs=20, prompt_logprobs=20
)
_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip


def asked_blocks(amount: str, shape: KVShape) -> int:
    """`2GiB` or `30000tokens` as blocks. Raises LoadError, also if it is less than the server's own
    warm-up needs."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", amount)
    if found is None or found[2] not in (*_UNITS, "tokens"):
        raise LoadError(
            f"--kv-memory is '{amount}'; allowed: auto, or a number with one of "
            f"{', '.join(_UNITS)}, tokens"
        )
    number, unit = float(found[1]), found[2]
    if unit == "tokens":
        blocks = math.ceil(number / shape.block_tokens)
    else:
        blocks = int(number * _UNITS[unit] / shape.block_bytes)
    if blocks < WARM_UP_BLOCKS:
        raise LoadError(
            f"--kv-memory {amount} is less than a block: {shape.block_tokens} tokens of "
            f"{shape.token_bytes} bytes; allowed: {WARM_UP_BLOCKS} block or more"
        )
    log.info("KV budget: --kv-memory %s: %s", amount, _described(blocks, shape))
    return blocks


def cpu_blocks(shape: KVShape, rows: int, context: int) -> int:
    """The most that `rows` sequences of `context` tokens can use, or a share of the available
    memory if that is less: a quarter, or as much as one sequence needs, up to three quarters.

    Available is the memory of the machine or, if less, what the container's limit leaves.
    Raises LoadError if the share is less than the server's own warm-up needs.
    """
    available_bytes, whose = _available()
    available = available_bytes // shape.block_bytes
    most = int(available * ONE_CONTEXT_SHARE)
    fitting = max(int(available * AVAILABLE_MEMORY_SHARE), min(blocks_of(1, context, shape), most))
    taken = fitting / max(available, 1)
    if fitting < WARM_UP_BLOCKS:
        raise LoadError(
            f"{available_bytes / 2**30:.2f} GiB of memory are available ({whose}), of which the KV "
            f"budget takes {100 * ONE_CONTEXT_SHARE:.0f} % at most: {fitting} blocks of "
            f"{shape.block_bytes} bytes; at least {WARM_UP_BLOCKS} is needed"
        )
    share = f"{100 * taken:.0f} % of {available_bytes / 2**30:.1f} GiB available ({whose})"
    return _smaller(shape, rows, context, fitting, share)


def _available() -> tuple[int, str]:
    """Bytes of memory that this process may take, and whose they are."""
    import psutil  # here: benchmarks/gpu.py runs without it

    machine_bytes, room_bytes = psutil.virtual_memory().available, container_room_bytes()
    if room_bytes is not None and room_bytes < machine_bytes:
        of = f"under the container's limit, of {machine_bytes / 2**30:.1f} GiB on the machine"
        return room_bytes, of
    return machine_bytes, "on the machine"


def container_room_bytes(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int | None:
    """What the tightest limit leaves: limit - (used - inactive file pages); None without a
    limit."""
    rooms = []
    for folder, (limit_file, used_file, cache) in _groups(cgroups, own_groups):
        try:
            limit = (folder / limit_file).read_text().strip()
            used = int((folder / used_file).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit.isdecimal():  # not "max"
            rooms.append(max(0, int(limit) - used + int(stat.get(cache, 0))))
    return min(rooms, default=None)


def _groups(cgroups: Path, own_groups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The process's groups and all above them; within a container the mount begins at its own
    group."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top, files = cgroups / "memory", _V1
        elif number == "0" and not controllers:
            top, files = cgroups, _V2
        else:
            continue
        group = Path(path.lstrip("/"))
        for at in (group, *group.parents):
            yield top / at, files


def check_weights(weight_bytes: int, held: str, shape: KVShape) -> None:
    """Before weights are loaded into a CPU's memory. `held`: the type that they will have. Raises
    LoadError."""
    available_bytes, whose = _available()
    loading_bytes = int(LOADING_SHARE * weight_bytes)
    needed_bytes = weight_bytes + loading_bytes + WARM_UP_BLOCKS * shape.block_bytes
    if needed_bytes > available_bytes:
        raise LoadError(
            f"the model needs {needed_bytes / 2**30:.2f} GiB of memory: weights in {held} "
            f"{weight_bytes / 2**30:.2f} GiB, {100 * LOADING_SHARE:.0f} % of that while they are "
            f"loaded, and keys and values of {shape.block_tokens} tokens "
            f"{shape.block_bytes / 2**30:.3f} GiB; {available_bytes / 2**30:.2f} GiB are available "
            f"({whose}). A smaller model needs less, as does one with fewer bits, or --dtype int8 "
            "or bfloat16 instead of float32"
        )


def gpu_blocks(shape: KVShape, rows: int, context: int, activation_bytes: int) -> int:
    """As on a CPU, from the memory that the worst iteration leaves free. Raises LoadError."""
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info(shape.device)[0]
    fitting = int((free_bytes - activation_bytes) * FREE_GPU_MEMORY_SHARE) // shape.block_bytes
    if fitting < WARM_UP_BLOCKS:
        raise LoadError(
            f"the GPU has {free_bytes / 2**30:.1f} GiB free beside the weights, the worst "
            f"iteration takes {activation_bytes / 2**30:.1f} GiB of it; a smaller "
            "--max-batch-size leaves more"
        )
    share = (
        f"{100 * FREE_GPU_MEMORY_SHARE:.0f} % of ({free_bytes / 2**30:.1f} GiB free - "
        f"{activation_bytes / 2**30:.1f} GiB for the worst iteration)"
    )
    return _smaller(shape, rows, context, fitting, share)


def blocks_of(rows: int, context: int, shape: KVShape) -> int:
    """For `rows` sequences of `context` tokens."""
    return rows * math.ceil(context / shape.block_tokens)


def _smaller(shape: KVShape, rows: int, context: int, fitting: int, share: str) -> int:
    most = blocks_of(rows, context, shape)
    blocks = min(most, fitting)
    log.info(
        "KV budget: the smaller of batch limit x context = %d x %d tokens = %d blocks, and %s / "
        "%d bytes a block = %d blocks: %s",
        rows,
        context,
        most,
        share,
        shape.block_bytes,
        fitting,
        _described(blocks, shape),
    )
    return blocks


def _described(blocks: int, shape: KVShape) -> str:
    tokens, size = shape.block_tokens, blocks * shape.block_bytes / 2**30
    return (
        f"{blocks} blocks of {tokens} tokens x {shape.token_bytes} bytes = {blocks * tokens} "
        f"tokens, {size:.2f} GiB"
    )


def worst_activation_bytes(model: Executor, rows: int) -> int:
    """The memory of an iteration on a CUDA device beside weights, keys and values, measured with
    `rows` prompts of the model's context, or as many as make up PROBED_TOKENS: a larger iteration
    that finds no memory is halved by the loop. If these do not fit, they are halved, too. The model
    has no KV memory afterwards. Raises LoadError."""
    rows = max(1, min(rows, PROBED_TOKENS // model.context))
    while True:
        try:
            return _activation_bytes(model, rows)
        except DeviceMemoryError as error:
            if rows == 1:
                raise LoadError(f"no sequence fits into the GPU: {error}") from error
            rows //= 2
        finally:
            model.forget()
            model.allocate(0)


def _activation_bytes(model: Executor, rows: int) -> int:
    context = model.context
    each = blocks_of(1, context, model.shape)
    model.allocate(rows * each)
    model.warm_up()  # a kernel's launch is chosen at first use, with memory that no later one takes
    prompt = min(context, 1 + math.ceil(CHUNK_LOGITS / model.vocab_size / rows))
    model.open([Opening(i, [0] * context, prompt, _COSTLIEST) for i in range(rows)])
    steps = [Step(i, 0, context, True, range(i * each, (i + 1) * each)) for i in range(rows)]
    torch.cuda.reset_peak_memory_stats(model.device)
    held_bytes = torch.cuda.memory_allocated(model.device)
    model.start(steps, ()).result()
    return torch.cuda.max_memory_allocated(model.device) - held_bytes
