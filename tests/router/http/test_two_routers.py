"""Two routers before the same servers: they share the load, and one may die under load."""

from __future__ import annotations

import threading
from collections import Counter

import requests

from tests.router.conftest import Net, RouterProcess
from tests.support.process import PATIENCE_S, eventually

CLIENTS, ANSWERS, EVENTS = 12, 10, 12


def test_one_of_two_routers_dies_under_load_and_its_clients_are_served_by_the_other(
    net: Net,
) -> None:
    upstreams = [net.upstream(events=EVENTS, interval=0.01) for _ in range(3)]
    routers = [
        net.router(*upstreams, policy="least-tokens", max_connect_per_upstream=32) for _ in range(2)
    ]
    dying, other = routers
    ended: Counter[str] = Counter()

    def whole(router: RouterProcess, client: int, number: int) -> bool:
        body = {"model": "m", "prompt": f"{client}", "max_tokens": EVENTS, "stream": True}
        headers = {"X-Request-Id": f"{client}-{number}"}
        try:
            url = f"{router.url}/v1/completions"
            with requests.post(url, json=body, headers=headers, timeout=PATIENCE_S) as answer:
                return answer.text.count(" w") == EVENTS and answer.text.endswith("[DONE]\n\n")
        except requests.RequestException:
            return False

    def serve(client: int) -> None:
        """As a client that knows both, and turns to the other one when its own fails."""
        own, number = routers[client % 2], 0
        while own is dying or number < ANSWERS:
            number += 1
            if whole(own, client, number):
                ended["whole"] += 1
            else:
                own = other
                ended["again" if whole(own, client, number) else "lost"] += 1

    threads = [threading.Thread(target=serve, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    eventually(lambda: dying.metric("eb_router_requests_total") > 5, "answers of both")
    dying.process.kill()
    for thread in threads:
        thread.join()
    assert ended["lost"] == 0
    assert ended["again"] == CLIENTS // 2, "each client of the dead one repeats one request"
    assert ended["whole"] >= CLIENTS * (ANSWERS - 1)
    sent = [len(upstream.bodies) for upstream in upstreams]
    assert max(sent) <= 1.5 * sum(sent) / 3
    eventually(lambda: not any(upstream.current for upstream in upstreams), "idle servers")
    for shown in other.upstreams().values():
        assert (shown["in_flight"], shown["outstanding_tokens"]) == (0, 0)
        assert shown["tokens_per_s"] > 0
