"""DNS names as upstreams: before they resolve, and while they do."""

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from router.config import parse_upstream
from router.dispatching import AsyncDispatcher
from router.http.probes import Prober
from router.rules.fleet import Fleet
from router.rules.policies import LeastWork
from router.rules.request import Limits
from tests.router.conftest import Net, until

NOWHERE = f"dns+http://{'n' * 64}:8500"  # a label of more than 63 characters: no server is asked


def test_names_without_an_address_are_no_reason_to_be_healthy(net: Net) -> None:
    router = net.starting(NOWHERE, wait_for=50)
    until(lambda: router.logged("name not resolved"), "a lookup")
    assert router.get("/health").status_code == 503
    for body in ({"model": "m"}, {"prompt": "x"}):
        refused = router.post(json=body)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == "no_upstream_ready"
    assert router.get("/v1/models/m").status_code == 503


def test_a_name_without_an_address_leaves_the_other_servers_alone(net: Net) -> None:
    router = net.router(net.upstream(), NOWHERE, wait_for=50, batch_upstream="any")
    assert router.post(json={"prompt": "x"}).ok
    for model, status in (("m", 200), ("other", 503)):  # its servers may have the other one
        assert router.post(json={"model": model}).status_code == status
        asked = router.post("/v1/batches", json={}, headers={"X-Model": model})
        assert asked.status_code == status


class Lookups:
    """The system's resolver: each lookup waits until the test answers it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: asyncio.Queue[asyncio.Future[list[str]]] = asyncio.Queue()
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._find)

    async def _find(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        return [(0, 0, 0, "", (address, port)) for address in await answer]


async def prober(session: aiohttp.ClientSession) -> tuple[Prober, Fleet]:
    fleet = Fleet()
    return Prober(AsyncDispatcher(fleet, LeastWork(), Limits()), session, 3600, 5), fleet


def names(*hosts: str) -> dict[str, Any]:
    return {"file": [parse_upstream(f"dns+http://{host}:9", 1) for host in hosts]}


def test_a_router_is_healthy_when_its_name_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        lookups = Lookups(monkeypatch)
        async with aiohttp.ClientSession() as session:
            probing, fleet = await prober(session)
            probing.set_sources(names("a"))
            for failing in (True, False):
                round_ = asyncio.create_task(probing.round())
                answer = await lookups.asked.get()
                assert not fleet.all_probed()
                if failing:
                    answer.set_exception(socket.gaierror("no address"))
                else:
                    answer.set_result(["127.0.0.1"])
                await round_
            assert fleet.all_probed()
            assert fleet.complete()

    asyncio.run(play())


def test_lists_read_again_during_a_lookup_keep_removed_servers_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        lookups = Lookups(monkeypatch)
        async with aiohttp.ClientSession() as session:
            probing, fleet = await prober(session)
            probing.set_sources(names("old", "stays"))
            round_ = asyncio.create_task(probing.round())
            old, stays = [await lookups.asked.get() for _ in range(2)]
            probing.set_sources(names("stays"))  # as SIGHUP does
            old.set_result(["127.0.0.1"])
            stays.set_result(["127.0.0.2"])
            await round_
            assert [upstream.url for upstream in fleet] == ["http://127.0.0.2:9"]

    asyncio.run(play())
