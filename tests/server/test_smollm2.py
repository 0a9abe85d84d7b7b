"""A trained model with everything that serves GPT-2: greedy answers are the same, whatever serves
them, and a grammar keeps calls of tools, of which it knows nothing, to their schemas.
`tests/model/reference/test_smollm2.py` compares it with `transformers`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
from openai import OpenAI

from client.analysis.metrics import measure
from client.load.http.target import Target
from client.load.play import play
from client.load.servers.probing import adapted, served_words
from client.workloads.recipe import Recipe, make
from tests.client.conftest import started
from tests.model.reference.test_smollm2 import QUESTIONS
from tests.smollm2 import FILE, NEEDED
from tests.support.official import ended, outcome, submitted

ASKED, TOKENS = 8, 80
START_S = 300.0
PREFIX = "You are a helpful assistant. " + "Answer every question in one short sentence. " * 8
WAYS = {
    "nobatch": ["app.py", "nobatch"],
    "static": ["app.py", "static"],
    "dynamic": ["app.py", "dynamic"],
    "preempted": ["app.py", "dynamic", "--admission", "optimistic", "--kv-memory", "800tokens"],
    "remote": ["-m", "launcher"],
    "three shards": ["-m", "launcher", "--shards", "3"],  # one for each head of keys
}
pytestmark = [
    *NEEDED,
    pytest.mark.timeout(1200),
]


@contextmanager
def served(way: str, folder: Path) -> Iterator[Target]:
    command = [sys.executable, *WAYS[way], "--model", str(FILE), "--dtype", "float32"]
    with started(command, way.replace(" ", "-"), folder / "log", START_S) as server:
        yield server.target


def client_of(target: Target) -> OpenAI:
    return OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0)


def body(question: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": PREFIX},
            {"role": "user", "content": question},
        ],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


def ask(target: Target) -> list[dict[str, Any]]:
    """All at once."""

    def one(question: str) -> dict[str, Any]:
        url = f"{target.url}/v1/chat/completions"
        answer = requests.post(url, json=body(question), timeout=600)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    with ThreadPoolExecutor(ASKED) as threads:
        return list(threads.map(one, QUESTIONS[:ASKED]))


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Each question by itself."""
    with served("nobatch", tmp_path_factory.mktemp("alone")) as target:
        answers = list(map(text, ask(target)))
    assert "Paris" in answers[0]
    return answers


@pytest.mark.parametrize("way", [way for way in WAYS if way != "nobatch"])
def test_answers_are_the_same_however_they_are_served(
    way: str, alone: list[str], tmp_path: Path
) -> None:
    with served(way, tmp_path) as target:
        assert list(map(text, ask(target))) == alone
        again = ask(target)  # beginnings are there now, where prefixes are kept
        stats = requests.get(f"{target.url}/stats", timeout=60).json()
    assert list(map(text, again)) == alone
    hits = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in again]
    assert all(n >= 16 for n in hits) if way == "dynamic" else way != "static" or not any(hits)
    assert (stats["preemptions"] > 0) == (way == "preempted")


def test_a_deferred_job_answers_the_same(alone: list[str], tmp_path: Path) -> None:
    lines = [
        {"custom_id": f"id {n}", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": FILE.stem, **body(question)}}
        for n, question in enumerate(QUESTIONS[:ASKED])
    ]  # fmt: skip
    with served("dynamic", tmp_path) as target, client_of(target) as client:
        job = ended(client, submitted(client, lines, endpoint="/v1/chat/completions").id)
        output, errors = outcome(client, job, len(lines))
    assert not errors
    assert [text(output[f"id {n}"]["response"]["body"]) for n in range(ASKED)] == alone


def test_the_clients_prompts_have_the_lengths_asked_for(tmp_path: Path) -> None:
    recipe = Recipe(requests=16, rate=8.0, prompt_tokens="uniform:4,64", output_tokens="fixed:8")
    with served("dynamic", tmp_path) as target:
        target = adapted(target)
        workload = make(recipe, served_words(target))
        run = play(workload, target)
    assert measure(run).ok == 16
    assert [o.prompt_tokens for o in run.outcomes] == [r.prompt_tokens for r in workload.requests]


CITIES = ("Paris", "Rome", "Tokyo")
GUEST = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}},
    "required": ["name"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city", "unit", "days"],
        "additionalProperties": False,
    },
    "add_event": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 40},
            "guests": {"type": "array", "items": {"$ref": "#/$defs/guest"}, "maxItems": 3},
        },
        "required": ["title", "guests"],
        "additionalProperties": False,
        "$defs": {"guest": GUEST},
    },
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with (
        served("dynamic", tmp_path_factory.mktemp("tools")) as target,
        OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def chat(client: OpenAI, messages: list[Any], tools: list[Any] = TOOLS, **fields: Any) -> Any:
    model = client.models.list().data[0].id
    asked: Any = {"temperature": 0, "max_tokens": 400, **fields}
    return client.chat.completions.create(model=model, messages=messages, tools=tools, **asked)


def question(text: str) -> Any:
    return {"role": "user", "content": text}


def weather(city: str) -> Any:
    return question(f"How is the weather in {city}?")


@pytest.mark.parametrize(
    ("asked", "tools", "choice", "said"),
    [
        *((weather(city), TOOLS[:1], choice, city) for city in CITIES
          for choice in ("required", NAMED)),
        (question("Invite Ann and Bob to lunch."), TOOLS, "add_event", ""),
        (question("Who are you?"), TOOLS, "weather", ""),
        (weather("Paris"), TOOLS, "required", ""),
    ],
)  # fmt: skip
def test_a_forced_call_has_arguments_of_its_schema_streamed_or_not(
    client: OpenAI, asked: Any, tools: list[Any], choice: Any, said: str
) -> None:
    fields: Any = {"tool_choice": choice, "parallel_tool_calls": False, "seed": 5}
    wholes = [chat(client, [asked], tools, **fields)]
    if not said:
        wholes.append(chat(client, [asked], tools, **fields, temperature=1, n=2))
    for whole in wholes:
        for one in whole.choices:
            (call,) = one.message.tool_calls
            assert (one.finish_reason, one.message.content) == ("tool_calls", None)
            name, found = call.function.name, json.loads(call.function.arguments)
            assert choice in ("required", NAMED, name)
            jsonschema.validate(found, SCHEMAS[name])
            assert said in found.get("city", "")
    choices = [chunk.choices[0] for chunk in chat(client, [asked], tools, **fields, stream=True)]
    pieces = [call.function for one in choices for call in one.delta.tool_calls or ()]
    assert len(pieces) > 2  # they do not wait for the end
    (call,) = wholes[0].choices[0].message.tool_calls
    assert (pieces[0].name, choices[-1].finish_reason) == (call.function.name, "tool_calls")
    assert "".join(piece.arguments or "" for piece in pieces) == call.function.arguments


def earlier(city: str) -> list[Any]:
    """A question, the call that answered it, and its result."""
    arguments = json.dumps({"city": city, "unit": "celsius", "days": 1})
    function = {"name": "weather", "arguments": arguments}
    call = {"id": f"call_{city}", "type": "function", "function": function}
    return [
        weather(city),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "20 degrees"},
        {"role": "assistant", "content": f"In {city} it is 20 degrees."},
    ]


def test_a_call_by_the_models_own_choice_keeps_its_schema(client: OpenAI) -> None:
    """After a conversation that shows how, it calls; without one it also answers with texts."""
    shown = [message for city in ("Oslo", "Madrid", "Lima", "Cairo") for message in earlier(city)]
    found: list[Any] = []
    for messages in ([*shown, weather(city)] for city in CITIES):
        for one in chat(client, messages, TOOLS[:1], n=4, temperature=0.7, seed=1).choices:
            found += one.message.tool_calls or []
    assert found
    for call in found:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS["weather"])
    told = chat(client, [question("Who are you?")], TOOLS[:1], max_tokens=60).choices[0]
    assert told.message.content
