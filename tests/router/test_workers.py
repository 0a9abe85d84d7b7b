"""Several processes as one router: what they count, what they are told, and how they end."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from router.config import parse_args
from router.workers import Workers
from tests.router.conftest import Net, RouterProcess
from tests.support.process import PATIENCE_S, ROOT, closed_at_end, eventually
from tests.support.wire import post

COUNT = 3


def started(net: Net, *upstreams: Any, **options: Any) -> RouterProcess:
    router = net.router(*upstreams, workers=COUNT, **options)
    eventually(lambda: len(router.logged("upstream ready")) == COUNT, "every worker's probe")
    return router


def pids(router: RouterProcess) -> set[int]:
    return {child.pid for child in psutil.Process(router.process.pid).children()}


def test_metrics_and_upstreams_are_those_of_all_workers_and_no_limit_is_exceeded(net: Net) -> None:
    upstream = net.upstream(hold=True)
    router = started(net, upstream, max_connect_per_upstream=7)
    address = ("127.0.0.1", router.port)
    # in turn: four a worker, whose parts are three, two and two
    clients = [closed_at_end(socket.create_connection(address, PATIENCE_S)) for _ in range(12)]
    for client in clients:
        client.sendall(b"".join(post("/v1/completions", model="m")))
    eventually(lambda: (router.in_flight(), router.waiting()) == (7, 5), "places and queues")
    assert upstream.current == 7
    assert router.metric("eb_router_in_flight") == 7
    assert [one["limit"] for one in router.upstreams().values()] == [7]
    upstream.release()
    assert all(client.recv(9999).startswith(b"HTTP/1.1 200 ") for client in clients)
    assert router.metric("eb_router_requests_total") == 12
    served = [router.metric("eb_router_requests_total", worker=str(n)) for n in range(COUNT)]
    assert served == [4, 4, 4]
    assert router.in_flight() == router.waiting() == 0


def test_a_change_reaches_every_worker_and_one_that_replaces_a_dead_one(
    net: Net, tmp_path: Path
) -> None:
    first, second, third = (net.upstream() for _ in range(3))
    listed = tmp_path / "upstreams"
    listed.write_text(first.url)
    limit = {"max_connect_per_upstream": 2 * COUNT}
    router = started(net, upstreams_file=listed, admin_key="adm", **limit)
    assert router.change("POST", second.url, limit=COUNT - 1) == 400, "less than one for each"
    assert router.change("POST", second.url, limit=COUNT + 1) == 201
    assert router.change("DELETE", first.url) == 200
    assert router.change("DELETE", "http://nobody") == 404

    def asked() -> set[str]:
        answers = [router.post() for _ in range(2 * COUNT)]
        assert all(answer.ok for answer in answers)
        return {answer.headers["X-Upstream-Origin"] for answer in answers}

    eventually(lambda: router.upstreams()[second.url]["ready"], "the added upstream")
    assert asked() == {second.url}
    before = pids(router)
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: len(pids(router) - {killed}) == COUNT, "a new worker")
    assert len(router.logged("worker ended")) == 1
    eventually(lambda: router.upstreams()[second.url]["ready"], "its probes")
    assert set(router.upstreams()) == {second.url}
    assert router.upstreams()[second.url]["limit"] == COUNT + 1
    assert asked() == {second.url}
    listed.write_text(third.url)
    router.process.send_signal(signal.SIGHUP)
    eventually(lambda: len(router.logged("upstreams read again")) == COUNT, "every worker")
    eventually(lambda: all(u["ready"] for u in router.upstreams().values()), "its probes")
    assert set(router.upstreams()) == {second.url, third.url}


def test_a_worker_that_hangs_is_replaced(net: Net) -> None:
    router = started(net, net.upstream(), max_connect_per_upstream=COUNT)
    assert router.upstreams(), "what every worker has answered"
    before = pids(router)
    hung = min(before)
    os.kill(hung, signal.SIGSTOP)
    eventually(lambda: len(pids(router) - before) == 1, "a new worker")
    assert len(router.logged("worker ended")) == 1
    assert pids(router) >= before - {hung}
    assert all(router.post().ok for _ in range(2 * COUNT))


def test_sigterm_drains_all_workers(net: Net) -> None:
    upstream = net.upstream(hold_after=1)
    router = started(net, upstream, max_connect_per_upstream=COUNT)
    running = [router.streaming() for _ in range(COUNT)]
    router.process.send_signal(signal.SIGTERM)
    eventually(lambda: len(router.logged("draining")) == COUNT, "all of them")
    assert router.post().status_code == 503
    upstream.release()
    for stream in running:
        assert stream.raw.read().endswith(b"data: [DONE]\n\n")
    assert router.process.wait(timeout=PATIENCE_S) == 0


STARTING = """
import asyncio, os, signal, socket
from router.workers import WorkerSupervisor

def work(seat):  # it awaits no signal yet
    print(os.environ.get("SIGNALS", "no signal"), "before", flush=True)
    os.kill(os.getppid(), signal.SIGTERM)
    while True:
        signal.pause()

with socket.create_server(("127.0.0.1", 0)) as listener:
    asyncio.run(WorkerSupervisor(listener, 1, work).run())
"""


FULL = """
import errno, os
real = os.fork

def fork():
    os.fork = real
    raise OSError(errno.EAGAIN, "no process is left")

os.fork = fork
"""


EARLY = """
import os, signal
real = os.fork

def fork():
    os.fork = real
    pid = real()
    if pid == 0:
        os.environ["SIGNALS"] = "a signal"
        os.kill(os.getpid(), signal.SIGTERM)
    return pid

os.fork = fork
"""


@pytest.mark.parametrize(
    "before",
    ["", FULL, EARLY],
    ids=["at once", "after no process was left", "after one that ended before its first line"],
)
def test_a_worker_that_still_starts_ends_at_sigterm(before: str) -> None:
    code = before + STARTING
    command = [sys.executable, "-c", code]
    out = subprocess.check_output(command, cwd=ROOT, text=True, timeout=PATIENCE_S)
    assert out == "no signal before\n"


def test_workers_end_with_the_process_that_started_them(net: Net) -> None:
    router = started(net, net.upstream(), max_connect_per_upstream=COUNT)
    workers = [psutil.Process(pid) for pid in pids(router)]
    router.process.kill()
    gone, left = psutil.wait_procs(workers, PATIENCE_S)
    assert (len(gone), left) == (COUNT, [])


ORPHANED = """
import asyncio, socket
from router.workers import Seat, Workers

clients, own_clients = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
hub, own_hub = socket.socketpair()
clients.close()
hub.close()

async def hear_all():
    await Workers(None).listen(Seat(0, 1, own_clients, own_hub), asyncio.Protocol)
    print(asyncio.get_running_loop().remove_reader(own_clients))

asyncio.run(hear_all())
"""


def test_a_worker_that_drains_expects_nothing_of_a_dead_first_process() -> None:
    command = [sys.executable, "-c", ORPHANED]
    out = subprocess.check_output(command, cwd=ROOT, text=True, timeout=PATIENCE_S)
    assert out == "False\n", "its socket, which is readable for ever, is still looked at"


@pytest.mark.parametrize(
    "options",
    [[], ["--max-connect-per-upstream=8", "--record=x"],
     ["--max-connect-per-upstream=8", "--requests-per-minute=1"]],
)  # fmt: skip
def test_what_workers_cannot_share_is_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--upstreams=http://a:1", "--workers=2", *options], {})
    assert "--workers" in capsys.readouterr().err


def test_one_process_has_the_whole_limit() -> None:
    assert Workers(None).share(7) == 7
