"""One run of client, router, server and model server, each a process, as two kinds of traces tell
it: a collector's, and those of what the four recorded."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.model_server.served import unix
from tests.router.conftest import RouterProcess
from tests.support.forked import Forked
from tests.support.process import PATIENCE_S, ROOT, environment, serving
from watch import trace
from watch.trace import Slice

REQUESTS = 8
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it is sent of the trace above."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], Span] = {}  # by service and name

    def Export(  # noqa: N802 (the protocol's name)
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.ServicerContext,
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            for span in itertools.chain(*(scope.spans for scope in resource.scope_spans)):
                if span.trace_id.hex() == TRACE:
                    key = names["service.name"], span.name
                    assert key not in self.spans
                    self.spans[key] = span
        return trace_service_pb2.ExportTraceServiceResponse()


class Run(NamedTuple):
    folder: Path
    spans: dict[tuple[str, str], Span]
    log: str  # of the server


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A request of a trace, and those of a client."""
    folder = tmp_path_factory.mktemp("trace")
    runs = folder / "runs"
    runs.mkdir()
    collector, otlp = Collector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, otlp)
    endpoint = f"http://127.0.0.1:{otlp.add_insecure_port('127.0.0.1:0')}"
    otlp.start()
    address = unix(folder, "model")
    arguments = ["serve", "embedded", "--listen", address, "--record", f"{runs}/model.jsonl"]
    arguments += ["--otlp-endpoint", endpoint, "--otlp-service-name", "server"]
    model = Forked("model_server", arguments, environment(), folder / "model.log")
    try:
        options: dict[str, Any] = {
            "app": "app:create_app()", "remote_model": address, "log_format": "json",
            "record": str(runs / "server.jsonl"), "otlp_endpoint": endpoint,
            "otlp_service_name": "server",
        }  # fmt: skip
        more = {"otlp_endpoint": endpoint, "otlp_service_name": "router"}
        with serving(folder, **options) as server, contextlib.ExitStack() as stack:
            router = stack.enter_context(
                contextlib.closing(RouterProcess(server.url, record=runs / "router.jsonl", **more))
            ).probed()
            asked = {"prompt": "hello", "max_tokens": 5, "seed": 7, "ignore_eos": True}
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
            assert router.post(json=asked, headers=headers).ok
            shape = ["--numsamples", str(REQUESTS), "--rate", "40", "--output-tokens", "fixed:12"]
            client = [sys.executable, "-m", "client.client", "--target", router.url]
            ran = subprocess.run(
                [*client, "--out", str(runs), *shape],
                cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr
            # they write their last lines, and send their last spans, when they end
            for process in (router.process, server.process):
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE_S)
            log = server.log
        model.send_signal(signal.SIGTERM)
        model.wait(PATIENCE_S)
    finally:
        model.kill()
    yield Run(runs, collector.spans, log)
    otlp.stop(None).wait()


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}


def test_a_trace_leads_from_the_router_to_queue_prefill_and_decode_and_to_the_model(
    run: Run,
) -> None:
    assert all("message" in json.loads(line) for line in run.log.splitlines())
    spans, chain = dict(run.spans), []
    for service, name, kind in (
        ("router", "POST /v1/completions", "SERVER"),
        ("router", "attempt", "CLIENT"),
        ("server", "POST /v1/completions", "SERVER"),
        ("server", "generate", "INTERNAL"),
    ):
        chain.append(spans.pop((service, name)))
        assert chain[-1].kind == Span.SpanKind.Value(f"SPAN_KIND_{kind}")
    parts = [spans.pop(("server", name)) for name in ("queue", "prefill", "decode")]
    executed = spans.pop(("server.model-server", "execute"))
    assert not spans
    routed, _, served, generate = chain
    assert routed.parent_span_id.hex() == PARENT
    assert [b.parent_span_id for b in chain[1:]] == [a.span_id for a in chain[:-1]]
    assert {span.parent_span_id for span in (*parts, executed)} == {generate.span_id}
    for earlier, later in itertools.pairwise(parts):
        assert earlier.end_time_unix_nano == later.start_time_unix_nano
    assert parts[-1].end_time_unix_nano == generate.end_time_unix_nano
    facts = attributes(generate)
    named_by_tgi = {"total_time", "validation_time", "queue_time", "inference_time"}
    assert named_by_tgi | {"time_per_token", "seed"} <= set(facts)
    assert (facts["seed"], facts["gen_ai.usage.output_tokens"], facts["end"]) == ("7", 5, "length")
    assert attributes(served)["request.id"] == attributes(routed)["request.id"] == "mine"
    prompt = facts["gen_ai.usage.input_tokens"]
    assert attributes(executed) == {"rank": 0, "tokens": prompt + 4, "iterations": 5}
    assert executed.end_time_unix_nano <= generate.end_time_unix_nano


Slices = dict[str, list[Slice]]  # of each process, on one clock


@pytest.fixture
def slices(run: Run) -> Slices:
    """In order of time."""
    found: Slices = {}
    for process in trace.read_processes(run.folder):
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


def test_a_trace_has_each_slice_on_one_clock_and_arrows_from_process_to_process(
    run: Run, slices: Slices, tmp_path: Path
) -> None:
    ours = sorted((s.name, s.start_us) for s in with_parts(itertools.chain(*slices.values())))
    trace.main([str(run.folder), "--out", str(tmp_path / "trace.json")])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sorted((e["name"], e["ts"]) for e in events if e["ph"] == "X") == ours
    arrows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "st":
            arrows.setdefault(event["id"], []).append(event)
    processes = [{event["pid"] for event in arrow} for arrow in arrows.values()]
    assert processes.count({1, 2, 3, 4}) == REQUESTS
    for first, *others in arrows.values():
        assert [first["ph"], *{event["ph"] for event in others}] == ["s", "t"]
        assert first["ts"] <= min(event["ts"] for event in others)
