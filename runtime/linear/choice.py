"""Which variant computes a network's linear layers: measured on this machine and kept.

Each shape is timed with weights of its own size, for a single row, a decoding batch and a prefill;
the variant with the smallest geometric mean is used.
One variant serves a shape at all row counts: results of different variants differ in their last
bits, and a request's logits should not depend on the other rows. A variant that does not guarantee
that must be clearly faster.

Another processor, number of threads, torch or kernel source is measured again (kernels/choice.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from kernels import LINEAR_SOURCES, identity
from kernels.choice import CLEARLY_FASTER, Choices, best_seconds, kept_choices
from models.weights.source import BLOCK
from runtime.linear.blocks import FORMATS, BlockLinear
from runtime.linear.layers import AnyLinear, Int8Linear, Precision, Variant, precision_of, variants

log = logging.getLogger(__name__)

ROWS = (1, 8, 64, 256)
TRIED_WEIGHTS = 2**20  # of a layer: more outputs take longer and change nothing
ROUNDS = 3  # at least, for a shape and number of rows; more while they have taken less than
ROUNDS_S = 0.02

Shape = tuple[int, int]  # inputs, outputs


def pack_linears(network: nn.Module, *, invariant: bool = False) -> dict[str, str]:
    """Replaces the linear layers of a CPU network by the fastest variants on this machine; returns
    their names by shape. `invariant`: by batch invariant ones where there are any."""
    if next(network.parameters()).device.type != "cpu":
        return {}
    layers = [
        (module, name, child, precision, (child.in_features, child.out_features))
        for module in network.modules()
        for name, child in module.named_children()
        if isinstance(child, AnyLinear) and (precision := precision_of(child)) is not None
    ]
    shapes: dict[Precision, list[Shape]] = {}
    for *_, precision, shape in layers:
        shapes.setdefault(precision, []).append(shape)
    chosen = {of: choose(of, all_, invariant=invariant) for of, all_ in shapes.items()}
    allowed = {of: _allowed(of, invariant) for of in shapes}
    offers = [KernelOffer(chosen[of][shape].name, list(allowed[of])) for *_, of, shape in layers]
    found: dict[str, str] = {}
    for variant in agreed(offers):
        # a layer's own weights are freed before the next is packed
        module, name, linear, precision, shape = layers.pop(0)
        setattr(module, name, allowed[precision][variant].make(linear))
        found[_key(shape)] = f"{precision} {variant}"
    log.info("linear layers: %s", "; ".join(f"{s} by {name}" for s, name in found.items()))
    return found


class KernelOffer(NamedTuple):
    """For one layer: the variant that a rank would take, and all that it has."""

    chosen: str
    available: Sequence[str]


def agreed(offers: Sequence[KernelOffer]) -> list[str]:
    """The variant for each layer. Shards of one network take the same: that of rank 0, or of the
    next rank whose choice all have; their machines may differ."""
    if not dist.is_initialized():
        return [offer.chosen for offer in offers]
    ranks: list[Sequence[KernelOffer]] = [()] * dist.get_world_size()
    dist.all_gather_object(ranks, offers)
    found = []
    for layer in zip(*ranks, strict=True):
        shared = set[str].intersection(*(set(offer.available) for offer in layer))
        # every rank has torch's own
        found.append(next((offer.chosen for offer in layer if offer.chosen in shared), "torch"))
    return found


def is_batch_invariant(kernels: dict[str, str]) -> bool:
    """Whether all of `pack_linears`' choices give a row the same result whatever the other rows
    are."""
    precisions: Any = {name.split()[0] for name in kernels.values()}
    exact = {f"{of} {v.name}" for of in precisions for v in variants(of) if v.batch_invariant}
    return bool(kernels) and exact.issuperset(kernels.values())


def _allowed(precision: Precision, invariant: bool) -> dict[str, Variant]:
    available = {variant.name: variant for variant in variants(precision)}
    exact = {name: variant for name, variant in available.items() if variant.batch_invariant}
    return exact if invariant and exact else available


def choose(
    precision: Precision, shapes: Iterable[Shape], *, invariant: bool = False
) -> dict[Shape, Variant]:
    """The variant for each shape, read from the file of earlier choices or measured. `invariant`:
    as of `pack_linears`."""
    available = _allowed(precision, invariant)
    is_all = len(available) == len(variants(precision))
    kind = precision if is_all else f"{precision}-invariant"
    if precision in FORMATS and len(available) > 1:
        del available["torch"]  # unpacks all weights in each call, so it is always the slowest
    by_key = {_key(shape): shape for shape in shapes}
    if len(available) == 1:
        return dict.fromkeys(by_key.values(), *available.values())

    def measured(keys: Sequence[str]) -> Choices:
        tried, found = list(available.values()), dict[Shape, Variant]()
        for inputs, outputs in (by_key[key] for key in keys):
            alike = inputs, max(1, min(outputs, TRIED_WEIGHTS // inputs))
            found[inputs, outputs] = found.get(alike) or measure(precision, alike, tried)
            found[alike] = found[inputs, outputs]
        return {key: found[by_key[key]].name for key in keys}

    def depends_on() -> object:
        return identity(*LINEAR_SOURCES), torch.__version__, torch.get_num_threads()

    chosen = kept_choices(kind, depends_on, list(by_key), available, measured)
    return {shape: available[chosen[key]] for key, shape in by_key.items()}


@torch.inference_mode()
def measure(precision: Precision, shape: Shape, tried: Sequence[Variant]) -> Variant:
    """The fastest for the shape."""
    inputs, outputs = shape
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    plain = layer_of(precision, inputs, outputs)
    layers = [variant.make(plain) for variant in tried]
    mean = [1.0] * len(tried)
    for rows in ROWS:
        x = torch.randn(rows, inputs).to(dtype)
        best = best_seconds([partial(layer, x) for layer in layers], ROUNDS, ROUNDS_S)
        mean = [m * b ** (1 / len(ROWS)) for m, b in zip(mean, best, strict=True)]
    for variant, seconds in zip(tried, mean, strict=True):
        log.debug("%s %s %s: %.0f us", precision, _key(shape), variant.name, seconds * 1e6)
    handicap = [1.0 if variant.batch_invariant else 1 / CLEARLY_FASTER for variant in tried]
    return tried[min(range(len(tried)), key=lambda i: mean[i] * handicap[i])]


def layer_of(precision: Precision, inputs: int, outputs: int) -> AnyLinear:
    """A layer of that size, to measure."""
    for kind, form in FORMATS.items():
        if kind == precision:
            raw = torch.zeros(outputs, inputs // BLOCK * form.size, dtype=torch.uint8)
            return BlockLinear.of(kind, raw)
    linear = nn.Linear(inputs, outputs).requires_grad_(False)
    if precision == "int8":
        return Int8Linear.of(linear)
    return linear.float() if precision == "float32" else linear.bfloat16()


def _key(shape: Shape) -> str:
    return f"{shape[0]} x {shape[1]}"
