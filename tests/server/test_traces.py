"""A request's trace, as a collector gets it from the router and the server behind it."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import requests
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from model_server.serving.service import ServedModel
from model_server.serving.traced import TracedModel
from model_server.wire import messages
from requested import Sampling
from seams import Opening, Step
from telemetry.tracing import start_tracing
from tests.router.conftest import RouterProcess
from tests.support.hash_model import HashModel
from tests.support.process import PATIENCE_S, serving

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []  # (service, span)

    def Export(  # noqa: N802 (the protocol's name)
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.ServicerContext,
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, service: str, name: str) -> list[Span]:
        return [span for of, span in self.spans if (of, span.name) == (service, name)]


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def attributes(span: Span) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}


def test_a_trace_leads_from_the_router_over_the_server_to_queue_prefill_and_decode(
    collector: tuple[Collector, str], tmp_path: Path
) -> None:
    spans, endpoint = collector
    own: Any = {"otlp_endpoint": endpoint, "otlp_service_name": "server", "log_format": "json"}
    with serving(tmp_path, **own) as server:
        router = RouterProcess(server.url, otlp_endpoint=endpoint, otlp_service_name="router")
        try:
            router.probed()
            answer = requests.post(
                f"{router.url}/v1/completions",
                json={"prompt": "hello", "max_tokens": 5, "seed": 7},
                headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"},
                timeout=PATIENCE_S,
            )
            assert answer.ok, answer.text
        finally:
            router.signal(signal.SIGTERM)
            router.process.wait(PATIENCE_S)
            router.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE_S)
    assert all("message" in json.loads(line) for line in server.log.splitlines())
    # both processes have ended, and so have sent everything
    (routed,) = spans.named("router", "POST /v1/completions")
    (attempt,) = spans.named("router", "attempt")
    (served,) = spans.named("server", "POST /v1/completions")
    (generate,) = spans.named("server", "generate")
    parts = [spans.named("server", name)[0] for name in ("queue", "prefill", "decode")]
    assert len(spans.spans) == 4 + len(parts)
    chain = [routed, attempt, served, generate]
    assert {span.trace_id.hex() for _, span in spans.spans} == {TRACE}
    assert routed.parent_span_id.hex() == PARENT
    assert [b.parent_span_id for b in chain[1:]] == [a.span_id for a in chain[:-1]]
    kinds = ["SERVER", "CLIENT", "SERVER", "INTERNAL"]
    assert [s.kind for s in chain] == [Span.SpanKind.Value(f"SPAN_KIND_{kind}") for kind in kinds]
    assert {span.parent_span_id for span in parts} == {generate.span_id}
    for earlier, later in itertools.pairwise(parts):
        assert earlier.end_time_unix_nano == later.start_time_unix_nano
    assert parts[-1].end_time_unix_nano == generate.end_time_unix_nano
    facts = attributes(generate)
    named_by_tgi = {"total_time", "validation_time", "queue_time", "inference_time"}
    assert named_by_tgi | {"time_per_token", "seed"} <= set(facts)
    assert (facts["seed"], facts["gen_ai.usage.output_tokens"], facts["end"]) == ("7", 5, "length")
    assert attributes(served)["request.id"] == attributes(routed)["request.id"] == "mine"


def test_a_model_server_traces_its_part_of_a_request(collector: tuple[Collector, str]) -> None:
    spans, endpoint = collector
    tracing = start_tracing(endpoint, "model")
    assert tracing is not None
    model = TracedModel(cast("ServedModel", HashModel()), tracing, rank=1)
    sent = Opening(4, [1, 2, 3], 3, Sampling(), trace=f"00-{TRACE}-{PARENT}-01")
    model.open([messages.read_opening(messages.opening(sent)), Opening(5, [1], 1, Sampling())])
    for step in (Step(4, 0, 3, True, [0, 1, 2]), Step(4, 3, 1, True, [3])):
        model.start([step, step._replace(id=5, start=step.start and 1, num_tokens=1)]).result()
    model.start([Step(5, 2, 1, True, [9])], [4]).result()
    tracing.close()
    ((_, span),) = spans.spans  # that of the other sequence has no trace
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    facts = attributes(span)
    assert (span.name, facts["rank"], facts["tokens"], facts["iterations"]) == ("execute", 1, 4, 2)
