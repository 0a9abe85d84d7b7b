"""The process that compiles constraints first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator

import pytest
from llguidance import LLMatcher

from runtime.grammar.checking import LOWEST, NICENESS, Checker, CheckError, in_a_copy
from runtime.grammar.grammars import LIMITS

GRAMMAR = LLMatcher.grammar_from_regex("[0-9]{4}")
SLOW = LLMatcher.grammar_from_json_schema('{"type": "integer", "multipleOf": 999983}')


@pytest.fixture
def checker() -> Iterator[Checker]:
    checker = Checker(LIMITS)
    yield checker
    checker.close()


def test_a_fork_that_drops_a_checker_ends_and_leaves_the_process_to_its_parent() -> None:
    held = [Checker(LIMITS)]
    held[0].check(GRAMMAR)
    fork = multiprocessing.get_context("fork").Process(target=held.clear)
    fork.start()
    fork.join(60)
    try:
        assert fork.exitcode == 0
        held[0].check(GRAMMAR)
    finally:
        fork.kill()
        fork.join()
        held[0].close()


def test_a_constraint_that_is_refused_ends_no_process_but_its_own(checker: Checker) -> None:
    checker.check(GRAMMAR)
    process = checker._process
    with pytest.raises(CheckError, match="more than 1 s"):
        checker.check(SLOW)
    checker.check(GRAMMAR)
    assert checker._process is process


def test_a_process_that_was_ended_is_replaced(checker: Checker) -> None:
    checker.check(GRAMMAR)
    assert checker._process is not None
    os.kill(checker._process.pid, signal.SIGKILL)
    checker._process.wait()
    checker.check(GRAMMAR)


def test_what_takes_long_gets_the_lowest_priority() -> None:
    def wait_for_it(_: bytes) -> str:
        while os.getpriority(os.PRIO_PROCESS, 0) < LOWEST:
            time.sleep(0.01)  # its time on a processor is limited
        return "lowered"

    assert in_a_copy(wait_for_it, b"") == "lowered"


def test_a_constraint_that_raises_is_refused() -> None:
    def fail(line: bytes) -> str:
        raise ValueError(line)

    assert "too large" in in_a_copy(fail, b"")


def test_a_copy_has_a_lower_priority_than_the_server() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    theirs = in_a_copy(lambda _: str(os.getpriority(os.PRIO_PROCESS, 0)), b"")
    assert int(theirs) == min(own + NICENESS, LOWEST)
