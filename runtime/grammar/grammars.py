"""Constraints, compiled for a vocabulary and kept.

A new one is compiled twice, at first in a process that it may end (`checking.py`). Requests with
the same constraint share what was compiled, the states of its lexer included, so the first mask of
a further one costs some 0.02 ms. A lexer has a bounded number of states: when they are used up, the
constraint is compiled again. What an accepted request needs stays until the request ends, so that
its iterations never wait for compiling.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, LifoQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from runtime.grammar.checking import LOWEST, NICENESS, SHORT_S, Checker, limits_of, short
from runtime.grammar.checking import GrammarError as GrammarError
from seams import Constraint

if TYPE_CHECKING:  # a model also runs where llguidance is not installed
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

AT_ONCE = 2  # that are compiled
MOST_WAIT_S = 10.0  # for their turn
MOST_CHARACTERS = 2**18  # of a constraint: its text is read with the interpreter's lock
KEPT = 1024  # compiled constraints, more if requests need them,
KEPT_CHARACTERS = 2**21  # and fewer if their texts are long; each may take 200 bytes
ROOM = 4  # times a text's length that needed ones must leave: a few long ones never take it all
MOST_FORCED_BYTES = 2**13  # at once: they become tokens between two iterations

# json.dumps writes JSON like this; free whitespace lets small models write nothing else
JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

# some 4 ms of lexing and 1 ms of parsing for a mask, a quarter of what the library allows; states
LIMITS = 50_000, 20_000, 50_000

# Where a mask allows all tokens of such a form, they are not looked at one by one. Of llguidance's
# own, none is a part of what a pattern of letters or digits allows, nor of an email address.
SLICES = "[a-zA-Z ]{1,10}", "[a-zA-Z0-9]{1,10}"


class GrammarsBusyError(Exception):
    """Other constraints are being compiled, and this one has waited for long; or those that
    requests need leave no room for it."""


class Vocabulary(Protocol):
    """A text.tokenizer.Tokenizer."""

    @property
    def end_ids(self) -> Collection[int]: ...

    @property
    def special_ids(self) -> Mapping[str, int]: ...

    @property
    def spellings(self) -> Sequence[bytes]: ...  # of all ids; empty where there is no token

    def encode(self, text: str) -> list[int]: ...


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


class Loaded(NamedTuple):
    """A vocabulary, for llguidance."""

    ends: list[int]
    mask_bytes: int
    tokenizer: LLTokenizer | None  # None: there are no ends

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Loaded:
        """Special tokens are no part of any text that a grammar describes by its characters."""
        from llguidance import LLTokenizer, TokenizerWrapper

        # a model's files may name ends for which its vocabulary has no token
        ends = sorted(end for end in vocabulary.end_ids if end < len(vocabulary.spellings))
        mask_bytes = 4 * -(-len(vocabulary.spellings) // 32)
        if not ends:
            return cls(ends, mask_bytes, None)
        spelled = _Spelled(vocabulary, ends)
        slices = [*LLTokenizer.general_slices(), *SLICES]
        tokenizer = LLTokenizer(TokenizerWrapper(spelled), eos_token=ends, slices=slices)
        spelled.greedily = tokenizer.greedy_tokenize
        return cls(ends, mask_bytes, tokenizer)


class Compiled(NamedTuple):
    """A constraint's matcher at the beginning of a text. Its copies share its lexer."""

    matcher: LLMatcher
    cpu_s: float  # that compiling it took


class Need:
    """Held by a request that needs a constraint compiled."""


class CompiledOnce:
    """What was made of a constraint, and the shared need for it, if a request has one."""

    def __init__(self, future: Future[Compiled]) -> None:
        self.future = future
        self.need: Callable[[], Need | None] = lambda: None

    @property
    def refused(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    @property
    def needed(self) -> bool:
        return self.need() is not None and not self.refused  # an error's traceback may hold one


class Grammars:
    """Any thread may call its methods. `vocabulary` is called once, when it is first needed.
    `timed`: whether a sequence whose masks take too long fails. Of several shards only one may
    judge: they must agree on the sequences that continue."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, timed: bool = True) -> None:
        self.timed = timed
        self._load = vocabulary
        self._loaded: Loaded | None = None
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._checkers: LifoQueue[Checker] = LifoQueue()  # a single one serves most servers
        for _ in range(AT_ONCE):
            self._checkers.put(Checker(LIMITS))
        self._kept: OrderedDict[Constraint, CompiledOnce] = OrderedDict()
        self._characters = 0  # of the kept ones

    def load(self) -> None:
        """Reads the vocabulary, for which the first constraint would wait, and the interpreter."""
        assert self.loaded

    @property
    def loaded(self) -> Loaded:
        with self._loading:
            if self._loaded is None:
                self._loaded = Loaded.of(self._load())
            return self._loaded

    # --- compiling --------------------------------------------------------------------------

    def compile(self, constraint: Constraint) -> Need:
        """Waits until it is compiled; it stays so for as long as the result is held. Raises
        GrammarError, GrammarsBusyError."""
        if len(constraint.text) > MOST_CHARACTERS:
            raise GrammarError(
                f"it has {len(constraint.text)} characters; allowed: up to {MOST_CHARACTERS}"
            )
        with self._lock:
            kept = self._find(constraint)
            is_new = kept is None
            if kept is None:
                needed = sum(len(one.text) for one, other in self._kept.items() if other.needed)
                if needed + ROOM * len(constraint.text) > KEPT_CHARACTERS:
                    raise GrammarsBusyError
                kept = self._keep(constraint, Future())
            need = kept.need() or Need()
            kept.need = weakref.ref(need)
        if is_new:
            threading.Thread(
                target=self._compile, args=(constraint, kept.future), name="grammar", daemon=True
            ).start()
        kept.future.result()
        return need

    def compiled(self, constraint: Constraint, spent: Compiled | None = None) -> Compiled:
        """Another one than `spent`, whose lexer is full. Raises GrammarError."""
        with self._lock:
            kept = self._find(constraint)
        if kept is not None and kept.future.done() and (found := kept.future.result()) is not spent:
            return found
        future = Future[Compiled]()
        self._settle(constraint, future)
        with self._lock:
            self._keep(constraint, future)
        return future.result()

    def _compile(self, constraint: Constraint, future: Future[Compiled]) -> None:
        """Checks it elsewhere before, since it might end this process."""
        _lower_priority(NICENESS)
        try:
            checker = self._checkers.get(timeout=MOST_WAIT_S)
        except Empty:
            with self._lock:
                self._forget(constraint)
            future.set_exception(GrammarsBusyError())
            return
        start_s = time.monotonic()
        try:
            checker.check(_text_of(constraint))
        except GrammarError as error:
            future.set_exception(error)
        except Exception as error:
            future.set_exception(GrammarError(f"it cannot be compiled: {short(str(error))}"))
        else:
            if time.monotonic() - start_s > SHORT_S:
                _lower_priority(LOWEST)
            self._settle(constraint, future)
        finally:
            self._checkers.put(checker)

    def _settle(self, constraint: Constraint, future: Future[Compiled]) -> None:
        start_s = time.thread_time()
        try:
            matcher = self._build(constraint)
            matcher.compute_bitmask()  # what its lexer learns is there for all
            _require(matcher)
        except GrammarError as error:
            future.set_exception(error)
        except BaseException as error:  # a panic is no Exception, and must not end the loop
            future.set_exception(GrammarError(short(str(error))))
        else:
            future.set_result(Compiled(matcher, time.thread_time() - start_s))

    def _build(self, constraint: Constraint) -> LLMatcher:
        from llguidance import LLMatcher

        tokenizer = self.loaded.tokenizer
        if tokenizer is None:
            raise GrammarError("the model's vocabulary has no token that ends a text")
        matcher = LLMatcher(tokenizer, _text_of(constraint), log_level=0, limits=limits_of(LIMITS))
        _require(matcher)
        forced_bytes(matcher)
        return matcher

    # --- keeping, with the lock -------------------------------------------------------------

    def _find(self, constraint: Constraint) -> CompiledOnce | None:
        kept = self._kept.get(constraint)
        if kept is not None:
            self._kept.move_to_end(constraint)
        return kept

    def _keep(self, constraint: Constraint, future: Future[Compiled]) -> CompiledOnce:
        """In the place of an older one of the same constraint, whose need remains."""
        if (kept := self._find(constraint)) is not None:
            kept.future = future
            return kept
        free = [one for one, other in self._kept.items() if not other.needed]
        free.sort(key=lambda one: not self._kept[one].refused)  # those go first
        kept = self._kept[constraint] = CompiledOnce(future)
        self._characters += len(constraint.text)
        for one in free:
            if len(self._kept) <= KEPT and self._characters <= KEPT_CHARACTERS:
                break
            self._forget(one)
        return kept

    def _forget(self, constraint: Constraint) -> None:
        if self._kept.pop(constraint, None) is not None:
            self._characters -= len(constraint.text)


def _lower_priority(niceness: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # of this thread alone, on Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


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


def forced_bytes(matcher: LLMatcher) -> int:
    """How many can only continue the text in one way. Raises GrammarError for too many."""
    count = len(matcher.compute_ff_bytes())
    if count > MOST_FORCED_BYTES:
        raise GrammarError(f"it forces {count} bytes at once; allowed: up to {MOST_FORCED_BYTES}")
    return count
