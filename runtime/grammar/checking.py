"""A process that compiles constraints before anyone else does.

A hostile constraint of a hundred characters can compile for minutes, or take all memory, or all of
the stack, which ends a process; llguidance's limits bound most of that, not all. So each is
compiled here at first, for a vocabulary of bytes, with less of everything. A constraint that ends
this process is refused, and the next one gets a new process.

    python -m runtime.grammar.checking    reads and writes lines of JSON
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:  # a model also runs where llguidance is not installed
    from llguidance import LLParserLimits

ROOT = Path(__file__).resolve().parents[2]
MOST_CPU_S = 1.0
MOST_BYTES = 2 << 30  # of addresses; the libraries take a part of them
STACK_BYTES = 2 << 20  # a quarter of what threads have
MOST_S = 20.0  # for an answer, however busy the machine is
NICENESS = 10  # the model comes first
MOST_IDS = 1 << 19


class CheckError(Exception):
    """The constraint is refused; the message says why."""


class Checker:
    """One process, which starts when it is first needed. One thread at a time may use it."""

    def __init__(self, limits: Sequence[int]) -> None:
        """`limits`: as `limits_of` takes them."""
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str) -> None:
        """Raises CheckError for a grammar that cannot be compiled."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        answer, is_late = b"", False
        try:
            process.stdin.write(json.dumps(grammar).encode() + b"\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], MOST_S)[0]:
                answer = process.stdout.readline()
            else:
                is_late = True
        except OSError:  # it has ended
            pass
        if not answer.endswith(b"\n"):
            self.close()
            if is_late or process.returncode == -signal.SIGPROF:
                raise CheckError(f"it takes more than {MOST_CPU_S:g} s to compile")
            raise CheckError("it is too large to compile")
        if error := json.loads(answer):
            raise CheckError(error)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "runtime.grammar.checking", *map(str, self._limits)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        weakref.finalize(self, _end_own, self._process, os.getpid())
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _end_own(process: subprocess.Popen[bytes], owner: int) -> None:
    """Of the process `owner`. A fork of it copies this finalizer, but would wait for ever for a
    process that is not its child."""
    if os.getpid() == owner:
        _end(process)


def limits_of(numbers: Sequence[int]) -> LLParserLimits:
    """`step_lexer_fuel`, `step_max_items`, `max_lexer_states`."""
    from llguidance import LLParserLimits

    fuel, items, states = numbers
    return LLParserLimits(
        step_lexer_fuel=fuel,
        step_max_items=items,
        max_lexer_states=states,
        verbose_errors=False,
    )


class _Bytes:
    """A vocabulary of bytes, as llguidance's TokenizerWrapper takes it. Grammars may name tokens by
    ids of the served model's, so there are as many ids as any vocabulary has."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"] + [b""] * MOST_IDS

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def serve(lines: IO[str], answers: IO[str], limits: LLParserLimits) -> None:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])
    for line in lines:
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)  # its signal ends the process
        matcher = LLMatcher(tokenizer, json.loads(line), log_level=0, limits=limits)
        matcher.compute_bitmask()
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(matcher.get_error()) + "\n")
        answers.flush()


def main() -> None:
    import resource

    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: its parent decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    threading.stack_size(STACK_BYTES)
    limits = limits_of([int(number) for number in sys.argv[1:]])
    thread = threading.Thread(target=serve, args=(sys.stdin, sys.stdout, limits))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
