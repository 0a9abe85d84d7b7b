"""Official clients of real servers, and batch jobs through them: their lines, how to follow them,
and what must come out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import requests
from huggingface_hub import InferenceClient
from openai import OpenAI
from openai.types import Batch

from tests.support.hash_app import generated, spelled
from tests.support.process import PATIENCE_S, Server, closed_at_end, eventually

FINAL = ("completed", "failed", "expired", "cancelled")
Json = dict[str, Any]


def official(server: Any, **options: Any) -> OpenAI:
    """Of a server or a router. Keeps no connection, as its server may be killed."""
    client = OpenAI(
        base_url=f"{server.url}/v1",
        max_retries=0,
        timeout=PATIENCE_S,
        default_headers={"Connection": "close"},
        **{"api_key": "none", **options},
    )
    return closed_at_end(client)


def tgis(server: Server) -> InferenceClient:
    return closed_at_end(InferenceClient(model=server.url, timeout=PATIENCE_S))


def line(number: int, **body: Any) -> Json:
    """Greedy, so that its answer is known."""
    wanted = {"model": "embedded", "prompt": f"line {number}", "temperature": 0, **body}
    where = {"method": "POST", "url": "/v1/completions"}
    return {"custom_id": f"id {number}", **where, "body": wanted}


def expected(number: int, tokens: int) -> str:
    """The text of `line(number, max_tokens=tokens)`."""
    return spelled(generated(f"line {number}", tokens, None))


def submitted(client: OpenAI, lines: Sequence[Json], window: Any = "24h", **fields: Any) -> Batch:
    text = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    file = client.files.create(file=("lines.jsonl", text), purpose="batch")
    wanted: Any = {"endpoint": "/v1/completions", "completion_window": window, **fields}
    return client.batches.create(input_file_id=file.id, **wanted)


def reached(client: OpenAI, batch_id: str, holds: Callable[[Batch], bool], what: str) -> Batch:
    """The batch as soon as it holds, or has ended."""
    seen: list[Batch] = []

    def so() -> bool:
        seen.append(client.batches.retrieve(batch_id))
        return holds(seen[-1]) or seen[-1].status in FINAL

    eventually(so, what)
    return seen[-1]


def ended(client: OpenAI, batch_id: str) -> Batch:
    return reached(client, batch_id, lambda batch: False, f"the end of {batch_id}")


def done(batch: Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed + batch.request_counts.failed


def told(client: OpenAI, file_id: str | None) -> dict[str, Json]:
    """The lines of a file by custom_id, of which none may come twice."""
    if file_id is None:
        return {}
    lines = [json.loads(one) for one in client.files.content(file_id).text.splitlines()]
    by_id = {one["custom_id"]: one for one in lines}
    assert len(by_id) == len(lines)
    return by_id


def outcome(client: OpenAI, batch: Batch, total: int) -> tuple[dict[str, Json], dict[str, Json]]:
    """Lines of the output and of the error file: each request exactly once in one of them."""
    output, errors = told(client, batch.output_file_id), told(client, batch.error_file_id)
    assert not output.keys() & errors.keys()
    assert output.keys() | errors.keys() == {f"id {number}" for number in range(total)}
    return output, errors


def require_answers(output: dict[str, Json], tokens: int) -> None:
    """That all texts are those of an undisturbed run."""
    for custom_id, one in output.items():
        (choice,) = one["response"]["body"]["choices"]
        assert choice["text"] == expected(int(custom_id.removeprefix("id ")), tokens)


def jobs_of(server: Server) -> Json:
    answer = requests.get(f"{server.url}/stats", timeout=PATIENCE_S)
    shown: Json = answer.json()["jobs"]
    return shown
