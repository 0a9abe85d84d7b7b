"""Executes iterations of the local model: one network and its sequences.

An iteration is a flat axis of tokens. Linear layers see nothing else; a layout (`model.py`) says
which tokens lie where on it, and how attention finds each one's past. On a CPU everything is
computed within `start`; a GPU is given its work there, and its results are read in
`LocalIteration.result`, while the next iteration may run already.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from models.names import RANDOM_PREFIX
from models.networks import Network, count_parameters
from runtime.attention import Flat, Span, Spans, attention_on_cpu
from runtime.cache import KVPool, KVShape
from runtime.gpu.device import Device
from runtime.grammar.grammars import Grammars
from runtime.grammar.matching import masks_of
from runtime.iteration import Guesses, LocalIteration, ReadBack, with_our_errors
from runtime.layers import adapt_to_cpu, adapt_to_gpu
from runtime.linear.blocks import BlockLinear
from runtime.linear.choice import is_batch_invariant, pack_linears
from runtime.linear.layers import Int8Linear
from runtime.sampling.sampler import Sampler
from runtime.sampling.scoring import score, score_all
from runtime.sequence import KnownSequence
from runtime.transfer import send
from seams import Columns, Opening, Sampling, Step

# of the widest activation of a pass through the network on a CPU: larger ones leave the caches, and
# the system maps new memory for each of them
PASS_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is running, for people and reports."""

    name: str
    parameters: int
    dtype: str
    device: str
    note: str | None
    kernels: dict[str, str]  # what computes the linear layers, by inputs x outputs; none on a GPU
    batch_invariant: bool  # by these kernels a row's logits do not depend on the rows beside it
    unused_gpu: str | None = None  # what of the machine's GPU is not used, and why
    speculate: int = 0  # most drafts of a row


def passes(spans: Spans, tokens: int, most: int) -> Iterator[tuple[slice, Spans]]:
    """Divides an axis of `tokens` between rows, each part with its spans. A part has at most `most`
    positions, or is a single row; the padding before a row belongs to it."""
    begin, end, own = 0, 0, list[Span]()
    for span in sorted(spans, key=lambda span: span.first):
        if own and span.first + span.length - begin > most:
            yield slice(begin, end), Spans.of(own)
            begin, own = end, []
        own.append(span._replace(first=span.first - begin))
        end = span.first + span.length
    yield slice(begin, tokens), Spans.of(own)


class Executor(ABC):
    """A `seams.Model`. Call `allocate`, which reserves its KV memory, before serving."""

    lost: str | None = None  # it cannot be lost without its process
    grammars: Grammars | None = None  # set by its owner; None: it serves no constraints
    pool: KVPool

    def __init__(
        self,
        network: Network,
        dtype: torch.dtype,
        name: str,
        *,
        kernel: bool | None = None,
        speculate: int = 0,
    ) -> None:
        """`kernel`: whether attention uses the Triton kernel, on a GPU or interpreted on a CPU;
        None: on a CPU, with the attention for CPUs. `speculate`: most drafts of a row; with them
        linear layers are batch invariant where they can be."""
        self.network = network
        self.device = next(network.parameters()).device
        self.context = network.config.context
        self.vocab_size = network.config.vocab_size
        self.shape = KVShape.of(network.config, dtype, self.device)
        # no list of them: what packing replaces is freed, layer by layer
        kinds: Counter[str] = Counter(
            module.kind
            for module in network.modules()
            if isinstance(module, BlockLinear | Int8Linear)
        )
        kernels: dict[str, str] = {}
        if kernel is None:
            kernels = pack_linears(network, invariant=speculate > 0)
            adapt_to_cpu(network, dtype)
        else:
            adapt_to_gpu(network, kernels=kernel)
        self.info = ModelInfo(
            name=name,
            parameters=count_parameters(network.config),
            dtype=max(kinds, key=kinds.__getitem__, default=str(dtype).removeprefix("torch.")),
            device=torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda"
            else str(self.device),
            note="random weights: real work, meaningless text"
            if name.startswith(RANDOM_PREFIX)
            else None,
            kernels=kernels,
            batch_invariant=is_batch_invariant(kernels),
            speculate=speculate,
        )
        self._sequences: dict[int, KnownSequence] = {}
        self._sampler = Sampler(kernel=bool(kernel))
        self._started: LocalIteration | None = None
        self._kernel = kernel
        widest_bytes = network.config.mlp_width * dtype.itemsize  # of a token, within an MLP
        self._pass_tokens = PASS_BYTES // widest_bytes
        self.gpu: Device | None = None

    @with_our_errors
    def allocate(self, blocks: int) -> None:
        """Reserves KV memory for all sequences together; earlier memory is freed first. Raises
        DeviceMemoryError."""
        if self.gpu is not None:
            self.gpu.graphs = None  # they and the device refer to each other
            self.gpu = None
        if hasattr(self, "pool"):
            del self.pool
        self.pool = KVPool(self.shape, blocks)
        if self._kernel is not None:
            self.gpu = Device(self.network, self.pool, kernel=self._kernel)

    def graph_bytes(self, max_rows: int) -> int:
        """Memory of a CUDA device that recorded iterations of up to `max_rows` rows take, wherever
        it is allocated: they are recorded over a pool of one block, and dropped. Raises
        DeviceMemoryError."""
        self.allocate(1)
        assert self.gpu is not None
        before_bytes = _free_bytes(self.device)
        self.gpu.record_graphs(max_rows)
        taken_bytes = before_bytes - _free_bytes(self.device)
        self.gpu.graphs = None
        return max(0, taken_bytes)

    @property
    def num_blocks(self) -> int:
        return int(self.pool.keys.shape[1])

    @property
    def block_tokens(self) -> int:
        return self.shape.block_tokens

    def describe(self) -> str:
        note = f" ({self.info.note})" if self.info.note else ""
        return (
            f"model {self.info.name}{note}: {self.info.parameters / 1e6:.1f} M parameters, "
            f"{self.info.dtype} on {self.info.device} ({torch.get_num_threads()} CPU threads), "
            f"context {self.context}, KV memory of {self.num_blocks} blocks of {self.block_tokens} "
            f"tokens: {self.num_blocks * self.block_tokens} tokens"
        )

    @with_our_errors
    def warm_up(self) -> None:
        """A prefill and a decode that fill a block, so that no request waits for what is built at
        first use. Raises DeviceMemoryError, DeviceLostError."""
        prompt = self.block_tokens - 1
        self.open([Opening(0, [0] * prompt, prompt, Sampling())])
        self.start([Step(0, 0, prompt, True, (0,))], ()).result()
        self.start([Step(0, prompt, 1, True, ())], ()).result()
        self.forget()
        if self.gpu is not None:
            self.gpu.warm_up()
        if self._kernel is not None:
            with torch.inference_mode():
                hidden = self.network.wte.weight.new_zeros(1, self.network.config.n_embd)
                logits = self.network.head(hidden)  # by all ranks, with or without the kernel
                if self._kernel:
                    self._sampler.warm_up(logits)

    # --- seams.Model ------------------------------------------------------------------------

    def open(self, new: Sequence[Opening]) -> None:
        for opening in new:
            self._sequences[opening.id] = KnownSequence(opening, self.grammars)

    @torch.inference_mode()
    @with_our_errors
    def start(self, steps: Sequence[Step], released: Sequence[int]) -> LocalIteration:
        """See `seams.Model`. Raises DeviceMemoryError, DeviceLostError."""
        before, newest = self._started, None
        if before is not None:
            before.read_before()  # one iteration may be in flight
            newest = before.in_flight
        start_s = time.perf_counter()
        for id in released:
            self._sequences.pop(id, None)
        # column by column, which takes a third of the time of loops over the steps
        of = Columns(*zip(*steps, strict=True))
        rows, each = [self._sequences[id] for id in of.ids], range(len(steps))
        guessing = compress(each, of.drafts)
        drafts = {i: guessed for i in guessing if (guessed := rows[i].draft(of.drafts[i]))}
        for i in compress(each, of.blocks):
            rows[i].table.extend(of.blocks[i])
        flat = self.lay_out(of, rows, drafts)
        iteration = LocalIteration.of(before, start_s, of, rows, drafts, flat, self.device)
        hidden, logits, sent = self._run(iteration, newest)
        found: list[Tensor] = []
        drawn: Tensor | None = None
        if iteration.drawing:
            # a GPU computes the layers meanwhile; all cores of a CPU have done so
            constrained = [row for row in rows if row.matching is not None]
            masks = masks_of(iteration.known, self.vocab_size) if constrained else None
            learn = None if before is None or newest is None else before.result
            drawn = self._sampler.draw(logits, iteration.known, masks, learn)
            found.append(drawn)
        if iteration.prompts:
            most = max(targets.alternatives for targets in iteration.prompts)
            found += score_all(sent[0], sent[1], most, hidden, self.network.head, self.vocab_size)
        if iteration.scored:
            assert drawn is not None
            most = max(rows[i].alternatives for i in iteration.scored)
            both = (logits, drawn)
            if len(iteration.scored) < len(iteration.drawing):
                both = (logits.index_select(0, sent[-1]), drawn.index_select(0, sent[-1]))
            found += score(*both, most)
        iteration.launched(drawn, ReadBack(found, self.device))
        self._started = iteration
        if self.gpu is None:
            iteration.result()  # its duration ends here
        return iteration

    def _run(
        self, iteration: LocalIteration, newest: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Hidden states `[K, C]` of the places that are kept, logits `[draws, V]` after those of
        them that are drawn from, and the numbers `also`, on the device. `newest` `[draws]`: what
        the iteration in flight draws; token -1 - j is its token j."""
        if self.gpu is not None:
            return self.gpu(iteration, newest)
        flat, kept, drawn = iteration.flat, iteration.kept, iteration.drawn
        divided = [(slice(0, len(flat.tokens)), flat.spans)]
        if len(flat.tokens) > self._pass_tokens:
            divided = list(passes(flat.spans, len(flat.tokens), self._pass_tokens))
        parts = [(part, attention_on_cpu(spans, self.pool)) for part, spans in divided]
        tokens, positions = torch.tensor(flat.tokens), torch.from_numpy(flat.positions)
        found, bounds = [], np.searchsorted(kept, [part.stop for part, _ in parts])
        for (part, attend), own in zip(parts, np.split(kept, bounds[:-1]), strict=True):
            of_part = tokens[part]
            these = torch.from_numpy(own - part.start) if len(own) < len(of_part) else None
            found.append(self.network(of_part, positions[part], attend, these))
        hidden = torch.cat(found)
        logits = self.network.head(hidden[drawn]) if len(drawn) else hidden[:0]
        also = iteration.also
        return hidden, logits, send(also, self.device) if also else []

    @abstractmethod
    def lay_out(self, steps: Columns, rows: Sequence[KnownSequence], drafts: Guesses) -> Flat:
        """Where the tokens are stored. `rows`: with the steps' new blocks."""

    def forget(self) -> None:
        """Drops all sequences."""
        self._started = None
        self._sequences.clear()


def _free_bytes(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
