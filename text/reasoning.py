"""The reasoning before an answer, between `<think>` and `</think>`: found while it arrives, and
left free by the grammar of what follows it.

Families whose chat templates name these marks write it: Qwen3, SmolLM3, DeepSeek's distills.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from text.stops import begins
from text.tools.grammar import mark_of
from text.tools.parsing import Parser, Piece, ReasoningPiece

OPENING, CLOSING = "<think>", "</think>"

Place = Literal["open", "possible", "none"]


def place_of(prompt: str) -> Place:
    """Of the reasoning in an answer: its prompt has opened it, the answer may open it, or the
    prompt has closed it."""
    end = prompt.rstrip()
    return "none" if end.endswith(CLOSING) else "open" if end.endswith(OPENING) else "possible"


class ReasoningParser:
    """Takes the reasoning out of an answer, without its marks and the blanks around it; what
    follows is for `rest`. `kept`: it stays in the text as it is."""

    def __init__(self, place: Place, rest: Parser | None, *, kept: bool = False) -> None:
        self._within = place == "open"
        self._before = place == "possible"
        self._rest = rest
        self._kept = kept
        self._held = ""
        self._blank = not kept  # since the newest mark there were blanks alone: they are left out

    @property
    def calls(self) -> int:
        return 0 if self._rest is None else self._rest.calls

    @property
    def complete(self) -> bool:
        return self._rest is not None and self._rest.complete

    @property
    def reasons(self) -> bool:
        return self._within and not self._kept

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        if self._before:
            self._begin()
        pieces = self._thought() if self._within else []
        if not (self._before or self._within):
            pieces += self._answer()
        return pieces

    def finish(self) -> Sequence[Piece]:
        pieces: list[Piece] = self._piece(self._held.rstrip()) if self._within else self._answer()
        return [*pieces, *([] if self._rest is None else self._rest.finish())]

    def _begin(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPENING):
            self._before, self._within = False, True
            self._held = self._held if self._kept else text[len(OPENING) :]
        elif not OPENING.startswith(text):
            self._before = self._blank = False

    def _thought(self) -> list[Piece]:
        """What certainly belongs to it."""
        text, at = self._held, self._held.find(CLOSING)
        self._within = at < 0
        if self._within:
            at = begins(text, CLOSING)
            at = at if self._kept else len(text[:at].rstrip())
            self._held = text[at:]
            return self._piece(text[:at])
        end = at + len(CLOSING)
        self._held = text[end:]
        pieces = self._piece(text[:end] if self._kept else text[:at].rstrip())
        self._blank = not self._kept
        return pieces

    def _piece(self, thought: str) -> list[Piece]:
        if self._blank:
            thought = thought.lstrip()
            self._blank = not thought
        if not thought:
            return []
        return [thought if self._kept else ReasoningPiece(thought)]

    def _answer(self) -> list[Piece]:
        text, self._held = self._held, ""
        if self._blank and not self._before:
            text = text.lstrip()
            self._blank = not text
        if self._rest is None:
            return [text] if text else []
        return list(self._rest.push(text))


def grammar_after_reasoning(rule: str, place: Place, special_ids: Mapping[str, int]) -> str:
    """A grammar whose texts are reasoning, and then what the right side of a rule describes."""
    opening, closing = (mark_of(text, special_ids) for text in (OPENING, CLOSING))
    lazy = "" if CLOSING in special_ids else "[lazy]"
    return "\n".join(
        [
            f"start: {'reasoning' if place == 'open' else f'({opening} reasoning)?'} answer",
            r'reasoning: thought ("\n" | "\n\n")?',
            f"thought{lazy}: THOUGHT {closing}",
            r"THOUGHT: /(.|\n)*/",
            f"answer: {rule}",
        ]
    )
