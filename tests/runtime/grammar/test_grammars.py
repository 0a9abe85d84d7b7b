"""Constraints of all kinds, over vocabularies of all kinds: what they spell, what is refused, what
is kept, and the process that compiles them first."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from llguidance import LLMatcher

from models.names import EMBEDDED
from runtime.grammar import grammars as module
from runtime.grammar.checking import Checker
from runtime.grammar.constraints import of_choice, of_grammar, of_schema
from runtime.grammar.grammars import LIMITS, GrammarError, Grammars, GrammarsBusyError
from runtime.grammar.matching import Matching
from seams import Constraint
from tests.runtime.grammar.conftest import allowed, shortest, text_of, walk
from tests.runtime.grammar.schemas import SCHEMAS, Schema
from tests.text.llama import BYTE_LEVEL, SENTENCEPIECE
from tests.text.test_gguf_vocabulary import tokenizer_of
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

VOCABULARIES = ["tiktoken", *BYTE_LEVEL, *SENTENCEPIECE]
# without times, of which jsonschema checks those of another standard
CHECKED = FormatChecker(["date", "uuid"])


def vocabulary(name: str) -> Tokenizer:
    if name == "tiktoken":
        return load_tokenizer(EMBEDDED)
    return tokenizer_of("byte-level" if name in BYTE_LEVEL else "sentencepiece", name)


def finished(of: Grammars, tokenizer: Tokenizer, schema: Schema, seed: int) -> bool:
    """Whether a walk comes to an end, where its text is a value of the schema."""
    ids = walk(of, tokenizer, of_schema(schema), shortest(tokenizer, seed))
    if ids[-1] in tokenizer.end_ids:
        value = json.loads(text_of(tokenizer, ids))
        Draft202012Validator(schema, format_checker=CHECKED).validate(value)
        return True
    return False


def test_a_finished_text_is_a_value_of_its_schema(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """Of each schema, some text is finished."""
    for schema in SCHEMAS:
        assert any(finished(grammars, tokenizer, schema, seed) for seed in range(4)), schema


MIXED = r"(a|bc)+ [0-9]{2,3} <\|im_end\|>ä"
OTHERS = [
    (Constraint("regex", MIXED), MIXED),
    (of_choice(["yes", 'a "quoted" one', "zwölf\n"]), '(?:yes|a "quoted" one|zwölf\n)'),
    (of_grammar('root ::= ("x" | "y") [0-9]+ "z"?'), "[xy][0-9]+z?"),
    (of_grammar('// a ::= b\n?start: "a" | "::=" item\nitem: "b"'), "a|::=b"),
    (Constraint("lark", "start: /[ab]{3}/ %json {\"const\": 7}"), "[ab]{3}7"),
]  # fmt: skip


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_kind_of_vocabulary_spells_what_is_asked_for(name: str) -> None:
    tokenizer = vocabulary(name)
    of = Grammars(lambda: tokenizer)
    for number, schema in enumerate(SCHEMAS[3::5]):
        finished(of, tokenizer, schema, number)
    for constraint, pattern in OTHERS:
        ids = walk(of, tokenizer, constraint, shortest(tokenizer, 0), 1000)
        assert re.fullmatch(pattern, text_of(tokenizer, ids))


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Constraint("lark", "start: other"), "other"),
        (Constraint("json_schema", "[]"), "object"),
        (of_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (of_schema({"type": "integer", "minimum": 5, "maximum": 3}), "satisf"),
        (Constraint("regex", "\ud800"), "surrogates"),
        (Constraint("regex", f"c{{{module.MOST_FORCED_BYTES + 1}}}"), "at once; allowed"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_a_reason(
    constraint: Constraint, reason: str, grammars: Grammars
) -> None:
    for _ in range(2):  # also where the refusal is remembered
        with pytest.raises(GrammarError, match=reason) as refusal:
            grammars.compile(constraint)
        assert len(str(refusal.value)) < 400


CHAIN = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(7000)}


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (of_schema({"type": "integer", "multipleOf": 999_983}), "more than 1 s"),
        (of_schema({"$ref": "#/$defs/a0", "$defs": CHAIN}), "too large"),
        (of_schema({"enum": ["x" * 300_000]}), "up to 262144"),
    ],
    ids=["long", "deep", "large"],
)
def test_a_constraint_that_would_end_the_process_is_refused_and_ends_none_but_its_own(
    constraint: Constraint, reason: str, tokenizer: Tokenizer
) -> None:
    of = Grammars(lambda: tokenizer)
    of.compile(Constraint("regex", "[a-z]*"))
    checkers = list(of._checkers.queue)
    before = [checker._process for checker in checkers]
    for _ in range(2):
        with pytest.raises(GrammarError, match=reason):
            of.compile(constraint)
    of.compile(Constraint("regex", "[a-z]+"))
    assert [checker._process for checker in checkers] == before


# --- what is compiled when, and kept --------------------------------------------------------


def counted(
    of: Grammars, monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object] = lambda: None
) -> list[str]:
    """The texts that are compiled from now on, the check in another process aside."""
    builds, build = list[str](), of._build

    def counting(constraint: Constraint) -> Any:
        builds.append(constraint.text)
        wait()
        return build(constraint)

    monkeypatch.setattr(of, "_build", counting)
    return builds


def test_the_same_constraint_is_compiled_once_for_all_who_ask(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, go = Grammars(lambda: tokenizer), threading.Event()
    builds = counted(of, monkeypatch, lambda: go.wait(60))
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


def test_the_kept_constraints_are_bounded_and_refused_ones_go_first(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    of = Grammars(lambda: tokenizer)
    for number in range(5):
        of.compile(Constraint("regex", f"a{{{number}}}"))
    assert len(of._kept) == 3
    for number in range(5):
        with pytest.raises(GrammarError):
            of.compile(Constraint("regex", f"(a{{{number}}}"))
    assert [one.text for one in of._kept] == ["a{3}", "a{4}", "(a{4}"]


def test_what_an_accepted_request_needs_is_compiled_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither other constraints nor refused ones make its iterations compile it again."""
    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module, "KEPT_CHARACTERS", 100)
    of = Grammars(lambda: tokenizer)
    builds = counted(of, monkeypatch)
    one = Constraint("regex", "[a-z]{15}")
    needs = [of.compile(one), of.compile(one)]
    del needs[0]  # the other request with the same constraint still needs it
    for number in range(4):
        of.compile(Constraint("regex", f"b{{{number}}}"))
    for _ in range(2):
        Matching(of, one, ())
    assert builds.count(one.text) == 1
    long = Constraint("regex", "c" * (100 // module.ROOM))
    with pytest.raises(GrammarsBusyError):  # and memory is bounded
        of.compile(long)
    needs.clear()
    of.compile(long)


# --- matchers that fail ---------------------------------------------------------------------


def fail(matching: Matching, tokenizer: Tokenizer) -> list[int]:
    """As where a lexer is full: an error from now on. What its next mask allows."""
    assert not matching._matcher.consume_token(max(tokenizer.end_ids) - 1)  # which is not allowed
    return allowed(matching, tokenizer.vocab_size)


def test_matchers_that_fail_begin_again_once_and_share_what_was_compiled_again(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask of one that fails has the end token alone, which would pass for the end of a
    complete text: the second time, its request ends with an error."""
    monkeypatch.setattr("runtime.grammar.matching.MOST_AGAIN_S", math.inf)  # on a busy machine, too
    of, constraint = Grammars(lambda: tokenizer), Constraint("regex", "[a-z]+")
    (a, *_) = tokenizer.encode("a")
    rows = [Matching(of, constraint, [a]) for _ in range(3)]
    builds = counted(of, monkeypatch)
    for matching in rows:
        assert a in fail(matching, tokenizer)
        assert matching.error is None
        assert matching.take(a, alone=True) == [a]
    assert len(builds) == 1
    rows[0].take(tokenizer.encode("7")[0], alone=True)
    fail(rows[1], tokenizer)
    assert [matching.error is None for matching in rows] == [False, False, True]


# --- the process that compiles constraints first --------------------------------------------

GRAMMAR = LLMatcher.grammar_from_regex("[0-9]{4}")


def test_a_process_that_was_ended_is_replaced() -> None:
    checker = Checker(LIMITS)
    checker.check(GRAMMAR)
    assert checker._process is not None
    os.kill(checker._process.pid, signal.SIGKILL)
    checker._process.wait()
    checker.check(GRAMMAR)
    checker.close()
