"""One trace of client, router, server and model server: real processes, on one clock."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from tests.model_server.served import unix
from tests.router.conftest import RouterProcess
from tests.support.forked import Forked
from tests.support.process import PATIENCE_S, ROOT, environment, serving
from watch import trace

REQUESTS = 8
PROCESSES = ["client", "router", "server", "model server"]


@dataclass(slots=True)
class Drawn:
    """A slice as Perfetto's own classes read it."""

    process: str
    name: str
    start_ns: int
    notes: dict[str, Any]
    flows: list[int]
    end_ns: int = 0
    parts: list[Drawn] = field(default_factory=list)

    def holds(self, other: Drawn) -> bool:
        return self.start_ns <= other.start_ns and other.end_ns <= self.end_ns


def drawn(data: bytes) -> list[Drawn]:
    """The slices of a trace that are part of no other."""
    parsed = Trace.FromString(data)
    about = {p.track_descriptor.uuid: p.track_descriptor for p in parsed.packet}
    stacks: dict[int, list[Drawn]] = {}
    found: list[Drawn] = []
    for packet in parsed.packet:
        event = packet.track_event
        stack = stacks.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            process = about[about[event.track_uuid].parent_uuid].process.process_name
            notes = {
                note.name: note.string_value or note.int_value for note in event.debug_annotations
            }
            one = Drawn(
                process.partition(":")[0], event.name, packet.timestamp, notes, [*event.flow_ids]
            )
            (stack[-1].parts if stack else found).append(one)
            stack.append(one)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end_ns = packet.timestamp
    assert not any(stacks.values())
    return found


def with_parts(slices: list[Drawn]) -> Iterator[Drawn]:
    for one in slices:
        yield one
        yield from with_parts(one.parts)


@dataclass(frozen=True, slots=True)
class Traced:
    slices: list[Drawn]
    stats: dict[str, Any]
    folder: Path

    def of(self, process: str) -> list[Drawn]:
        return [one for one in self.slices if one.process == process]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    folder = tmp_path_factory.mktemp("trace")
    runs = folder / "runs"
    runs.mkdir()
    address = unix(folder, "model")
    arguments = ["serve", "embedded", "--listen", address, "--record", f"{runs}/model.jsonl"]
    model = Forked("model_server", arguments, environment(), folder / "model.log")
    try:
        options: dict[str, Any] = {
            "app": "app:create_app()",
            "remote_model": address,
            "record": str(runs / "server.jsonl"),
        }
        with serving(folder, **options) as server, contextlib.ExitStack() as stack:
            router = stack.enter_context(
                contextlib.closing(RouterProcess(server.url, record=runs / "router.jsonl"))
            ).probed()
            shape = ["--numsamples", str(REQUESTS), "--rate", "40", "--output-tokens", "fixed:12"]
            client = [sys.executable, "-m", "client.client", "--target", router.url]
            ran = subprocess.run(
                [*client, "--out", str(runs), *shape],
                cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr
            stats = server.stats()
            # they write their last lines when they end
            router.signal(signal.SIGTERM)
            router.process.wait(PATIENCE_S)
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(PATIENCE_S)
        model.send_signal(signal.SIGTERM)
        model.wait(PATIENCE_S)
    finally:
        model.kill()
    out = folder / "trace.pftrace"
    trace.main([str(runs), "--out", str(out)])
    return Traced(drawn(out.read_bytes()), stats, runs)


def test_a_request_nests_in_time_from_the_client_to_the_models_iterations(traced: Traced) -> None:
    assert [name for name, _ in itertools.groupby(one.process for one in traced.slices)] == (
        PROCESSES
    )
    requests = {one.notes["request id"]: one for one in traced.of("client")}
    assert len(requests) == REQUESTS
    for id, sent in requests.items():
        (routed,) = (one for one in traced.of("router") if one.notes["request id"] == id)
        (attempt,) = routed.parts
        (served,) = (one for one in traced.of("server") if one.notes.get("request id") == id)
        executed = [
            one for one in traced.of("model server") if id in one.notes["request ids"].split()
        ]
        assert len(executed) == 12  # a prefill that draws a token, and a decode for each other one
        for outer, inner in itertools.pairwise([sent, routed, attempt, served]):
            assert outer.holds(inner), (outer, inner)
        assert all(served.holds(iteration) for iteration in executed)
        assert all(one.holds(part) for one in (sent, served) for part in one.parts)
        assert [part.name for part in served.parts] == ["waits", "prefill", "decode"]
        # the arrow goes through all of them, and on to the first iteration
        (flow,) = sent.flows
        linked = [one for one in with_parts(traced.slices) if flow in one.flows]
        linked.sort(key=lambda one: one.start_ns)
        assert linked == [sent, routed, attempt, served, executed[0]]


def test_the_tokens_of_all_processes_are_those_of_stats(traced: Traced) -> None:
    total = traced.stats["total-tokens-handled"]
    asked = sum(one.notes["tokens"] for one in traced.of("client"))
    assert asked == 12 * REQUESTS
    assert total == asked + 1  # the client has tried first whether answers stream
    assert sum(one.notes.get("drawn", 0) for one in traced.of("model server")) == total
    iterations = [one for one in traced.of("server") if one.name.startswith("iteration")]
    assert sum(one.notes["generated"] for one in iterations) == total
    own = [one for one in traced.of("server") if one.name.startswith("request")]
    assert sum(one.notes["tokens generated"] for one in own) == total


def test_chrome_is_told_the_same_slices_on_the_same_clock(traced: Traced, tmp_path: Path) -> None:
    trace.main([str(traced.folder), "--out", str(tmp_path / "trace.json")])
    told = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ours = sorted((one.name, one.start_ns // 1000) for one in with_parts(traced.slices))
    assert sorted((e["name"], e["ts"]) for e in told if e["ph"] == "X") == ours
