"""Readers of a request, beside the loop that advances it, and what its log line says in the end."""

from __future__ import annotations

import json
import logging
from typing import cast

import pytest
from flask import Flask
from flask.testing import FlaskClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from api.follow import Follower
from api.http.departed import Departures
from api.http.hooks.logs import belongs_to_request, formatter, register_log
from api.http.hooks.traces import register_traces, trace_generations
from api.http.writer import Writer
from api.metrics import Metrics
from api.openai.choices import Choice, Segment
from api.openai.generation import forced
from api.service import Description, Service
from batching import BatchingManager
from engine.inference import Inference
from generate import dynamic
from generate.modes import make_ledger
from records import RequestRecord
from requested import Sampling
from scheduling.policies.orca import Orca
from serving.config import Config
from telemetry.stats import Stats
from telemetry.tracing import Tracing
from tests.batching.modes import MODES
from tests.batching.virtual import Books, World
from tests.support.dialects import NATIVE, body
from tests.support.hash_app import byte_tokenizer
from tests.support.hash_model import HashModel, ScriptedModel
from text.reasoning import ReasoningParser
from text.stops import Stops
from text.tokenizer import Detokenizer

LAY_OUT = dynamic.lay_out
OUTPUT = "gen_ai.usage.output_tokens"


def now_s() -> float:
    return 1.0


@pytest.fixture
def manager() -> BatchingManager:
    """Plans an iteration while another one is in flight."""
    manager = BatchingManager(Orca(), Books(), max_batch_size=4, max_waiting=9, lookahead=1)
    model = HashModel()
    manager.serve(model, make_ledger("dynamic", model))
    return manager


def service_of(manager: BatchingManager) -> Service:
    stats, parts = Stats(0.0), (Departures(), Writer(), now_s, lambda: cast(Description, {}))
    return Service(Config(mode="dynamic"), manager, byte_tokenizer(), stats, Metrics(stats), *parts)


def test_logprobs_of_what_may_be_reasoning_wait_until_that_is_known() -> None:
    manager = BatchingManager(Orca(), Books(), max_batch_size=1, max_waiting=1)
    model = ScriptedModel("<think>a</think>b")
    manager.serve(model, make_ledger("dynamic", model))
    inference = Inference(list(b"x"), 99, Sampling(logprobs=0), 0.0, streaming=True)
    choice = Choice(
        0, inference, service_of(manager), Stops([]), prompt_tokens=1, most_tokens=99,
        parser=ReasoningParser("possible", None),
    )  # fmt: skip
    manager.enqueue(inference)
    told: list[int] = []
    while not choice.ended:  # it reads after each token
        manager.step(LAY_OUT, now_s)
        told += [token.id for segment in choice.read() for token in segment.tokens]
    assert ord("b") in told
    assert ord("<") not in told


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_what_is_in_flight_is_not_there_for_a_reader(
    manager: BatchingManager, most: int, logprobs: int | None
) -> None:
    """Choices of one call are read whenever one of them has something new: the others may have
    their first token in flight."""
    service, prompt = service_of(manager), list(b"abab")
    sampling = Sampling(temperature=0.0, logprobs=logprobs, prompt_logprobs=logprobs)
    known = prompt
    if most == 0:  # the last token of the prompt is generated
        known, sampling = prompt[:-1], forced(prompt[-1], sampling)
    inference = Inference(known, max(most, 1), sampling, 0.0, streaming=True)
    choice = Choice(
        0, inference, service, Stops([]), prompt_tokens=len(prompt), echo=True, most_tokens=most
    )
    manager.enqueue(inference)
    read: list[Segment] = []
    while not choice.ended:
        manager.begin(now_s(), LAY_OUT)
        read += choice.read()
        if len(manager.in_flight) > 1 or inference.done:
            manager.finish(now_s(), manager.in_flight[0].outcome())
            read += choice.read()
    ids = inference.ids[: len(prompt) + most]
    assert "".join(segment.text for segment in read) == Detokenizer(byte_tokenizer()).decode(
        bytes(ids)
    )
    told = [token.id for segment in read for token in segment.tokens]
    assert told == ([] if logprobs is None else ids)


def test_the_log_and_the_trace_tell_what_the_client_received(
    manager: BatchingManager, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client leaves while a token is in flight, which never arrives."""
    inference, spans = Inference([1, 2, 3], 9, Sampling(seed=1), 0.0), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = Flask(__name__)
    register_log(app, now_s)
    register_traces(app, Tracing(provider.get_tracer("test"), provider), "hash")

    @app.post("/")
    def generate() -> str:
        belongs_to_request(inference)
        trace_generations(now_s, inference)
        manager.enqueue(inference)
        for _ in range(4):
            manager.step(LAY_OUT, now_s)
        manager.cancel(inference)
        manager.begin(now_s(), LAY_OUT)
        return ""

    with caplog.at_level(logging.INFO, "api.http.hooks.logs"):
        app.test_client().post("/").close()
    assert inference.record is not None
    assert inference.generated > inference.record.generated > 0
    (span,) = [span for span in spans.get_finished_spans() if span.name == "generate"]
    (line,) = caplog.records
    told = [vars(line)["fields"]["generated_tokens"], dict(span.attributes or {})[OUTPUT]]
    assert told == [inference.record.generated] * 2


def lines_of(caplog: pytest.LogCaptureFixture, kind: str) -> list[str]:
    lines = [formatter(kind).format(record) for record in caplog.records]
    caplog.clear()
    return lines


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_has_one_line_with_its_id_and_its_cost(
    client: FlaskClient, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "api.http.hooks.logs")
    for sent, tokens in (("mine", 5), ("x" * 129, 0), ("two words", 0)):
        asked = body(NATIVE, "hello", tokens, stream=stream)
        with client.post(NATIVE, json=asked, headers={"X-Request-Id": sent}) as answer:
            answer.get_data()
        (line,) = map(json.loads, lines_of(caplog, "json"))
        identity = answer.headers["X-Request-Id"]
        assert (identity == sent) == (sent == "mine"), "one that is none is replaced"
        told = [line[name] for name in ("method", "path", "status", "request_id")]
        assert told == ["POST", NATIVE, 200 if tokens else 400, identity]
        assert (line["level"], line["client"]) == ("info", "127.0.0.1")
        if tokens:
            assert (line["prompt_tokens"], line["generated_tokens"]) == (5, 5)
            assert line["ends"] == ["length"]
            assert 0 <= line["queue_s"] < line["ttft_s"] < line["duration_s"]
    client.get("/no%0Awhere").close()
    client.get("/health").close()  # a probe has none
    (line,) = lines_of(caplog, "plain")
    assert '"GET' not in line
    assert 'GET "/no\\nwhere" 404' in line


def test_a_response_ends_for_its_reader_once_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a client could ask for statistics that lack the response it has."""
    world, found = World(MODES[3]), list[bool]()
    inference = world.submit([1, 2], 3)

    def has_ended() -> bool:
        follower = Follower(inference, byte_tokenizer(), 2)
        list(follower.new())
        return follower.ended

    count = Books.request

    def noted(books: Books, record: RequestRecord) -> None:
        found.append(has_ended())
        count(books, record)

    monkeypatch.setattr(Books, "request", noted)
    world.run()
    assert (found, has_ended()) == ([False], True)
