"""What masks cost: tokens per second of 64 rows of which some have a constraint.

    python -m benchmarks.masks                        # smollm2 and random:qwen3-0.6b
    python -m benchmarks.masks --out results/reference-masks

The rows are the same requests with and without a constraint. `records` is a JSON array that is
longer than what they generate: its grammar forces many tokens, which are generated without being
drawn. `text` is letters, digits, spaces and punctuation: nothing is forced, and masks only cost. A
text's first masks cost most, so a turn has as many iterations as a short answer has tokens.
Sides take turns; ratios are to no constraint.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.bare import drive, loaded, threads_kept
from benchmarks.harness.report import options, report
from client.experiment import Experiment, Found
from engine.inference import Inference
from model import DTYPES
from models.names import EMBEDDED, RANDOM_PREFIX
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import Grammars
from scheduling.policies.orca import Orca
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

ROWS = 64
PROMPT_TOKENS = 4
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "paid", "open"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "email", "tags", "address"],
    "additionalProperties": False,
}
MANY = of_schema({"type": "array", "items": RECORD, "minItems": 1000})
TEXT = Constraint("regex", "[A-Za-z0-9 ,.;:!?'\n-]+")
METRICS: dict[str, Callable[[tuple[float, float]], float]] = {
    "tokens_per_s": lambda turn: turn[0],  # forced ones included
    "drawn_per_s": lambda turn: turn[1],
}
SIDES = {  # rows with a constraint, and theirs
    "none": (0, TEXT),
    "16 rows of records": (16, MANY),
    "64 rows of records": (64, MANY),
    "64 rows of text": (64, TEXT),
}


def tokenizer_of(model: str, vocab_size: int) -> Tokenizer:
    """Of a random model: the embedded vocabulary, and random words up to its network's size."""
    if not model.startswith(RANDOM_PREFIX):
        return load_tokenizer(model)
    embedded, words = load_tokenizer(EMBEDDED), random.Random(0)
    table = dict(enumerate(embedded.spellings))
    taken = set(table.values())
    while len(table) < vocab_size:
        word = "".join(words.choices("etaoinshrdlucm", k=words.randint(3, 9)))
        word = words.choice(["", " ", " ", '"']) + word
        if (spelled := word.encode()) not in taken:
            taken.add(spelled)
            table[len(table)] = spelled
    return Tokenizer(embedded.encode, table, embedded.end_ids, embedded.special_ids)


@threads_kept()
def measure(name: str, dtype: str, iterations: int, rounds: int) -> Found:
    model = loaded(name, dtype, ROWS)
    tokenizer = tokenizer_of(name, model.vocab_size)
    model.grammars = Grammars(lambda: tokenizer)
    for constraint in (MANY, TEXT):
        model.grammars.compile(constraint)
    sides = {side: partial(run, model, iterations, *asked) for side, asked in SIDES.items()}
    run(model, 4, ROWS, MANY)  # first use
    of = {"model": name, "vocab_size": model.vocab_size}
    return Experiment(sides, METRICS, "none", of=of).run(rounds)


def run(
    model: Executor, iterations: int, masked: int, constraint: Constraint, _: int = 0
) -> tuple[float, float]:
    """Generated and drawn tokens per second of so many iterations, behind those of the prompts."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, model.vocab_size, PROMPT_TOKENS).tolist() for _ in range(ROWS)]
    most = model.num_blocks * model.block_tokens // ROWS - PROMPT_TOKENS
    work = []
    for row, prompt in enumerate(prompts):
        asked = Sampling(row, 0.8, constraint=constraint if row < masked else None)
        work.append(Inference(prompt, min(most, 200), asked, time.perf_counter()))
    measured = drive(model, Orca(), work, 1 + iterations, ROWS).iterations[1:]
    model.forget()
    seconds = sum(record.duration_s for record in measured)
    return (
        sum(record.num_generated for record in measured) / seconds,
        sum(record.num_drawn for record in measured) / seconds,
    )


def main() -> None:
    parser = options(__doc__, dtype="auto", known_dtypes=["auto", *DTYPES])
    parser.add_argument("--models", nargs="+", default=["smollm2", "random:qwen3-0.6b"])
    parser.add_argument("--iterations", type=int, default=48, help="of a turn (48)")
    args = parser.parse_args()
    found = [measure(name, args.dtype, args.iterations, args.rounds) for name in args.models]
    report(found, f"{ROWS} rows, the bare loop", args.out, "masks")


if __name__ == "__main__":
    main()
