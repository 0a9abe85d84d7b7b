"""Constraints, compiled for a vocabulary and kept.

A new one is compiled twice, at first in a process that it may end (`checking.py`). Requests with
the same constraint share what was compiled, the states of its lexer included, so the first mask of
a further one costs some 0.02 ms.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, LifoQueue
from typing import TYPE_CHECKING, Protocol

from requested import Constraint
from runtime.grammar.checking import NICENESS, Checker, CheckError, limits_of

if TYPE_CHECKING:  # a model also runs where llguidance is not installed
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

AT_ONCE = 2  # that are compiled
MOST_WAIT_S = 10.0  # for their turn
MOST_CHARACTERS = 2**18  # of a constraint: its text is read with the interpreter's lock
KEPT = 1024  # compiled constraints,
KEPT_CHARACTERS = 2**21  # and fewer if their texts are long; each may take 200 bytes
SHOWN_CHARACTERS = 300  # of llguidance's message in ours

# json.dumps writes JSON like this; free whitespace lets small models write nothing else
JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

# some 4 ms of lexing and 1 ms of parsing for a mask, a quarter of what the library allows; states
LIMITS = 50_000, 20_000, 50_000


class GrammarError(ValueError):
    """A constraint that cannot be served; the message says why."""


class GrammarsBusyError(Exception):
    """Other constraints are being compiled, and this one has waited for long."""


class Vocabulary(Protocol):
    """A text.tokenizer.Tokenizer."""

    @property
    def end_ids(self) -> Collection[int]: ...

    @property
    def special_ids(self) -> Mapping[str, int]: ...

    @property
    def spellings(self) -> Sequence[bytes]: ...  # of all ids; empty where there is no token

    def encode(self, text: str) -> list[int]: ...


class Grammars:
    """Any thread may call its methods. `vocabulary` is called once, when it is first needed."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._load = vocabulary
        self._loaded: _Loaded | None = None
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._checkers: LifoQueue[Checker] = LifoQueue()  # a single one serves most servers
        for _ in range(AT_ONCE):
            self._checkers.put(Checker(LIMITS))
        self._kept: OrderedDict[Constraint, Future[LLMatcher]] = OrderedDict()
        self._characters = 0  # of the kept ones

    @property
    def loaded(self) -> _Loaded:
        with self._loading:
            if self._loaded is None:
                self._loaded = _Loaded.of(self._load())
            return self._loaded

    # --- compiling --------------------------------------------------------------------------

    def compile(self, constraint: Constraint) -> None:
        """Waits until it is compiled. Raises GrammarError, GrammarsBusyError."""
        if len(constraint.text) > MOST_CHARACTERS:
            raise GrammarError(
                f"it has {len(constraint.text)} characters; allowed: up to {MOST_CHARACTERS}"
            )
        with self._lock:
            future = self._find(constraint)
            is_new = future is None
            if future is None:
                future = self._keep(constraint, Future())
        if is_new:
            threading.Thread(
                target=self._compile, args=(constraint, future), name="grammar", daemon=True
            ).start()
        future.result()

    def matcher(self, constraint: Constraint) -> LLMatcher:
        """At the beginning of a text. Raises GrammarError."""
        with self._lock:
            future = self._find(constraint)
        if future is None or not future.done():
            future = Future()
            self._settle(constraint, future)
            with self._lock:
                self._keep(constraint, future)
        return future.result().deep_copy()

    def fresh(self, constraint: Constraint) -> LLMatcher:
        """As `matcher`, but shares nothing with others; what was kept is dropped, too."""
        self._forget(constraint)
        return self._build(constraint)

    def _compile(self, constraint: Constraint, future: Future[LLMatcher]) -> None:
        """Checks it elsewhere before, since it might end this process."""
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            checker = self._checkers.get(timeout=MOST_WAIT_S)
        except Empty:
            self._forget(constraint)
            future.set_exception(GrammarsBusyError())
            return
        try:
            checker.check(_text_of(constraint))
        except CheckError as error:
            future.set_exception(GrammarError(short(str(error))))
        except Exception as error:
            future.set_exception(GrammarError(f"it cannot be compiled: {short(str(error))}"))
        else:
            self._settle(constraint, future)
        finally:
            self._checkers.put(checker)

    def _settle(self, constraint: Constraint, future: Future[LLMatcher]) -> None:
        try:
            matcher = self._build(constraint)
            matcher.compute_bitmask()  # what its lexer learns is there for all
            _require(matcher)
        except GrammarError as error:
            future.set_exception(error)
        except BaseException as error:  # a panic is no Exception, and must not end the loop
            future.set_exception(GrammarError(short(str(error))))
        else:
            future.set_result(matcher)

    def _build(self, constraint: Constraint) -> LLMatcher:
        from llguidance import LLMatcher

        tokenizer = self.loaded.tokenizer
        if tokenizer is None:
            raise GrammarError("the model's vocabulary has no token that ends a text")
        matcher = LLMatcher(tokenizer, _text_of(constraint), log_level=0, limits=limits_of(LIMITS))
        _require(matcher)
        return matcher

    # --- keeping, with the lock -------------------------------------------------------------

    def _find(self, constraint: Constraint) -> Future[LLMatcher] | None:
        future = self._kept.get(constraint)
        if future is not None:
            self._kept.move_to_end(constraint)
        return future

    def _keep(self, constraint: Constraint, future: Future[LLMatcher]) -> Future[LLMatcher]:
        if constraint not in self._kept:
            self._characters += len(constraint.text)
        self._kept[constraint] = future
        while len(self._kept) > KEPT or (
            self._characters > KEPT_CHARACTERS and len(self._kept) > 1
        ):
            oldest, _ = self._kept.popitem(last=False)
            self._characters -= len(oldest.text)
        return future

    def _forget(self, constraint: Constraint) -> None:
        with self._lock:
            if self._kept.pop(constraint, None) is not None:
                self._characters -= len(constraint.text)


def _text_of(constraint: Constraint) -> str:
    """As llguidance reads it."""
    from llguidance import LLMatcher

    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "lark":
        return LLMatcher.grammar_from_lark(constraint.text)
    try:
        return LLMatcher.grammar_from_json_schema(constraint.text, defaults=JSON_OPTIONS)
    except ValueError as error:
        raise GrammarError(short(str(error))) from None


def _require(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(short(matcher.get_error()))


def short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "..."


# --- the vocabulary -------------------------------------------------------------------------


class _Spelled:
    """A vocabulary as llguidance's TokenizerWrapper takes it."""

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.tokens = list(vocabulary.spellings)
        self.special_token_ids = sorted({*ends, *vocabulary.special_ids.values()})
        self._encode = vocabulary.encode
        self.greedily: Callable[[str], list[int]] = lambda _: []

    def __call__(self, text: str) -> list[int]:
        """Tokens with exactly these bytes. Some vocabularies put a space before a text; behind a
        line's end they do not."""
        wanted = text.encode()
        if self._bytes(ids := self._encode(text)) == wanted:
            return ids
        ids, at = self._encode("\n" + text), 0
        while ids and at < 3:
            at += 1
            if self._bytes(ids[at:]) == wanted:
                return ids[at:]
        return self.greedily(text)

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join([self.tokens[token] for token in ids])


@dataclass(frozen=True, slots=True)
class _Loaded:
    ends: list[int]
    mask_bytes: int
    tokenizer: LLTokenizer | None  # None: there are no ends

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> _Loaded:
        """Special tokens are no part of any text that a grammar describes by its characters."""
        from llguidance import LLTokenizer, TokenizerWrapper

        ends = sorted(vocabulary.end_ids)
        mask_bytes = 4 * -(-len(vocabulary.spellings) // 32)
        if not ends:
            return cls(ends, mask_bytes, None)
        spelled = _Spelled(vocabulary, ends)
        tokenizer = LLTokenizer(TokenizerWrapper(spelled), eos_token=ends)
        spelled.greedily = tokenizer.greedy_tokenize
        return cls(ends, mask_bytes, tokenizer)
