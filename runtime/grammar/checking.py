"""A process that compiles constraints before anyone else does.

A hostile constraint of a hundred characters can compile for minutes, or take all memory, or all of
the stack, which ends a process; llguidance's limits bound most of that, not all. So each is
compiled at first in a copy of this process, for a vocabulary of bytes, with less of everything. A
constraint that ends its copy is refused. Copies run at low priority, and what takes long at the
lowest, so that batches advance at their pace.

    python -m runtime.grammar.checking    reads and writes lines of JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

if TYPE_CHECKING:  # a model also runs where llguidance is not installed
    from llguidance import LLParserLimits

ROOT = Path(__file__).resolve().parents[2]
MOST_CPU_S = 1.0
MOST_BYTES = 2 << 30  # of addresses; the libraries take a part of them
STACK_BYTES = 2 << 20  # a quarter of what threads have
MOST_S = 20.0  # for an answer, however busy the machine is
NICENESS = 10  # the model comes first
SHORT_S = 0.2  # what takes longer is done at the lowest priority
LOWEST = 19
MOST_IDS = 1 << 19
SHOWN_CHARACTERS = 300  # of llguidance's message in ours


class GrammarError(ValueError):
    """A constraint that cannot be served; the message says why."""


class Checker:
    """One process, which starts when it is first needed. One thread at a time may use it."""

    def __init__(self, limits: Sequence[int]) -> None:
        """`limits`: as `limits_of` takes them."""
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str) -> None:
        """Raises GrammarError for a grammar that cannot be compiled."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        with contextlib.suppress(OSError):  # it has ended
            process.stdin.write(json.dumps(grammar).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer.endswith(b"\n"):
            raise GrammarError("the process that checks it has ended")
        if error := json.loads(answer):
            raise GrammarError(short(error))

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        self.close()
        command = [sys.executable, "-m", "runtime.grammar.checking", *map(str, self._limits)]
        # Ctrl-C in a terminal is not for its group, but for this one
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        weakref.finalize(self, _end_own, self._process, os.getpid())
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with its copy
    process.communicate()


def _end_own(process: subprocess.Popen[bytes], owner: int) -> None:
    """Of the process `owner`. A fork of it copies this finalizer, but would wait for ever for a
    process that is not its child."""
    if os.getpid() == owner:
        _end(process)


def short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "..."


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


def serve(lines: IO[bytes], answers: IO[str], limits: LLParserLimits) -> None:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])

    def compile(line: bytes) -> str:
        matcher = LLMatcher(tokenizer, json.loads(line), log_level=0, limits=limits)
        matcher.compute_bitmask()
        return matcher.get_error()

    for line in lines:
        answers.write(json.dumps(in_a_copy(compile, line)) + "\n")
        answers.flush()


def in_a_copy(compile: Callable[[bytes], str], line: bytes) -> str:
    """What is wrong with a constraint; nothing, if a copy of this process compiles it."""
    reading, writing = os.pipe()
    copy = os.fork()
    if not copy:
        _compile_and_exit(compile, line, writing)
    os.close(writing)
    is_late = False
    with open(reading, "rb") as answer:
        if not select.select([answer], [], [], SHORT_S)[0]:
            os.setpriority(os.PRIO_PROCESS, copy, LOWEST)
            is_late = not select.select([answer], [], [], MOST_S)[0]
            if is_late:
                os.kill(copy, signal.SIGKILL)
        error = answer.read().decode(errors="replace")
    ended_by = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    if is_late or ended_by == -signal.SIGPROF:
        return f"it takes more than {MOST_CPU_S:g} s to compile"
    return "it is too large to compile" if ended_by else error


def _compile_and_exit(compile: Callable[[bytes], str], line: bytes, writing: int) -> NoReturn:
    try:
        os.nice(NICENESS)
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)  # its signal ends the process
        os.write(writing, compile(line).encode()[: select.PIPE_BUF])
        os._exit(0)
    finally:
        os._exit(1)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout, limits_of([int(number) for number in sys.argv[1:]]))


if __name__ == "__main__":
    main()
