"""Tokens per second with speculation and without it, and the share of drafts that is accepted.

    python -m benchmarks.speculation                    # smollm2, under 4 minutes

Four parts, each with `--speculate` and without it, in turns on the same work: texts that are edited
and random text, one stream and as many as the batch holds. Tokens must be the same on both sides.
Edits are greedy, and random text is drawn at temperature 1: greedy text repeats itself sooner or
later, and then drafts are right. Policy `orca`, without HTTP.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.bare import GREEDY, BareRun, Job, jobs, loaded, run_bare
from benchmarks.harness.report import options, report
from client.experiment import Experiment, Found
from engine.speculation import Speculation
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from seams import Sampling
from text.chat import load_chat_template
from text.vocabulary import load_tokenizer

EDITING, RANDOM = "editing", "random text"
SAMPLINGS = {EDITING: GREEDY, RANDOM: Sampling(temperature=1)}
WITHOUT, WITH = "without", "with drafts"
ASK = (
    'Copy the following text, and replace the word "{old}" by the word "{new}" everywhere. Answer '
    "with the text alone.\n\n{text}"
)
# word, its replacement, text
EDITS: list[tuple[str, str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text())


def edits(model: str, requests: int, output_tokens: int | None = None) -> list[Job]:
    """Texts in which a word is replaced, as a chat with the model, in its own template. An answer
    is as long as its text, or has `output_tokens`."""
    tokenizer = load_tokenizer(model)
    template = load_chat_template(model, tokenizer)
    made = []
    for old, new, text in itertools.islice(itertools.cycle(EDITS), requests):
        content = ASK.format(old=old, new=new, text=text)
        ids = template.encode([{"role": "user", "content": content}])
        made.append(Job(ids, output_tokens or len(tokenizer.encode(text))))
    return made


def random_texts(vocab_size: int, requests: int, output_tokens: int, seed: int) -> list[Job]:
    sizes = [64] * requests, [output_tokens] * requests
    return jobs(np.random.default_rng(seed), vocab_size, *sizes)


def total(runs: Sequence[BareRun], of: str) -> int:
    """A count of all iterations."""
    return sum(getattr(record, of) for run in runs for record in run.tally.iterations)


METRICS: dict[str, Callable[[list[BareRun]], float]] = {
    "tokens_per_s": lambda runs: sum(r.tokens for r in runs) / sum(r.seconds for r in runs),
    "drafts": lambda runs: total(runs, "num_drafts"),
    "accepted": lambda runs: total(runs, "accepted_drafts"),
}


class Side:
    """A model, and what its server learnt from one run to the next."""

    def __init__(self, args: argparse.Namespace, speculate: int) -> None:
        self.model = loaded(args.model, args.dtype, args.streams, speculate=speculate)
        self._predictor = Predictor()
        self._speculation = Speculation(speculate, self._predictor) if speculate else None

    def run(
        self, groups: Sequence[Sequence[Job]], limit: int, sampling: Sampling, _: int = 0
    ) -> list[BareRun]:
        """Groups of jobs, one group after the other."""
        return [
            run_bare(
                self.model, Orca(), "dynamic", group, limit, sampling,
                predictor=self._predictor, speculation=self._speculation,
            )
            for group in groups
        ]  # fmt: skip


def same_tokens(found: Found) -> bool:
    """Of both sides, round by round."""
    both = ([[run.outputs for run in turn] for turn in found.turns[s]] for s in (WITHOUT, WITH))
    return all(ours == theirs for ours, theirs in zip(*both, strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, model="smollm2", dtype="auto", known_dtypes=("auto", "float32"))
    parser.add_argument("--speculate", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--streams", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--output-tokens", type=int, default=40, help="of each of many streams")
    args = parser.parse_args(argv)
    sides = {WITHOUT: Side(args, 0), WITH: Side(args, args.speculate)}
    vocab_size, streams, tokens = sides[WITHOUT].model.vocab_size, args.streams, args.output_tokens
    alone = [[job] for job in edits(args.model, 8)]
    works = {
        EDITING: [(alone, 1), ([edits(args.model, streams, tokens)], streams)],
        RANDOM: [
            ([[job] for job in random_texts(vocab_size, 2, 100, 1)], 1),
            ([random_texts(vocab_size, streams, tokens, 2)], streams),
        ],
    }
    for side in sides.values():
        side.run(alone[:2], 1, SAMPLINGS[EDITING])
    found = [
        Experiment(
            {
                name: partial(side.run, groups, limit, SAMPLINGS[work])
                for name, side in sides.items()
            },
            METRICS,
            WITHOUT,
            of={"work": f"{work}, {limit} stream{'s' * (limit > 1)}"},
        ).run(args.rounds)
        for work, of in works.items()
        for groups, limit in of
    ]
    info = sides[WITH].model.info
    head = f"{args.model}, {info.dtype}, --speculate {args.speculate}"
    same = "the same" if all(map(same_tokens, found)) else "NOT THE SAME"
    name = f"speculation-{info.dtype}"
    report(found, head, args.out, name, f"Tokens with drafts: {same}.", same_tokens=same)


if __name__ == "__main__":
    main()
