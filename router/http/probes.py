"""Probes `/v1/models` of every upstream in the background, whatever its state; resolves DNS names.

If the operator declared an upstream's models, its `/health` is probed instead.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from urllib.parse import urlsplit

import msgspec

from router import log
from router.dispatching import AsyncDispatcher
from router.http.client import Pool
from router.rules.messages.headers import encoded
from router.rules.upstream import Spec, Upstream

AGAIN_S = 1.0  # between probes of an upstream that is not ready
MAX_LIST_BYTES = 1 << 20


class _List(msgspec.Struct):
    data: list[msgspec.Raw]


class _Model(msgspec.Struct):
    id: str


def parse_models(body: bytes) -> dict[str, bytes]:
    """The models of a `/v1/models` answer by id, each as the JSON that came. Raises ValueError if
    `body` is not a list of models."""
    try:
        described = msgspec.json.decode(body.decode(), type=_List).data
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its /v1/models is not an OpenAI model list: {error}") from None
    models = {}
    for model in described:
        with contextlib.suppress(ValueError, RecursionError):
            models[msgspec.json.decode(model, type=_Model).id] = bytes(model)
    return models


@dataclass(slots=True, eq=False)
class Prober:
    """Keeps the dispatcher's fleet up to date. `set_sources` sets the operator's upstreams."""

    dispatcher: AsyncDispatcher
    pool: Pool
    interval_s: float
    timeout_s: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # starts the next round now
    _names: list[Spec] = field(default_factory=list)

    def set_sources(self, sources: Mapping[str, Sequence[Spec]]) -> None:
        """Takes over the operator's lists, by source, and probes at once."""
        fleet = self.dispatcher.fleet
        fleet.forget_removals()
        self._names = [s for specs in sources.values() for s in specs if s.dns]
        for source, specs in sources.items():
            fleet.reconcile(source, [s for s in specs if not s.dns])
        wanted = {f"dns+{s.url}" for s in self._names}
        for gone in {u.source for u in fleet if u.source.startswith("dns+")} - wanted:
            fleet.reconcile(gone, [])
        fleet.unresolved = wanted - {u.source for u in fleet}
        self.dispatcher.tick(monotonic())
        self.wake.set()

    async def run(self) -> None:
        """Repeats rounds until it is cancelled. Between them it probes the upstreams that are not
        ready: requests for their models wait."""
        while True:
            self.wake.clear()
            await asyncio.gather(*(self._resolve(spec) for spec in self._names))
            await asyncio.gather(*map(self._probe, self.dispatcher.fleet))
            next_s = monotonic() + self.interval_s
            while not self.wake.is_set() and (left_s := next_s - monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(AGAIN_S, left_s)):
                        await self.wake.wait()
                if left_s > AGAIN_S and not self.wake.is_set():
                    lost = [upstream for upstream in self.dispatcher.fleet if not upstream.ready]
                    await asyncio.gather(*map(self._probe, lost))

    async def _resolve(self, spec: Spec) -> None:
        parts = urlsplit(spec.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            log.event(logging.WARNING, "name not resolved", name=spec.url, error=str(error))
            return
        if spec not in self._names:  # the lists were read again during the lookup
            return
        urls = set()
        for *_, address in found:
            ip = ipaddress.ip_address(address[0])
            host = str(ip) if ip.version == 4 else f"[{ip.compressed}]"
            urls.add(f"{parts.scheme}://{host}:{port}")
        # Sorted: the order of DNS answers changes, and the order of upstreams breaks ties.
        specs = [replace(spec, url=url, dns=False) for url in sorted(urls)]
        self.dispatcher.fleet.reconcile(f"dns+{spec.url}", specs)

    async def _models(self, spec: Spec) -> dict[str, bytes]:
        """Those that it serves. Raises OSError, and ValueError if the answer is not 200, too long
        or no list of models."""
        headers = {"Accept-Encoding": "identity"}
        if spec.key is not None:
            headers["Authorization"] = f"Bearer {spec.key}"
        path = "/health" if spec.models else "/v1/models"
        answer = await self.pool.ask("GET", spec.url, path.encode(), encoded(headers))
        try:
            if answer.status != 200:
                raise ValueError(f"its {path} returned {answer.status}")
            body = await answer.body.whole(MAX_LIST_BYTES)
        finally:
            self.pool.done(answer)
        if not spec.models:
            return parse_models(body)
        return {m: msgspec.json.encode({"id": m, "object": "model"}) for m in spec.models}

    async def _probe(self, upstream: Upstream) -> None:
        before = (upstream.probed, upstream.ready)
        begun = monotonic()
        try:
            async with asyncio.timeout(self.timeout_s):
                models = await self._models(upstream.spec)
        except TimeoutError:
            upstream.probe_failed(f"no response in {self.timeout_s:g} s", timed_out=True)
        except Exception as failure:  # whatever one upstream sends, the others are probed
            upstream.probe_failed(str(failure) or type(failure).__name__, timed_out=False)
        else:
            upstream.probe_succeeded(models, monotonic() - begun)
        if before != (upstream.probed, upstream.ready):
            log.event(
                logging.INFO if upstream.ready else logging.WARNING,
                "upstream ready" if upstream.ready else "upstream not ready",
                upstream=upstream.url,
                models=list(upstream.models),
                error=upstream.last_error,
            )
        self.dispatcher.tick(monotonic())
