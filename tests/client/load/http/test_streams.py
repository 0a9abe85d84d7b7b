"""Every event that carries generated tokens counts at its time, whatever it carries.

The server is a script: what it sends, and when.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from client.analysis.gates import PARTLY_VOID, Gate, judge
from client.analysis.metrics import measure
from client.load.http.dialects import Dialect, Native, OpenAI, Tgi
from client.load.http.exchange import Context, Exchange, Progress
from client.load.http.target import Target
from client.load.records import Run
from client.workloads.workload_file import Request
from tests.client.analysis.made import run_of

CHAT = OpenAI({}, chat=True)
STEP_S = 0.02


class Script(Context):
    """Its clock stands at the time of the event that was read last."""

    at_s = 0.0

    def now(self) -> float:
        return self.at_s


class Scripted:
    """A session and its response: an event every `STEP_S`."""

    status, content_type = 200, "text/event-stream"

    def __init__(self, script: Script, events: list[bytes]) -> None:
        self.script, self.left, self.content = script, iter(events), self

    def post(self, *_: object, **__: object) -> Scripted:
        return self

    async def __aenter__(self) -> Scripted:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def readany(self) -> bytes:
        event = next(self.left, None)
        self.script.at_s = round(self.script.at_s + STEP_S, 6)
        return b"" if event is None else b"data: " + event + b"\n\n"


def played(dialect: Dialect, events: list[Any], total: int) -> Run:
    script = Script(Target("t", "", dialect), {0: b""}, "run", Progress())
    exchange = Exchange(script, 0, Request(0.0, "p", 1, total, "immediate", None, 0), 0.0)
    end: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": total}}
    if isinstance(dialect, Native):
        end = {"done": True, "num_tokens": total}
    elif isinstance(dialect, Tgi):
        events = [*events[:-1], {**events[-1], "details": {"generated_tokens": total}}]
        end = {**events.pop(), "generated_text": "a"}
    done = [b"[DONE]"] if isinstance(dialect, OpenAI) else []
    session: Any = Scripted(script, [*(json.dumps(e).encode() for e in (*events, end)), *done])
    asyncio.run(exchange.talk(session))
    return run_of([exchange.ended(None, unfinished=False)])


def conservation(run: Run) -> Gate:
    return next(g for g in judge(run, measure(run)).gates if g.name == "token conservation")


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def call(**function: str) -> dict[str, Any]:
    return delta(tool_calls=[{"index": 0, "id": "1", "type": "function", "function": function}])


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (Native(), {"text": " a", "tokens": 1}),
        (Tgi(), {"token": {"id": 1, "text": " a", "special": False}}),
        (OpenAI({}), {"choices": [{"index": 0, "text": " a"}]}),
        (CHAT, delta(content=" a")),
        (CHAT, delta(reasoning=" a")),
        (CHAT, delta(content=None, reasoning_content=" a")),
        (CHAT, delta(content="", refusal=" a")),
        (CHAT, call(name="f")),
        (CHAT, call(arguments=' {"')),
        (CHAT, delta(function_call={"arguments": ' {"'})),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_model_generated_counts_at_its_time(dialect: Dialect, event: Any) -> None:
    run = played(dialect, [event] * 10, 10)
    measured = measure(run)
    assert measured.latencies["ttft"].tolist() == [STEP_S]
    assert measured.latencies["tpot"] == pytest.approx([STEP_S])
    assert conservation(run) == Gate("token conservation", "10 tokens delivered, 10 stated")


@pytest.mark.parametrize(("events", "total"), [(2, 10), (0, 10), (10, 2)])
def test_a_run_whose_tokens_are_not_accounted_for_is_marked(events: int, total: int) -> None:
    """Reasoning that is counted and not sent, or sent and not counted."""
    run = played(CHAT, [delta(content=" a")] * events, total)
    gate = conservation(run)
    assert gate.verdict == PARTLY_VOID
    assert f"{abs(total - events)} tokens without an event" in gate.found
    assert {"ttft_p50", "tpot_p50", "itl_p99", "goodput"} <= {v.figure for v in gate.voids}
    assert "e2e_p50" not in {v.figure for v in gate.voids}
    assert all("its count with every event" in v.remedy for v in gate.voids)


@pytest.mark.parametrize("event", [delta(role="assistant"), call(arguments="")])
def test_an_event_of_no_tokens_is_not_the_first(event: Any) -> None:
    """Nor do its count and that at the end show when the tokens between them came."""
    first = {**event, "usage": {"completion_tokens": 0}}
    run = played(CHAT, [first, *[delta(content=" a")] * 9], 9)
    assert run.outcomes[0].deliveries == tuple((round(k * STEP_S, 6), 1) for k in range(2, 11))
