"""One trace of client, router, server and model server: real processes, on one clock."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from tests.model_server.served import unix
from tests.router.conftest import RouterProcess
from tests.support.forked import Forked
from tests.support.process import PATIENCE_S, ROOT, environment, serving
from watch import trace
from watch.tracks import Slice

REQUESTS = 8
Slices = dict[str, list[Slice]]  # of each process, on one clock


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """What the four wrote, and the tokens that the server counted."""
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
            total = server.stats()["total-tokens-handled"]
            # they write their last lines when they end
            router.signal(signal.SIGTERM)
            router.process.wait(PATIENCE_S)
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(PATIENCE_S)
        model.send_signal(signal.SIGTERM)
        model.wait(PATIENCE_S)
    finally:
        model.kill()
    return runs, total


@pytest.fixture
def slices(recorded: tuple[Path, int]) -> Slices:
    """In order of time."""
    found: Slices = {}
    for process in trace.read_processes(recorded[0]):
        for one in itertools.chain(*process.tracks.values()):
            kind = process.name.partition(":")[0]
            found.setdefault(kind, []).append(moved(one, process.offset_us))
    return {kind: sorted(all_of, key=lambda one: one.start_us) for kind, all_of in found.items()}


def moved(one: Slice, by_us: int) -> Slice:
    parts = [moved(part, by_us) for part in one.parts]
    return one._replace(start_us=one.start_us + by_us, end_us=one.end_us + by_us, parts=parts)


def with_parts(slices: Iterable[Slice]) -> Iterator[Slice]:
    for one in slices:
        yield one
        yield from with_parts(one.parts)


def holds(outer: Slice, inner: Slice) -> bool:
    return outer.start_us <= inner.start_us and inner.end_us <= outer.end_us


def test_a_request_nests_in_time_from_the_client_to_the_models_iterations(slices: Slices) -> None:
    assert list(slices) == ["client", "router", "server", "model server"]
    assert len(slices["client"]) == REQUESTS
    for sent in slices["client"]:
        id = str(sent.notes["request id"])
        (routed,) = (one for one in slices["router"] if one.notes["request id"] == id)
        (attempt,) = routed.parts
        (served,) = (one for one in slices["server"] if one.notes.get("request id") == id)
        model = slices["model server"]
        executed = [one for one in model if id in str(one.notes["request ids"]).split()]
        assert len(executed) == 12  # a prefill that draws a token, and a decode for each other one
        for outer, inner in itertools.pairwise([sent, routed, attempt, served]):
            assert holds(outer, inner), (outer, inner)
        assert all(holds(served, iteration) for iteration in executed)
        assert all(holds(one, part) for one in (sent, served) for part in one.parts)
        assert [part.name for part in served.parts] == ["waits", "prefill", "decode"]
        linked = [one for one in with_parts(itertools.chain(*slices.values())) if id in one.flows]
        for one in (sent, routed, attempt, served, executed[0]):  # the arrow
            assert one in linked


def test_the_tokens_of_all_processes_are_those_of_stats(
    slices: Slices, recorded: tuple[Path, int]
) -> None:
    def total(process: str, note: str) -> int:
        return sum(int(one.notes.get(note, 0)) for one in slices[process])

    # the client has tried first whether answers stream
    assert total("client", "tokens") == 12 * REQUESTS == recorded[1] - 1
    assert total("model server", "drawn") == recorded[1]
    assert total("server", "generated") == total("server", "tokens generated") == recorded[1]


def test_perfetto_and_chrome_are_told_the_same_slices_on_the_same_clock(
    slices: Slices, recorded: tuple[Path, int], tmp_path: Path
) -> None:
    ours = sorted((s.name, s.start_us) for s in with_parts(itertools.chain(*slices.values())))
    for name in ("trace.json", "trace.pftrace"):
        trace.main([str(recorded[0]), "--out", str(tmp_path / name)])
    told = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sorted((e["name"], e["ts"]) for e in told if e["ph"] == "X") == ours
    packets = Trace.FromString((tmp_path / "trace.pftrace").read_bytes()).packet
    begun = [p for p in packets if p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    ended = [p for p in packets if p.track_event.type == TrackEvent.TYPE_SLICE_END]
    assert sorted((p.track_event.name, p.timestamp // 1000) for p in begun) == ours
    assert len(begun) == len(ended)
    assert {flow for p in begun for flow in p.track_event.flow_ids}
