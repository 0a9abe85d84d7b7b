"""The operator's API: `/upstreams`, `/health`, `/live`, `/metrics`, and the list of all models."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

import msgspec

from router.config import RouterConfig, parse_upstream
from router.dispatching import AsyncDispatcher
from router.http.probes import Prober
from router.http.proxy import Proxy, holds_key
from router.http.server import ClientRequest
from router.metrics import Metrics
from router.rules.breaker import BreakerState
from router.rules.fleet import ADMIN
from router.rules.messages import errors
from router.rules.messages.errors import Response
from router.rules.messages.headers import encoded
from router.rules.upstream import Spec, Upstream
from router.workers import Workers

BREAKER = [state.name.lower() for state in BreakerState]  # the worst is the last
MAX_CHANGE_BYTES = 1 << 20  # of a body that says what is to change


@dataclass(frozen=True, slots=True)
class Admin:
    """Handlers that answer without an upstream. They raise RouterError."""

    config: RouterConfig
    dispatcher: AsyncDispatcher
    prober: Prober
    proxy: Proxy
    metrics: Metrics
    workers: Workers

    def __post_init__(self) -> None:
        self.workers.does["upstreams"] = lambda _: self._state()
        self.workers.does["change"] = self._apply

    def routes(self) -> dict[tuple[str, str], Callable[[ClientRequest], Awaitable[Response]]]:
        """By method and path; a path that ends with a slash stands for all below it."""
        return {
            ("GET", "/health"): self.health,
            ("GET", "/live"): self.live,
            ("GET", "/metrics"): self.scrape,
            ("GET", "/v1/models"): self.models,
            ("GET", "/v1/models/"): self.model,
            ("GET", "/upstreams"): self.upstreams,
            ("POST", "/upstreams"): partial(self.change, "add"),
            ("POST", "/upstreams/drain"): partial(self.change, "drain"),
            ("DELETE", "/upstreams"): partial(self.change, "remove"),
        }

    async def health(self, request: ClientRequest) -> Response:
        """200 once every upstream has been probed once, whatever was found; 503 when draining, and
        while there are only names without addresses."""
        probed, fleet = self.dispatcher.fleet.all_probed(), self.dispatcher.fleet
        state = "draining" if self.proxy.draining else "ok" if probed else "starting"
        facts = {"status": state, "upstreams": len(fleet), "ready": sum(u.ready for u in fleet)}
        return _shown(facts, 200 if state == "ok" else 503)

    async def live(self, request: ClientRequest) -> Response:
        """200 whenever the process answers: a restart helps only a process that does not."""
        return _shown({"status": "alive"})

    async def scrape(self, request: ClientRequest) -> Response:
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return Response(200, await self.metrics.text(), encoded(kind))

    async def models(self, request: ClientRequest) -> Response:
        """The models of all upstreams."""
        _demand(request, self.config.api_keys)
        described = [msgspec.Raw(one) for one in self.dispatcher.fleet.models().values()]
        return _shown({"object": "list", "data": described})

    async def model(self, request: ClientRequest) -> Response:
        _demand(request, self.config.api_keys)
        name = self.proxy.model_for(request.path.removeprefix("/v1/models/"))
        models = self.dispatcher.fleet.models()
        if name in models:
            return _shown(msgspec.Raw(models[name]))
        if not self.dispatcher.fleet.complete():
            raise errors.unavailable("Not every upstream is known yet.")
        known = ", ".join(models) or "none"
        message = f"The model {name} does not exist, all available models: {known}."
        raise errors.invalid(message, 404, "model_not_found")

    async def upstreams(self, request: ClientRequest) -> Response:
        """The state of every upstream, and the number of waiting requests by model. Without an
        admin key, clients may read it."""
        admin_key = self.config.admin_key
        _demand(request, (admin_key,) if admin_key else self.config.api_keys)
        return _shown(_together(await self.workers.ask("upstreams")))

    def _state(self) -> dict[str, Any]:
        """What this worker knows."""
        shown = [_state_of(upstream) for upstream in self.dispatcher.fleet]
        return {"upstreams": shown, "waiting": self.dispatcher.waiting()}

    async def change(self, verb: str, request: ClientRequest) -> Response:
        """Of `{"url": …, "limit"?: int, "api_key"?: str}`. `add`: adds an upstream, or restores a
        known one; a field that is left out keeps its value, and a new upstream has only the key
        given here. `drain`: sends it no new requests. `remove`: forgets it. Running requests
        continue."""
        if not self.config.admin_key:
            message = "Changes need an admin key: start the router with ADMIN_KEY."
            raise errors.invalid(message, 403, "admin_disabled")
        _demand(request, (self.config.admin_key,))
        try:
            async with asyncio.timeout(self.config.client_idle):
                given = await request.body.whole(MAX_CHANGE_BYTES)
        except ValueError as error:
            raise errors.invalid(str(error), 413) from None
        except TimeoutError:
            raise errors.too_slow() from None
        try:
            body = msgspec.json.decode(given)
            if not isinstance(body, dict) or not isinstance(body.get("url"), str):
                raise ValueError('the body must be {"url": "http://host:port"}')
            url = self._read_spec(body).url
        except (ValueError, RecursionError) as error:
            raise errors.invalid(str(error)) from None
        results = await self.workers.ask("change", (verb, body))
        if results[0] is None:
            message = f"{url} is not an upstream."
            raise errors.invalid(message, 404, "no_such_upstream")
        states = [{"upstreams": [shown], "waiting": {}} for _, shown in filter(None, results)]
        return _shown(_together(states)["upstreams"][0], results[0][0])

    def _apply(self, change: tuple[str, dict[str, Any]]) -> tuple[int, dict[str, Any]] | None:
        """Status and state of the changed upstream; None if it is not known."""
        verb, body = change
        spec, fleet = self._read_spec(body), self.dispatcher.fleet
        known = fleet.get(spec.url)
        upstream = fleet.add(spec, ADMIN) if verb == "add" else known
        if upstream is None:
            return None
        if verb == "add":
            self.prober.wake.set()
        else:
            upstream.draining = True
        if verb == "remove":
            fleet.remove(spec.url)
        self.dispatcher.tick(monotonic())
        return (201 if known is None else 200), _state_of(upstream)

    def _read_spec(self, body: dict[str, Any]) -> Spec:
        """Raises ValueError. Only configured servers get the common UPSTREAM_API_KEY: otherwise a
        user who may add servers could learn it by adding their own."""
        least = self.config.workers
        usual = self.workers.share(self.config.max_connect_per_upstream)
        asked = parse_upstream(body["url"], usual)
        if asked.dns:
            raise ValueError("a dns+ name is allowed only in UPSTREAMS and the upstreams file")
        known = self.dispatcher.fleet.remembered(asked.url)
        spec = asked if known is None else known.spec
        limit, key = body.get("limit", least), body.get("api_key", spec.key)
        if type(limit) is not int or limit < least:
            raise ValueError(f"limit must be a whole number of at least {least}, not {limit!r}")
        limit = self.workers.share(limit) if "limit" in body else spec.limit
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable()):
            raise ValueError("api_key must be a string of printable ASCII characters")
        return replace(spec, limit=limit, key=key)


def _demand(request: ClientRequest, keys: tuple[str, ...]) -> None:
    if keys and not holds_key(request, keys):
        message = "A valid key is required (API_KEYS; for /upstreams ADMIN_KEY, if it is set)."
        raise errors.no_key(message)


def _state_of(upstream: Upstream) -> dict[str, Any]:
    now = monotonic()
    return {
        "url": upstream.url,
        "source": upstream.source,
        "ready": upstream.ready,
        "draining": upstream.draining,
        "models": list(upstream.models),
        "in_flight": upstream.in_flight,
        "limit": upstream.spec.limit,
        "latency_s": upstream.latency_s,
        "outstanding_tokens": upstream.load.work(now),
        "tokens_per_s": upstream.load.rate,
        "told": upstream.load.told,
        "breaker": upstream.breaker.state(now).name.lower(),
        "paused_s": max(0.0, upstream.paused_until - now),
        "last_error": upstream.last_error,
    }


def _together(states: list[dict[str, Any]]) -> dict[str, Any]:
    """What several workers know: counts add up, and the worst state counts."""
    first, *others = states
    shown = {one["url"]: one for one in first["upstreams"]}
    for state in others:
        for one in state["upstreams"]:
            all_ = shown.setdefault(one["url"], one)
            if all_ is one:
                continue
            for name in ("in_flight", "limit", "outstanding_tokens"):
                all_[name] = all_[name] + one[name]
            all_["tokens_per_s"] = all_["tokens_per_s"] or one["tokens_per_s"]
            all_["ready"] = all_["ready"] and one["ready"]
            all_["paused_s"] = max(all_["paused_s"], one["paused_s"])
            all_["breaker"] = max(all_["breaker"], one["breaker"], key=BREAKER.index)
            all_["last_error"] = all_["last_error"] or one["last_error"]
        for model, count in state["waiting"].items():
            first["waiting"][model] = first["waiting"].get(model, 0) + count
    return {"upstreams": [*shown.values()], "waiting": first["waiting"]}


def _shown(value: object, status: int = 200) -> Response:
    kind = {"Content-Type": "application/json; charset=utf-8"}
    return Response(status, msgspec.json.encode(value), encoded(kind))
