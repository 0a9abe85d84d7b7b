"""The budget of a step: where the time of one iteration goes, part by part.

    python -m benchmarks.kernels.step                        # 64 rows that decode over 130 tokens
    python -m benchmarks.kernels.step --dtype int8 --rows 1
    python -m benchmarks.kernels.step --rows 1 --tokens 512 --past 0    # a prefill
    python -m benchmarks.kernels.step --model smollm2 --dtype auto    # as its file has them

Each part has the bytes that it must read and the operations that it must do; its limit is the
longer of the two times that the machine needs for them (benchmarks/limits.py). Optimise parts that
reach a small share of their limit and take much of the step. Parts are timed inside whole steps;
the remainder, Python's and torch's overhead between the parts, is the step minus all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from benchmarks.harness.report import options, save, table
from benchmarks.harness.spent import Spent
from benchmarks.limits import (
    COMPUTES_STORED,
    Limits,
    describe,
    measure,
    needs,
    pass_of,
    stored_bits,
)
from model import DTYPES, LoadOptions, load_model
from models.weights.checkpoint import open_source
from requested import Sampling
from runtime.attention import RaggedAttention
from runtime.executor import Executor
from seams import Opening, Step

ROUNDS = 7
AS_STORED = "auto"  # the types of a GGUF file
LINEARS = ("qkv", "attn_proj", "fc", "gate_up", "mlp_proj", "head")
NORMS = ("ln_1", "ln_2", "ln_f", "attn_norm", "mlp_norm")  # a rotation contains its own
OTHERS = ("rotation", "gated")


@dataclass(frozen=True, slots=True)
class Shape:
    """One iteration: rows, the new tokens of each, and those that it has already."""

    rows: int
    tokens: int
    past: int


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    seconds: float
    bytes: float  # that must be read
    operations: int  # that must be done

    def limit_s(self, limits: Limits, dtype: str) -> float:
        return max(
            self.bytes / limits.read_bytes_per_s, self.operations / limits.operations_per_s[dtype]
        )


def watch(model: Executor, spent: Spent) -> None:
    """Wraps the parts of a model permanently."""
    for path, module in model.network.named_modules():
        name = path.rpartition(".")[2]
        part = "norms" if name in NORMS else "embedding" if name in ("wte", "wpe") else name
        if part in (*LINEARS, *OTHERS, "norms", "embedding"):
            kind: Any = type(module)  # whose own __call__ may skip nn.Module's
            timed = {"__call__": spent.over(part, kind.__call__)}
            module.__class__ = type(kind.__name__, (kind,), timed)
    lay_out = model.lay_out

    def laid_out(*of: Any) -> Any:
        flat = spent.over("layout", lay_out)(*of)
        attend = flat.attend or RaggedAttention(flat.spans, model.pool)
        return replace(flat, attend=spent.over("attention", attend))

    model.lay_out = laid_out  # type: ignore[assignment,method-assign]
    sampler: Any = model._sampler
    sampler.draw = spent.over("sampling", sampler.draw)


def timed_steps(
    model: Executor, shape: Shape, sampling: Sampling, needed: Mapping[str, tuple[float, int]]
) -> list[Part]:
    spent, length = Spent(time.perf_counter), shape.past + shape.tokens
    watch(model, spent)
    each = -(-length // model.block_tokens)
    blocks = [range(r * each, (r + 1) * each) for r in range(shape.rows)]
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS + 1):  # the first fills the kernels' caches
        model.open([Opening(r, [1 + r] * length, length, sampling) for r in range(shape.rows)])
        for r in range(shape.rows if shape.past else 0):
            model.start([Step(r, 0, shape.past, False, blocks[r])], ()).result()
        spent.seconds.clear()
        steps = [
            Step(r, shape.past, shape.tokens, True, () if shape.past else blocks[r])
            for r in range(shape.rows)
        ]
        start_s = time.perf_counter()
        model.start(steps, ()).result()
        whole = time.perf_counter() - start_s
        rounds.append({**spent.seconds, "rest": whole - sum(spent.seconds.values())})
        model.forget()
    return [
        Part(name, median(r.get(name, 0.0) for r in rounds[1:]), *needed.get(name, (0.0, 0)))
        for name in rounds[-1]
    ]


def card(parts: Sequence[Part], limits: Limits, dtype: str) -> str:
    whole = sum(part.seconds for part in parts)
    everything = Part("step", whole, sum(p.bytes for p in parts), sum(p.operations for p in parts))
    rows = []
    for part in [*sorted(parts, key=lambda p: -p.seconds), everything]:
        limit_s = part.limit_s(limits, dtype)
        rows.append((
            part.name, f"{part.seconds * 1e3:.2f}", f"{part.seconds / whole:.0%}",
            f"{part.bytes / 1e6:.0f}", f"{part.operations / 1e9:.1f}", f"{limit_s * 1e3:.2f}",
            f"{limit_s / part.seconds:.2f}" if limit_s else "-",
        ))  # fmt: skip
    return table("part | ms | of the step | MB | GFLOP | limit ms | of its limit", rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(
        __doc__, rounds=None, model="random:gpt2-medium", dtype="bfloat16",
        known_dtypes=(*DTYPES, AS_STORED),
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=64, help="default: %(default)s")
    parser.add_argument(
        "--tokens", type=int, default=1,
        help="new tokens of each row; more than one: saved as prefill",
    )  # fmt: skip
    parser.add_argument("--past", type=int, default=130, help="earlier tokens of each row")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: %(default)s")
    parser.add_argument("--top-p", type=float, default=1.0, help="default: %(default)s")
    args = parser.parse_args(argv)
    shape = Shape(args.rows, args.tokens, args.past)
    dtype, bits = args.dtype, None
    if dtype == AS_STORED:
        source = open_source(args.model, seed=0)
        dtype, bits = COMPUTES_STORED, stored_bits(source)
    limits = measure([dtype])
    model = load_model(LoadOptions("dynamic", args.model, "cpu", args.dtype, 0, args.rows))
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, seed=0)
    done = pass_of([(shape.past, shape.tokens, True)] * shape.rows)
    needed = needs(done, model.network.config, dtype, bits)
    parts = timed_steps(model, shape, sampling, needed)
    limits = limits.or_better(measure([dtype]))
    head = (
        f"{args.model} in {args.dtype}: {shape.rows} rows of {shape.tokens} new tokens over "
        f"{shape.past}; the machine {describe(limits)}\n"
        f"linear layers: {model.info.kernels}\n\n"
    )
    report = {"shape": asdict(shape), "limits": asdict(limits), "parts": [asdict(p) for p in parts]}
    save(
        report,
        head + card(parts, limits, dtype),
        args.out,
        "step" if args.tokens == 1 else "prefill",
    )


if __name__ == "__main__":
    main()
