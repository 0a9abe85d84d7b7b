"""The work: texts in which a word is replaced, whose answers are mostly in their prompts, and
random prompts."""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.bare import Job
from text.chat import load_chat_template
from text.vocabulary import load_tokenizer

ASK = (
    'Copy the following text, and replace the word "{old}" by the word "{new}" everywhere. Answer '
    "with the text alone.\n\n{text}"
)
EDITS = [
    (
        "request", "job",
        "The engine keeps one queue. A request waits in it until the policy admits it. Then the "
        "request holds blocks of memory, and every iteration advances it by one token. When the "
        "last token is there, the answer leaves, and the blocks are free again. A request that "
        "could never fit is refused.",
    ),
    (
        "river", "canal",
        "The river comes down from the hills and turns twice before it reaches the town. In spring "
        "the river is high, and the lower road is closed for a week or two. Boats wait at the old "
        "bridge. In summer children swim there, and the river is so low that one can walk across.",
    ),
    (
        "baker", "cook",
        "The baker rises at three, when the street is dark. He lights the oven, weighs the flour "
        "and lets the dough rest. At five the first loaves are ready. The baker puts them into "
        "the window, has a coffee and unlocks the shop. At noon the shelves are empty.",
    ),
    (
        "train", "bus",
        "The train leaves at ten past seven and stops at every village of the valley. Pupils sit "
        "in the first carriage, and workers sleep in the last. When snow lies on the line, the "
        "train is late, which no one minds. In the evening the same train brings them home.",
    ),
    (
        "garden", "yard",
        "Behind the house lies a garden with four old apple trees. A wall of grey stone keeps the "
        "wind out. The garden has been in the family for ninety years, and each of its owners "
        "planted something new. In autumn the neighbours come with baskets and help to pick.",
    ),
    (
        "letter", "parcel",
        "The letter had been on its way for eleven days. Two of its stamps came from a country "
        "that no longer exists. She opened the letter with a kitchen knife, read it at the "
        "window, and read it again. Then she put on her coat and went to the station.",
    ),
    (
        "lamp", "candle",
        "Every ship that enters the harbour looks for the lamp on the northern pier. It has been "
        "lit each night since the great storm. The keeper cleans the glass in the morning and "
        "fills in a book. In forty years the lamp was dark for a single hour.",
    ),
    (
        "teacher", "doctor",
        "The teacher came to the island as a young woman and meant to stay for a year. There were "
        "nine children in the school then, and now there are four. The teacher knows the parents "
        "of all of them, since she taught them, too. Next summer she will leave.",
    ),
]  # fmt: skip


def edits(model: str, requests: int, output_tokens: int | None = None) -> list[Job]:
    """As a chat with the model, in its own template. An answer is as long as its text, or has
    `output_tokens`."""
    tokenizer = load_tokenizer(model)
    template = load_chat_template(model, tokenizer)
    jobs = []
    for old, new, text in itertools.islice(itertools.cycle(EDITS), requests):
        content = ASK.format(old=old, new=new, text=text)
        ids = template.encode([{"role": "user", "content": content}])
        jobs.append(Job(ids, output_tokens or len(tokenizer.encode(text))))
    return jobs


def random_texts(vocab_size: int, requests: int, output_tokens: int, seed: int) -> list[Job]:
    rng = np.random.default_rng(seed)
    return [Job(rng.integers(0, vocab_size, 64).tolist(), output_tokens) for _ in range(requests)]
