"""Probes `/v1/models` of every upstream in the background, whatever its state; resolves DNS names.

If the operator declared an upstream's models, its `/health` is probed instead.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from urllib.parse import urlsplit

import msgspec

from router import log
from router.dispatching import AsyncDispatcher
from router.http.client import Pool
from router.rules.messages.headers import Pairs, encoded
from router.rules.upstream import Spec, Upstream

AGAIN_S = 1.0  # between probes of an upstream that is not ready
MAX_LIST_BYTES = 1 << 20


class _List(msgspec.Struct):
    data: list[msgspec.Raw]


class _Model(msgspec.Struct):
    id: str


_LIST, _MODEL = msgspec.json.Decoder(_List), msgspec.json.Decoder(_Model)


def parse_models(body: bytes) -> dict[str, bytes]:
    """The models of a `/v1/models` answer by id, each as the JSON that came. Raises ValueError if
    `body` is not a list of models."""
    try:
        described = _LIST.decode(body.decode()).data
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its /v1/models is not an OpenAI model list: {error}") from None
    models = {}
    for model in described:
        with contextlib.suppress(ValueError, RecursionError):
            models[_MODEL.decode(model).id] = bytes(model)
    return models


class Prober:
    """Keeps the dispatcher's fleet up to date. `set_sources` sets the operator's upstreams."""

    def __init__(
        self,
        dispatcher: AsyncDispatcher,
        pool: Pool,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._pool = pool
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._names: list[Spec] = []
        self._wake = asyncio.Event()

    def set_sources(self, sources: Mapping[str, Sequence[Spec]]) -> None:
        """Takes over the operator's lists, by source, and probes at once."""
        self._dispatcher.fleet.forget_removals()
        self._names = [s for specs in sources.values() for s in specs if s.dns]
        for source, specs in sources.items():
            self._dispatcher.fleet.reconcile(source, [s for s in specs if not s.dns])
        wanted = {f"dns+{s.url}" for s in self._names}
        for gone in {
            u.source for u in self._dispatcher.fleet if u.source.startswith("dns+")
        } - wanted:
            self._dispatcher.fleet.reconcile(gone, [])
        self._dispatcher.fleet.unresolved = wanted - {u.source for u in self._dispatcher.fleet}
        self._dispatcher.fleet_changed()
        self.probe_soon()

    def probe_soon(self) -> None:
        """Starts the next round now."""
        self._wake.set()

    async def run(self) -> None:
        """Repeats rounds until it is cancelled."""
        while True:
            self._wake.clear()
            await self.round()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._until_woken()
            except TimeoutError:
                pass

    async def round(self) -> None:
        """Resolves all names, then probes all upstreams, concurrently."""
        await asyncio.gather(*(self._resolve(spec) for spec in self._names))
        await asyncio.gather(*(self._probe(upstream) for upstream in self._dispatcher.fleet))

    async def _until_woken(self) -> None:
        """Probes the upstreams that are not ready meanwhile: requests for their models wait."""
        while True:
            try:
                async with asyncio.timeout(AGAIN_S):
                    await self._wake.wait()
                return
            except TimeoutError:
                lost = [upstream for upstream in self._dispatcher.fleet if not upstream.ready]
                await asyncio.gather(*map(self._probe, lost))

    async def _resolve(self, spec: Spec) -> None:
        parts = urlsplit(spec.url)
        loop = asyncio.get_running_loop()
        default = 443 if parts.scheme == "https" else 80
        try:
            found = await loop.getaddrinfo(
                parts.hostname, parts.port or default, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            log.event(logging.WARNING, "name not resolved", name=spec.url, error=str(error))
            return
        if spec not in self._names:  # the lists were read again during the lookup
            return
        urls = []
        for *_, address in found:
            ip = ipaddress.ip_address(address[0])
            host = str(ip) if ip.version == 4 else f"[{ip.compressed}]"
            urls.append(f"{parts.scheme}://{host}:{parts.port or default}")
        # Sorted: the order of DNS answers changes, and the order of upstreams breaks ties.
        specs = [replace(spec, url=url, dns=False) for url in sorted(set(urls))]
        self._dispatcher.fleet.reconcile(f"dns+{spec.url}", specs)

    async def _get(self, origin: str, path: str, headers: Pairs) -> bytes:
        """Raises OSError, and ValueError if the answer is not 200 or too long."""
        answer = await self._pool.ask("GET", origin, path.encode(), headers)
        try:
            if answer.status != 200:
                raise ValueError(f"its {path} returned {answer.status}")
            return await answer.body.whole(MAX_LIST_BYTES)
        finally:
            self._pool.done(answer)

    async def _probe(self, upstream: Upstream) -> None:
        request_headers = {"Accept-Encoding": "identity"}
        if upstream.spec.key is not None:
            request_headers["Authorization"] = f"Bearer {upstream.spec.key}"
        declared = upstream.spec.models
        path = "/health" if declared else "/v1/models"
        before = (upstream.probed, upstream.ready)
        begun = monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._get(upstream.url, path, encoded(request_headers))
            models = (
                {m: msgspec.json.encode({"id": m, "object": "model"}) for m in declared}
                if declared
                else parse_models(body)
            )
        except TimeoutError:
            error = f"no response in {self._timeout_s:g} s"
            upstream.probe_failed(error, timed_out=True)
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
        self._dispatcher.fleet_changed()
