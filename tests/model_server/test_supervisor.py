"""When processes are restarted, and which shards one command starts."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext

import pytest

from model_server.supervisor import REFUSED, Command, ProcessGroup, Supervisor
from tests.model_server.served import running
from tests.support.process import eventually

PATIENT = "import signal, sys; print('up', flush=True); signal.pause()"


def program(name: str, code: str, *, ready: bool) -> Command:
    command = [sys.executable, "-S", "-c", code]
    return Command(name, command, dict(os.environ), lambda: nullcontext(lambda: ready))


def group(*names: str) -> ProcessGroup:
    programs = [program(name, PATIENT, ready=True) for name in names]
    return ProcessGroup(lambda: programs, end_within_s=10.0)


def test_the_processes_of_a_group_are_restarted_together_and_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    lines: list[tuple[str, str]] = []
    supervisor = Supervisor(
        [group("a", "b"), group("c")], lambda name, line: lines.append((name, line))
    )
    with running(supervisor):
        eventually(lambda: len(lines) == 3, "all have started")
        before = [process.pid for process in supervisor.processes]
        os.kill(before[1], signal.SIGKILL)
        eventually(lambda: len(lines) == 5, "two have started again")
        after = [process.pid for process in supervisor.processes]
    assert after[2] == before[2]
    assert not {*after[:2]} & {*before}
    assert sorted(lines) == [("a", "up")] * 2 + [("b", "up")] * 2 + [("c", "up")]
    asked = [told.split()[0] for told in caplog.messages if "asked to end" in told]
    assert asked == ["c", "a", "b"]  # the groups in the opposite order


def test_a_process_that_ends_by_itself_before_it_was_ready_ends_all() -> None:
    failing = ProcessGroup(lambda: [program("x", "pass", ready=False)], end_within_s=1.0)
    supervisor = Supervisor([group("a"), failing])
    assert supervisor.run() == REFUSED
    assert supervisor.processes == []
