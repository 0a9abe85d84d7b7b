"""Stop strings and special tokens, against definitions that look at the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.server.hash_app import byte_tokenizer
from text.stops import StopFinder
from text.tokenizer import Tokenizer

FEW = st.text("ab€", max_size=30)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """What stands before the first complete stop string, character by character."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(st.lists(FEW, max_size=12), STOPS)
def test_pieces_joined_are_the_text_before_the_first_complete_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    finder = StopFinder(stops)
    joined = "".join([*map(finder.push, pieces), finder.finish()])
    assert (joined, finder.found) == cut("".join(pieces), stops)


@given(FEW, STOPS)
def test_a_stop_string_is_found_with_its_last_character(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    for end, character in enumerate(text, 1):
        finder.push(character)
        assert finder.found == cut(text[:end], stops)[1]


@given(FEW, STOPS)
def test_only_text_that_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    sent = finder.push(text)
    if not finder.found:
        held = text[len(sent) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def special_tokenizer() -> Tokenizer:
    """One special token is a part of another, one a single character."""
    special = {"<a>": 256, "<ab>": 257, "b>": 258, "é": 259}
    table = {byte: bytes([byte]) for byte in range(256)}
    table |= {token: text.encode() for text, token in special.items()}
    return Tokenizer(lambda t: list(t.encode()), table, [], special)


PIECES = st.lists(st.sampled_from(["<a>", "<ab>", "<", "a>", "b>", "\ufdd0", "é"]))


@given(PIECES.map("".join))
def test_a_clients_special_tokens_stay_text_in_a_template(text: str) -> None:
    tokenizer = special_tokenizer()
    ids = tokenizer.encode_template(f"<a>{tokenizer.shield(text)}<ab>")
    assert ids == [256, *text.replace("\ufdd0", "").encode(), 257]


@given(st.text())
def test_without_special_tokens_a_template_is_plain_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.encode_template(tokenizer.shield(text)) == tokenizer.encode(
        text.replace("\ufdd0", "")
    )
