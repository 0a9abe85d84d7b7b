"""Constraints of all kinds, over vocabularies of all kinds."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from models.names import EMBEDDED
from requested import Constraint
from runtime.grammar import grammars as module
from runtime.grammar import matching as matching_module
from runtime.grammar.constraints import of_choice, of_grammar, of_schema
from runtime.grammar.grammars import GrammarError, Grammars, GrammarsBusyError
from runtime.grammar.matching import Matching
from tests.runtime.grammar.schemas import Schema, schemas
from tests.runtime.grammar.walks import allowed, shortest, text_of, walk
from tests.text.llama import BYTE_LEVEL, SENTENCEPIECE
from tests.text.test_gguf_vocabulary import tokenizer_of
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

VOCABULARIES = ["tiktoken", *BYTE_LEVEL, *SENTENCEPIECE]


def vocabulary(name: str) -> Tokenizer:
    if name == "tiktoken":
        return load_tokenizer(EMBEDDED)
    return tokenizer_of("byte-level" if name in BYTE_LEVEL else "sentencepiece", name)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(lambda: tokenizer)


# without times, of which jsonschema checks those of another standard
CHECKED = FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])


def check(schema: Schema, text: str) -> None:
    Draft202012Validator(schema, format_checker=CHECKED).validate(json.loads(text))


def test_there_are_two_hundred_schemas_and_all_are_schemas() -> None:
    found = schemas()
    assert len({json.dumps(schema) for schema in found}) == len(found) == 200
    for schema in found:
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("number", range(len(schemas())))
def test_a_finished_text_is_a_value_of_its_schema(
    number: int, grammars: Grammars, tokenizer: Tokenizer
) -> None:
    schema, finished = schemas()[number], 0
    for seed in range(4):
        ids = walk(grammars, tokenizer, of_schema(schema), shortest(tokenizer, seed))
        if ids[-1] in tokenizer.end_ids:
            finished += 1
            check(schema, text_of(tokenizer, ids))
    assert finished


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_vocabulary_spells_what_is_asked_for(name: str, seed: int) -> None:
    tokenizer = vocabulary(name)
    of = Grammars(lambda: tokenizer)
    for number in (8 * seed + 90, 8 * seed + 91, 8 * seed + 93):
        schema = schemas()[number]
        ids = walk(of, tokenizer, of_schema(schema), shortest(tokenizer, seed))
        if ids[-1] in tokenizer.end_ids:
            check(schema, text_of(tokenizer, ids))
    pattern = r"(a|bc)+ [0-9]{2,3} <\|im_end\|>ä"
    ids = walk(of, tokenizer, Constraint("regex", pattern), shortest(tokenizer, seed), 1000)
    assert re.fullmatch(pattern, text_of(tokenizer, ids))


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint("regex", "[0-9]{4}-[0-9]{2}"), "[0-9]{4}-[0-9]{2}"),
        (of_choice(["yes", 'a "quoted" one', "zwölf\n"]), '(?:yes|a "quoted" one|zwölf\n)'),
        (of_grammar('start: "a" (" b" | " c")+ "."'), r"a( b| c)+\."),
        (of_grammar('root ::= ("x" | "y") [0-9]+ "z"?'), "[xy][0-9]+z?"),
        (of_grammar('// a ::= b\n?start: "a" | "::=" item\nitem: "b"'), "a|::=b"),
        (Constraint("lark", "start: /[ab]{3}/ %json {\"const\": 7}"), "[ab]{3}7"),
    ],
)  # fmt: skip
def test_other_kinds_of_constraints(
    constraint: Constraint, pattern: str, grammars: Grammars, tokenizer: Tokenizer
) -> None:
    for seed in range(5):
        ids = walk(grammars, tokenizer, constraint, shortest(tokenizer, seed))
        assert re.fullmatch(pattern, text_of(tokenizer, ids))


@pytest.mark.parametrize("number", range(80, 101))
def test_forced_tokens_are_those_that_masks_alone_allow(
    number: int, grammars: Grammars, tokenizer: Tokenizer
) -> None:
    """The tokens are the same, whether several are taken at once or each is drawn."""
    constraint = of_schema(schemas()[number])

    def choices() -> Any:
        """Chooses by what was allowed, however often it was asked."""

        def choose(tokens: Sequence[int]) -> int:
            return tokens[0] if len(tokens) == 1 else random.Random(str(tokens)).choice(tokens)

        return choose

    together = walk(grammars, tokenizer, constraint, choices(), 60)
    alone = walk(grammars, tokenizer, constraint, choices(), 60, alone=True)
    shorter = min(len(together), len(alone))
    assert together[:shorter] == alone[:shorter]


def test_a_place_is_found_again_from_what_was_generated(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    constraint = of_schema(schemas()[95])
    ids = walk(grammars, tokenizer, constraint, shortest(tokenizer, 3), 40, alone=True)
    matching = Matching(grammars, constraint, ())
    for number, token in enumerate(ids):
        again = Matching(grammars, constraint, ids[:number])
        assert allowed(again, tokenizer.vocab_size) == allowed(matching, tokenizer.vocab_size)
        matching.take(token, alone=True)


def test_all_end_tokens_are_allowed_where_the_text_may_end() -> None:
    tokenizer = vocabulary("qwen2")
    assert len(tokenizer.end_ids) > 1
    matching = Matching(Grammars(lambda: tokenizer), Constraint("regex", "a?"), ())
    assert set(tokenizer.end_ids) < set(allowed(matching, tokenizer.vocab_size))
    end = max(tokenizer.end_ids)
    assert matching.take(end, alone=False) == [end]
    assert matching.error is None


def test_a_single_end_token_is_forced_where_nothing_else_may_follow(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    matching = Matching(grammars, Constraint("regex", "[ab]"), ())
    (a, *_) = tokenizer.encode("a")
    assert matching.take(a, alone=False) == [a, *tokenizer.end_ids]


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Constraint("regex", "(a"), "regex"),
        (Constraint("lark", "start: other"), "other"),
        (Constraint("json_schema", '{"type": "strin"}'), "strin"),
        (Constraint("json_schema", "[]"), "object"),
        (of_schema({"type": "string", "format": "nonsense"}), "nonsense"),
        (of_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (of_schema({"type": "integer", "minimum": 5, "maximum": 3}), "satisf"),
        (of_schema({"$ref": "https://example.com/schema"}), "example"),
        (Constraint("regex", "\ud800"), "surrogates"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_a_reason(
    constraint: Constraint, reason: str, grammars: Grammars
) -> None:
    for _ in range(2):  # also where the refusal is remembered
        with pytest.raises(GrammarError, match=reason) as refusal:
            grammars.compile(constraint)
        assert len(str(refusal.value)) < 400


def test_unknown_keywords_are_ignored_where_they_may_be(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    schema = {"type": "array", "items": {"const": 1}, "maxItems": 2, "uniqueItems": True}
    grammars.compile(of_schema(schema, lenient=True))


@pytest.mark.parametrize("text", ["[1]", "{", "7", '"x"'])
def test_a_schema_must_be_an_object(text: str) -> None:
    with pytest.raises(GrammarError, match="schema"):
        of_schema(text)


def test_a_vocabulary_without_an_end_has_no_grammars() -> None:
    tokenizer = Tokenizer(lambda text: list(text.encode()), {i: bytes([i]) for i in range(256)}, [])
    with pytest.raises(GrammarError, match="ends a text"):
        Grammars(lambda: tokenizer).compile(Constraint("regex", "a"))


def test_the_same_constraint_is_compiled_once_for_all_who_ask(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, builds, go = Grammars(lambda: tokenizer), list[Constraint](), threading.Event()
    build = of._build

    def slow(constraint: Constraint) -> Any:
        builds.append(constraint)
        assert go.wait(60)
        return build(constraint)

    monkeypatch.setattr(of, "_build", slow)
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(of.compile, Constraint("regex", "a+")) for _ in range(8)]
        go.set()
        assert len({done.result() for done in waiting}) == 1
    assert len(builds) == 1


def test_a_constraint_waits_for_its_turn_and_not_for_ever(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Grammars(lambda: tokenizer)
    taken = [of._checkers.get() for _ in range(module.AT_ONCE)]
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.01)
    with pytest.raises(GrammarsBusyError):
        of.compile(Constraint("regex", "c"))
    of._checkers.put(taken[0])
    of.compile(Constraint("regex", "c"))


CHAIN = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(7000)}


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (of_schema({"type": "integer", "multipleOf": 999_983}), "more than 1 s"),
        (of_schema({"$ref": "#/$defs/a0", "$defs": CHAIN}), "too large"),
        (Constraint("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000), "nested"),
        (of_schema({"enum": ["x" * 300_000]}), "up to 262144"),
    ],
    ids=["long", "deep", "nested", "large"],
)
def test_a_constraint_that_would_end_the_process_is_refused(
    constraint: Constraint, reason: str, grammars: Grammars
) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match=reason):
            grammars.compile(constraint)
    grammars.compile(Constraint("regex", "[a-z]+"))


def counted(of: Grammars, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are compiled from now on, the check in another process aside."""
    builds, build = list[str](), of._build

    def counting(constraint: Constraint) -> Any:
        builds.append(constraint.text)
        return build(constraint)

    monkeypatch.setattr(of, "_build", counting)
    return builds


def test_the_kept_constraints_are_bounded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    of = Grammars(lambda: tokenizer)
    for number in range(9):
        of.compile(Constraint("regex", f"a{{{number}}}"))
    assert len(of._kept) == 3
    for number in range(9):
        with pytest.raises(GrammarError):
            of.compile(Constraint("regex", f"(a{{{number}}}"))
    assert [one.text for one in of._kept] == ["a{7}", "a{8}", "(a{8}"]
    monkeypatch.setattr(module, "KEPT_CHARACTERS", 50)
    monkeypatch.setattr(module, "ROOM", 1)
    of.compile(Constraint("regex", "b" * 49))
    assert len(of._kept) == 1
    assert of._characters == 49


def test_what_an_accepted_request_needs_is_compiled_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither other constraints nor refused ones make its iterations compile it again."""
    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module, "KEPT_CHARACTERS", 100)
    of = Grammars(lambda: tokenizer)
    builds = counted(of, monkeypatch)
    one, other = Constraint("regex", "[a-z]{15}"), Constraint("regex", "[0-9]{9}")
    needs = [of.compile(one), of.compile(one), of.compile(other)]
    del needs[0]  # the other request with the same constraint still needs it
    for number in range(4):
        of.compile(Constraint("regex", f"b{{{number}}}"))
        with pytest.raises(GrammarError):
            of.compile(Constraint("regex", f"(b{{{number}}}"))
    for constraint in (one, other, one):
        Matching(of, constraint, ())
    assert [builds.count(needed.text) for needed in (one, other)] == [1, 1]
    assert len(of._kept) == 3
    with pytest.raises(GrammarsBusyError):  # and memory is bounded
        of.compile(Constraint("regex", "c" * (100 // module.ROOM)))
    needs.clear()
    of.compile(Constraint("regex", "c" * (100 // module.ROOM)))
    assert len(of._kept) == 2


def fail(matching: Matching, tokenizer: Tokenizer) -> None:
    """As where a lexer is full: an error from now on."""
    assert not matching._matcher.consume_token(max(tokenizer.end_ids) - 1)  # which is not allowed


def test_matchers_that_fail_begin_again_and_share_what_was_compiled_again(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, constraint = Grammars(lambda: tokenizer), Constraint("regex", "[a-z]+")
    (a, *_) = tokenizer.encode("a")
    rows = [Matching(of, constraint, [a]) for _ in range(3)]
    builds = counted(of, monkeypatch)
    for matching in rows:
        fail(matching, tokenizer)
        assert a in allowed(matching, tokenizer.vocab_size)
        assert matching.error is None
        assert matching.take(a, alone=True) == [a]
    assert len(builds) == 1
    not_a = next(t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == b"7")
    rows[0].take(not_a, alone=True)
    assert rows[0].error


def test_a_matcher_that_fails_twice_ends_its_request_with_an_error(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    """Its mask has the end token alone, which would pass for the end of a complete text."""
    (a, *_) = tokenizer.encode("a")
    matching = Matching(grammars, Constraint("regex", "[a-z]{9}"), [a])
    for _ in range(2):
        assert matching.error is None
        fail(matching, tokenizer)
        allowed(matching, tokenizer.vocab_size)
    assert matching.error


def test_a_constraint_that_is_slow_to_compile_is_not_compiled_between_iterations(
    grammars: Grammars, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching_module, "MOST_AGAIN_S", -1.0)
    matching = Matching(grammars, Constraint("regex", "[a-z]+"), ())
    fail(matching, tokenizer)
    allowed(matching, tokenizer.vocab_size)
    assert matching.error


@pytest.mark.parametrize("before", ["", "[ab]"])
def test_what_is_forced_at_once_is_bounded(
    before: str, grammars: Grammars, tokenizer: Tokenizer
) -> None:
    constraint = Constraint("regex", f"{before}c{{{module.MOST_FORCED_BYTES + 1}}}")
    (a, *_) = tokenizer.encode("a")
    if not before:
        with pytest.raises(GrammarError, match="at once; allowed"):
            grammars.compile(constraint)
        return
    grammars.compile(constraint)
    matching = Matching(grammars, constraint, ())
    assert matching.take(a, alone=False) == [a]
    assert "at once; allowed" in (matching.error or "")


def test_a_constraint_whose_masks_are_slow_fails(
    grammars: Grammars, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching_module, "FREE_S", -1.0)
    matching = Matching(grammars, Constraint("regex", "a"), ())
    allowed(matching, tokenizer.vocab_size)
    assert "ms each" in (matching.error or "")
