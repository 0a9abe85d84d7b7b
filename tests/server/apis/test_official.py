"""Each official client once, over real sockets. What the APIs promise is tested in tests/api."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from huggingface_hub.errors import GenerationError, ValidationError
from openai.types.responses import Response

from tests.server.apis import clients as programs
from tests.server.apis.test_clients import understood
from tests.support.dialects import NATIVE, body
from tests.support.official import official, tgis
from tests.support.process import PATIENCE_S, ROOT, Server, clients, serving


@pytest.mark.parametrize("name", ["openai", "huggingface_hub"])
def test_a_client_chats_calls_a_tool_and_gets_an_answer_of_a_schema(
    embedded: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of `test_clients.py` do, each in an environment of its own."""
    monkeypatch.setattr(programs, "MODEL", "embedded")
    understood(programs.told(name, embedded.url))


# --- OpenAI's -------------------------------------------------------------------------------
def test_errors_are_the_own_exceptions_of_openais_client(server: Server) -> None:
    client = official(server)
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError, match="gpt-9") as unknown:
            client.completions.create(model="gpt-9", prompt="x", stream=stream)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError, match="context length is 1024") as long:
            client.completions.create(model="embedded", prompt="x" * 2000, stream=stream)
        assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="'conversation'"):
        client.responses.create(model="embedded", input="x", conversation="conv_1")


# --- OpenAI's, /v1/responses ----------------------------------------------------------------
def test_a_response_is_streamed_and_kept(server: Server) -> None:
    client = official(server)
    fields: Any = {"model": "embedded", "max_output_tokens": 30, "extra_body": {"seed": 3}}
    whole = client.responses.create(input="x", **fields)
    Response.model_validate(whole.to_dict())
    with client.responses.stream(input="x", **fields) as stream:
        last: Any = list(stream)[-1]
    kept = client.responses.retrieve(last.response.id)
    assert kept.output_text == last.response.output_text == whole.output_text != ""
    assert [item.type for item in client.responses.input_items.list(kept.id)] == ["message"]
    again = client.responses.create(input="y", previous_response_id=kept.id, **fields)
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(input="z", previous_response_id=again.id, **fields)
    assert refused.value.code == "previous_response_not_found"


def test_a_response_of_a_server_that_was_killed_has_failed(tmp_path: Path) -> None:
    fields: Any = {"model": "embedded", "input": "x", "extra_body": {"ignore_eos": True}}
    with serving(tmp_path, hash_model={"step_s": 0.05}) as server:
        told = official(server).responses.create(background=True, **fields)
        server.reaches(running=1)
    with serving(tmp_path) as server:
        lost = official(server).responses.retrieve(told.id)
    assert lost.status == "failed"
    assert lost.error is not None
    assert lost.error.code == "server_error"


# --- TGI's ----------------------------------------------------------------------------------
ONCE = "Once upon a time"


def test_tgis_client_reads_details_streams_and_refusals(embedded: Server) -> None:
    client = tgis(embedded)
    asked: Any = {
        "max_new_tokens": 10, "repetition_penalty": 1.2, "frequency_penalty": 0.1, "seed": 0,
        "stop": ["zebra"], "temperature": 0.5, "top_p": 0.9, "top_k": 10, "truncate": 5,
        "typical_p": 0.9, "watermark": False, "return_full_text": False,
    }  # fmt: skip
    told = client.text_generation(
        ONCE, details=True, decoder_input_details=True, top_n_tokens=2, best_of=1, **asked
    )
    details = told.details
    assert details is not None
    assert (details.seed, details.generated_tokens) == (0, len(details.tokens))
    assert details.prefill[0].logprob is None
    assert all(token.logprob < 0 for token in details.prefill[1:])
    assert [len(top) for top in details.top_tokens or ()] == [2] * len(details.tokens)
    assert told.generated_text == "".join(token.text for token in details.tokens)
    assert "".join(client.text_generation(ONCE, stream=True, **asked)) == told.generated_text
    for stream in (False, True):
        with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
            client.text_generation("x", temperature=-1.0, stream=stream)


FIELDS: Any = {"model": "embedded", "stream": True, "seed": 1, "max_tokens": 9}
USER: Any = [{"role": "user", "content": "x"}]
COMMENT = b": waiting"


def chat(server: Server) -> str:
    stream: Any = official(server).chat.completions.create(messages=USER, **FIELDS)
    return "".join(event.choices[0].delta.content or "" for event in stream)


def tgi(server: Server) -> str:
    return "".join(tgis(server).text_generation("x", stream=True, max_new_tokens=9))


CALLS: Any = {chat: openai.APIError, tgi: GenerationError}


def test_official_clients_skip_comments_and_raise_their_own_error_of_a_failure(
    tmp_path: Path,
) -> None:
    hold = tmp_path / "hold"
    model = {"hold": hold, "fail_on": [2]}
    with (
        serving(tmp_path, hash_model=model, stream_heartbeat=0.05) as server,
        clients(1 + len(CALLS)) as call,
        ExitStack() as stack,
    ):
        stack.callback(hold.unlink, missing_ok=True)  # comments would keep streams open
        for fails in (True, False):
            hold.touch()
            first = call(server.ask, "x", 1)
            server.reaches(running=1)  # all others wait for the second iteration
            answers = {ask: call(ask, server) for ask in CALLS}
            server.reaches(running=1, waiting=len(CALLS))
            # it comes after them, so each of them has been sent comments as well
            last = requests.post(
                server.url + NATIVE, json=body(NATIVE, stream=True), stream=True, timeout=PATIENCE_S
            )
            with closing(last):
                lines = last.iter_lines()
                assert [next(lines) for _ in range(6)] == [COMMENT, b""] * 3
                hold.unlink()
            assert first.result().status_code == 200
            for ask, error in CALLS.items():
                if fails:
                    with pytest.raises(error, match="iteration 2 fails"):
                        answers[ask].result()
                else:
                    assert answers[ask].result() == ask(server)
            server.reaches(running=0, waiting=0)


NAMES = ("apis", "openai", "tgi", "deferred")
PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in NAMES]
FENCED = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
README = FENCED.findall((ROOT / "README.md").read_text())
EXAMPLES = [
    *((language, body) for language, body in README if body.startswith(("from ", "curl "))),
    *(
        (language, body)
        for page in PAGES[:-1]
        for language, body in FENCED.findall(page)
        if '"smollm2"' not in body  # these call tools, which the embedded model cannot
    ),
    *((language, body) for language, body in FENCED.findall(PAGES[-1]) if language == "python"),
]


@pytest.mark.parametrize(("language", "source"), EXAMPLES)
def test_an_example_runs(embedded: Server, tmp_path: Path, language: str, source: str) -> None:
    of_a_job = "batches.create" in source
    source = re.sub(r"(127\.0\.0\.1|localhost):8500", rf"\1:{embedded.config.port}", source)
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
    done = subprocess.run(
        [*command, source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert '{"error"' not in done.stdout
    if of_a_job:
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert {answer["custom_id"] for answer in answers} == {f"f{n}" for n in range(20)}
