"""Stop strings and special tokens, against definitions that look at the whole text."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.hash_app import byte_tokenizer
from tests.text.strings import c_calls
from text.stops import StopFinder, Stops
from text.tokenizer import Tokenizer, longest_of

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
    finder = StopFinder(Stops(stops))
    joined = "".join([*map(finder.push, pieces), finder.finish()])
    assert (joined, finder.found) == cut("".join(pieces), stops)


@given(FEW, STOPS)
def test_a_stop_string_is_found_with_its_last_character_and_nothing_else_is_held_back(
    text: str, stops: list[str]
) -> None:
    finder, sent = StopFinder(Stops(stops)), ""
    for end, character in enumerate(text, 1):
        sent += finder.push(character)
        assert finder.found == cut(text[:end], stops)[1]
        if not finder.found:
            held = text[len(sent) : end]
            assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_each_character_is_looked_at_once_or_twice() -> None:
    """Whatever is held back, and however often a stop string nearly comes."""
    stops = Stops([" " * 1000 + "!", " " * 999 + "ab", "?" * 1000])
    finder = StopFinder(stops)
    text = (" " * 1500 + "?" * 500 + " a") * 4
    with c_calls() as called:
        for start in range(0, len(text), 4):
            finder.push(text[start : start + 4])
    states = len(stops.begun)  # each is made once
    assert len(text) <= called["get"] <= 2 * (len(text) + states)


def test_long_stop_strings_cost_nothing_before_they_come() -> None:
    stops = Stops([chr(65 + i) * 1023 + "!" for i in range(16)])
    StopFinder(stops).push("the text has none of them: BB")
    assert len(stops.begun) == 3


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
    plain = list(text.replace("\ufdd0", "").encode())
    assert ids == [256, *plain, 257]
    without = byte_tokenizer()
    assert without.encode_template(without.shield(text)) == plain


@given(st.lists(st.text("<|a>", min_size=1), min_size=1), st.text("<|a>", max_size=30))
def test_the_longest_name_is_found_at_the_first_place(names: list[str], text: str) -> None:
    places = ((at, name) for at in range(len(text)) for name in names if text.startswith(name, at))
    first = min(places, key=lambda place: (place[0], -len(place[1])), default=None)
    found = re.search(longest_of(sorted(set(names))), text)
    assert first == (None if found is None else (found.start(), found[0]))


def test_the_search_for_names_takes_one_branch_a_character() -> None:
    """Gemma's files have 6,242 control tokens of this form."""
    names = ["[multimodal]", "<bos>", "<start_of_turn>", *(f"<unused{i}>" for i in range(6242))]
    parser = importlib.import_module("re._parser")

    def branches(parsed: Iterable[Any]) -> Iterator[Any]:
        for operation, argument in parsed:
            if str(operation) == "BRANCH":
                yield argument[1]
            for inner in argument if isinstance(argument, tuple) else ():
                inners = inner if isinstance(inner, list) else [inner]
                for one in inners:
                    if isinstance(one, parser.SubPattern):
                        yield from branches(one)

    found = list(branches(parser.parse(longest_of(sorted(names)))))
    assert found
    for alternatives in found:
        firsts = [alternative[0] for alternative in alternatives]
        assert len({str(first) for first in firsts}) == len(firsts) <= 11
