"""The official OpenAI client through the router."""

from collections.abc import Callable, Iterator

import openai
import pytest

from tests.router.conftest import Farm, RouterProcess

TEXT = " w0 w1 w2 w3 w4"
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(shared: tuple[RouterProcess, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared[0].url}/v1", api_key="sk-1", max_retries=0) as client:
        yield client


def test_completions_and_chat(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="m", prompt="hi")
    assert completion.choices[0].text == TEXT
    chat = client.chat.completions.create(model="m", messages=HELLO)
    assert chat.choices[0].message.content == TEXT
    assert chat.usage is not None
    assert chat._request_id is not None


def test_streams(client: openai.OpenAI) -> None:
    events = client.completions.create(model="m", prompt="hi", stream=True)
    assert "".join(e.choices[0].text for e in events) == TEXT
    chunks = client.chat.completions.create(model="m", messages=HELLO, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == TEXT


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"


def test_refusals_are_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="all available models: m"):
        client.completions.create(model="none", prompt="hi")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")
    how = {"behave": {"status": 400}}
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="m", prompt="hi", extra_body=how)


def test_a_stream_that_breaks_is_an_api_error_and_not_a_short_answer(
    client: openai.OpenAI,
) -> None:
    how = {"behave": {"cut_after": 2}}
    stream = client.completions.create(model="m", prompt="hi", stream=True, extra_body=how)
    got: list[str] = []
    with pytest.raises(openai.APIError, match="failed"):
        got.extend(e.choices[0].text for e in stream)
    assert got == [" w0", " w1"]


def test_keys_of_the_router_are_the_clients_api_key(
    farm: Farm, start: Callable[..., RouterProcess]
) -> None:
    router = start(farm.new(models=["m"]), api_keys="sk-router").probed()
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="sk-router") as client:
        assert client.completions.create(model="m", prompt="hi").choices[0].text == TEXT
    with (
        openai.OpenAI(base_url=f"{router.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.completions.create(model="m", prompt="hi")
