"""Reasoning before an answer, as Qwen3, SmolLM3 and DeepSeek's distills write it, however it was
cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.tools.test_grammar import accepts
from text.reasoning import Place, ReasoningParser, grammar_after_reasoning, place_of
from text.tools.forms import HERMES
from text.tools.parsing import CallParser, CallPiece, ReasoningPiece

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
ANSWERS: list[tuple[Place, str, str, str, int]] = [
    # of the prompt, the answer, its reasoning, its text, its calls
    ("possible", "<think>\nIs it?\n\nYes.\n</think>\n\nFine.\n", "Is it?\n\nYes.", "Fine.\n", 0),
    ("possible", "<think>\n\n</think>\n\nFine.", "", "Fine.", 0),
    ("possible", "\n<think>\nCut <off", "Cut <off", "", 0),
    ("possible", "<thinker> </think>", "", "<thinker> </think>", 0),
    ("possible", "  <th", "", "  <th", 0),
    ("possible", f"<think>{CALL}</think>{CALL}", CALL, "", 1),
    ("open", f"So </thin </think>\n{CALL}", "So </thin", "", 1),
    ("open", "\nNo end ", "No end", "", 0),
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("kept", [False, True])
@given(cuts=st.lists(st.integers(0, 80), max_size=6))
def test_reasoning_is_found_however_the_answer_was_cut(
    answer: tuple[Place, str, str, str, int], kept: bool, cuts: list[int]
) -> None:
    place, written, reasoning, text, calls = answer
    parser = ReasoningParser(place, CallParser(HERMES, ["f"]), kept=kept)
    ends = [*sorted(cuts), len(written)]
    pieces = [
        piece
        for begin, end in zip([0, *ends], ends, strict=False)
        for piece in parser.push(written[begin:end])
    ]
    pieces += parser.finish()
    told = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece))
    said = "".join(piece for piece in pieces if isinstance(piece, str))
    names = [p.name for p in pieces if isinstance(p, CallPiece) and p.name is not None]
    assert names == ["f"] * calls == ["f"] * parser.calls
    if kept:
        assert told == ""
        assert said.rstrip() == (written[: -len(CALL)] if calls else written).rstrip()
    else:
        assert (told, said) == (reasoning, text)


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ("<|im_start|>assistant\n", "possible"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "none"),
        ("<|Assistant|><think>\n", "open"),
    ],
)
def test_a_prompt_may_have_opened_or_closed_the_reasoning(prompt: str, place: Place) -> None:
    assert place_of(prompt) == place


@pytest.mark.parametrize(
    "rule", ['%json {"type": "boolean"}', "/true/", "%lark {\nstart: X\nX: /true/\n}"]
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_grammar_begins_behind_the_reasoning(rule: str, nested: bool) -> None:
    if nested:
        rule = f"%lark {{\nstart: answer\nanswer: {rule}\n}}"
    free, opened = (grammar_after_reasoning(rule, place, {}) for place in ("possible", "open"))
    thought = 'Is it "true"?\n<b> \n</think>'
    for answer, after_free, after_open in (
        ("true", True, False),
        (f"<think>{thought}\n\ntrue", True, True),
        (f"{thought}true", False, True),
        (f"<think>{thought}no", False, False),
        ("<think>true", False, False),
    ):
        assert (accepts(free, answer), accepts(opened, answer)) == (after_free, after_open), answer
