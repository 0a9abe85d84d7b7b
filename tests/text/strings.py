"""Mixed strings for comparing tokenizers: words, numbers, spaces, line ends, scripts, emoji and
special tokens, in any order, and code; and what reading them costs, as a count."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType

# what tokenizers differ in, by hand
CHOSEN = [
    "",
    " ",
    "Hello, world!",
    " a  b   c    d",
    "1 22  333   4444    55555",
    "x = 3.14159;  y = -2e10",
    "version 1.2.3-rc4, 2024-02-29, 10:20:30",
    "line\r\nline\r\n\r\n  line\n\n\n\tline",
    "  \r\n \t \n  x",
    "trailing   ",
    "it's we'll I'D they'VE 'tis rock'n'roll O'Reilly",
    "naïve café Ünïcödé e\u0301",
    "東京タワー、한국어 русский язык ελληνικά",
    "العربية ١٢٣ हिन्दी ४५६ עברית ไทย",
    "😀 👩‍👩‍👧 🇩🇪 👍🏽!!",
    "½ ² Ⅷ ①",
    "\u00a0non\u2003breaking\u3000spaces\u200b",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|eot_id|>",
    "<s> </s> [INST] <unk> <0x0A> <bos><end_of_turn>",
    "def f(x):\n    return x + 1  # comment\n\n\nclass A:\n\tpass\n",
    "=====----____####  ....",
    "ab\x00cd\x07\x7f",
    "▁already▁marked",
]

_WORDS = ["the", "of", "and", "to", "in", "for", "print", "return", "The", "Paris", "don't", "I'll"]
_PARTS = [
    lambda r: "".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=r.randint(1, 9))),
    lambda r: "".join(r.choices("ABCDEFGHXYZ", k=r.randint(1, 5))),
    lambda r: r.choice(_WORDS),
    lambda r: str(r.randrange(10 ** r.randint(1, 9))),
    lambda r: " " * r.choice([1, 1, 1, 1, 2, 3, 4, 8, 17]),
    lambda r: r.choice(["\n", "\r\n", "\n\n", "\t", "\r", " \n", "\n ", "\t\t"]),
    lambda r: "".join(r.choices("!?.,;:'\"()[]{}<>+-*/=_#@%&|~^$`\\", k=r.randint(1, 4))),
    lambda r: r.choice(
        "東京大阪日本語漢字カタカナひらがな한국어русскийελληνικάالعربيةहिन्दीไทยעברית"
    ),
    lambda r: "".join(r.choices("äöüßéèñçøåæœğışžčřłżÄÖÜÉ", k=r.randint(1, 4))),
    lambda r: r.choice(["😀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "🤖🔥", "\u200d", "\u0301"]),
    lambda r: r.choice(["½", "²", "Ⅷ", "①", "٣", "४", "\u00a0", "\u2003", "\u3000", "\u0085"]),
    lambda r: r.choice(["'s", "'LL", "'t", "'Re", "\u2019s", "'", "''"]),
    lambda r: r.choice(["<|im_end|>", "<|endoftext|>", "</s>", "<s>", "<|eot_id|>", "<0x41>", "▁"]),
]


def mixed(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        "".join(draw.choice(_PARTS)(draw) for _ in range(draw.randint(1, 20))) for _ in range(count)
    ]


@contextlib.contextmanager
def c_calls(of: type = object) -> Iterator[Counter[str]]:
    """Counts the calls of functions written in C, of objects of this type or of any."""
    counts: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and isinstance(getattr(called, "__self__", None), of):
            counts[getattr(called, "__name__", "")] += 1

    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(None)
