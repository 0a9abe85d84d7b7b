"""Files and batches through the router, to real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest
import requests
from openai import OpenAI

from tests.router.conftest import Farm, RouterProcess, until
from tests.support.official import ended, line, outcome, require_answers, submitted
from tests.support.process import PATIENCE_S, Server, closed_at_end, serving

Start = Callable[..., RouterProcess]
TOKENS = 4
BIG = b"x" * (3 * 2**20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("jobs"), api_key="one,two") as server:
        yield server


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("other"), api_key="one,two") as server:
        yield server


@pytest.fixture
def router(server: Server, other: Server) -> Iterator[RouterProcess]:
    with_key = {"upstream_api_key": "one", "api_keys": "front"}
    router = RouterProcess(
        other.url, server.url, batch_upstream=server.url, max_body_bytes=2**16, **with_key
    )
    router.probed()
    until(lambda: _ready(official(router)), "the upstream for batches to be probed")
    yield router
    router.close()


def official(router: RouterProcess, key: str = "front") -> OpenAI:
    client = OpenAI(
        base_url=f"{router.url}/v1",
        api_key=key,
        max_retries=0,
        timeout=PATIENCE_S,
        default_headers={"Connection": "close"},
    )
    return closed_at_end(client)


def test_a_job_goes_to_the_upstream_that_is_named(
    router: RouterProcess, server: Server, other: Server
) -> None:
    client = official(router)
    batch = ended(client, submitted(client, [line(n, max_tokens=TOKENS) for n in range(20)]).id)
    assert batch.status == "completed"
    output, errors = outcome(client, batch, 20)
    assert not errors
    require_answers(output, TOKENS)
    found = [
        requests.get(
            f"{upstream.url}/v1/batches/{batch.id}",
            headers={"Authorization": "Bearer one"},
            timeout=PATIENCE_S,
        )
        for upstream in (server, other)
    ]
    assert found[0].json()["status"] == "completed"
    assert found[1].status_code == 404


def _ready(client: OpenAI) -> bool:
    try:
        client.files.list()
    except openai.InternalServerError:
        return False
    return True


def test_a_file_may_be_larger_than_any_other_body(router: RouterProcess) -> None:
    client = official(router)
    file = client.files.create(file=("big", BIG), purpose="batch")
    assert client.files.content(file.id).read() == BIG
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as gone:
        client.files.content(file.id)
    assert gone.value.response.headers["X-Upstream-Origin"]


def test_the_upstreams_refusals_reach_the_client(router: RouterProcess) -> None:
    client = official(router)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("f", b"{}"), purpose="vision")
    with pytest.raises(openai.AuthenticationError):
        official(router, "wrong").files.list()


def test_without_an_upstream_for_them_the_setting_is_named(server: Server, start: Start) -> None:
    router = start(server.url, upstream_api_key="one").probed()
    for method, path in (("GET", "files"), ("POST", "files"), ("POST", "batches/b/cancel")):
        answer = requests.request(method, f"{router.url}/v1/{path}", timeout=PATIENCE_S)
        assert answer.status_code == 501
        assert answer.json()["error"]["code"] == "no_batch_upstream"
        assert "BATCH_UPSTREAM" in answer.json()["error"]["message"]


def test_an_upstream_for_them_that_is_down_is_503(server: Server, start: Start) -> None:
    down = "http://127.0.0.1:1"
    answer = start(server.url, upstream_api_key="one", batch_upstream=down).get("/v1/batches")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "127.0.0.1" not in answer.text


def test_any_upstream_is_taken_where_they_share_a_database(server: Server, start: Start) -> None:
    down = "http://127.0.0.1:1"
    router = start(down, server.url, upstream_api_key="one", batch_upstream="any").probed()
    answer = router.get("/v1/batches")
    assert answer.status_code == 200
    assert answer.headers["X-Upstream-Origin"] == server.url


def new_batch(router: RouterProcess, **headers: str) -> requests.Response:
    return router.post("/v1/batches", json={"input_file_id": "f"}, headers=headers)


def test_a_new_batch_goes_to_an_upstream_of_its_model(farm: Farm, start: Start) -> None:
    first, second = farm.new(models=["a"]), farm.new(models=["b"])
    router = start(first, second, batch_upstream="any").probed()
    for model, upstream in (("a", first), ("b", second)):
        taken = new_batch(router, **{"X-Model": model})
        assert (taken.status_code, taken.headers["X-Upstream-Origin"]) == (200, upstream)
    by_default = start(first, second, batch_upstream="any", default_model="b").probed()
    assert new_batch(by_default).headers["X-Upstream-Origin"] == second

    unnamed = new_batch(router)
    assert unnamed.status_code == 400
    assert unnamed.json()["error"]["code"] == "model_required"
    assert "X-Model" in unnamed.json()["error"]["message"]
    assert "a, b." in unnamed.json()["error"]["message"]
    unknown = new_batch(router, **{"X-Model": "c"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (422, "model_not_found")
    assert len(farm.state(first)["seen"]) == 1
    assert len(farm.state(second)["seen"]) == 2


def test_only_a_new_batch_must_name_its_model_and_only_where_there_are_several(
    farm: Farm, start: Start
) -> None:
    first, second, other = (farm.new(models=[name]) for name in ("a", "a", "b"))
    router = start(first, other, batch_upstream="any").probed()
    assert router.post("/v1/files").status_code == 200
    assert router.post("/v1/batches/b/cancel").status_code == 200
    assert new_batch(start(first, second, batch_upstream="any").probed()).status_code == 200
    assert new_batch(start(first, other, batch_upstream=other).probed()).status_code == 200


def test_a_batch_is_put_off_while_no_upstream_of_its_model_is_ready(
    farm: Farm, start: Start
) -> None:
    first, second = farm.new(models=["a"]), farm.new(models=["b"])
    router = start(first, second, batch_upstream="any", probe_interval=0.1).probed()
    farm("behave", url=second, models_status=500)
    until(lambda: new_batch(router, **{"X-Model": "b"}).status_code == 503, "503 for b")
    assert not farm.state(first)["seen"]
