"""The process that compiles constraints first."""

from __future__ import annotations

import multiprocessing

from llguidance import LLMatcher

from runtime.grammar.checking import Checker
from runtime.grammar.grammars import LIMITS

GRAMMAR = LLMatcher.grammar_from_regex("[0-9]{4}")


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
