"""The operator's API: `/upstreams`, `/health`, `/live`, `/metrics`, and the list of all models."""

import json
from dataclasses import replace
from typing import Any

from aiohttp import web

from router.config import RouterConfig, parse_upstream
from router.dispatching import AsyncDispatcher
from router.http.probes import Prober
from router.http.proxy import Proxy, holds_key
from router.metrics import Metrics
from router.rules.fleet import ADMIN
from router.rules.messages import errors
from router.rules.upstream import Spec, Upstream


class Admin:
    """Handlers that answer without an upstream."""

    def __init__(
        self,
        config: RouterConfig,
        dispatcher: AsyncDispatcher,
        prober: Prober,
        proxy: Proxy,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._prober = prober
        self._proxy = proxy
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/live", self.live),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            web.get("/upstreams", self.upstreams),
            web.post("/upstreams", self.add),
            web.post("/upstreams/drain", self.drain),
            web.delete("/upstreams", self.remove),
        ]

    async def health(self, request: web.Request) -> web.Response:
        """200 once every upstream has been probed once, whatever was found; 503 when draining, and
        while there are only names without addresses."""
        probed, fleet = self._dispatcher.fleet.all_probed(), self._dispatcher.fleet
        state = "draining" if self._proxy.draining else "ok" if probed else "starting"
        facts = {"status": state, "upstreams": len(fleet), "ready": sum(u.ready for u in fleet)}
        return web.json_response(facts, status=200 if state == "ok" else 503)

    async def live(self, request: web.Request) -> web.Response:
        """200 whenever the process answers: a restart helps only a process that does not."""
        return web.json_response({"status": "alive"})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def models(self, request: web.Request) -> web.Response:
        """The models of all upstreams."""
        if refused := self._refused(request, self._config.api_keys):
            return refused
        described = b", ".join(self._dispatcher.fleet.models().values())
        return _json(b'{"object": "list", "data": [%b]}' % described)

    async def model(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, self._config.api_keys):
            return refused
        name = self._proxy.model_for(request.match_info["model"])
        models = self._dispatcher.fleet.models()
        if name in models:
            return _json(models[name])
        if not self._dispatcher.fleet.complete():
            problem = errors.unavailable("Not every upstream is known yet.", "no_upstream_ready")
            return errors.response(problem, request.path)
        known = ", ".join(models) or "none"
        message = f"The model {name} does not exist, all available models: {known}."
        return errors.response(errors.invalid(message, 404, "model_not_found"), request.path)

    async def upstreams(self, request: web.Request) -> web.Response:
        """The state of every upstream, and the number of waiting requests by model."""
        if refused := self._refused(request, self._admin_keys()):
            return refused
        shown = [self._show(u) for u in self._dispatcher.fleet]
        return web.json_response({"upstreams": shown, "waiting": self._dispatcher.state.waiting()})

    async def add(self, request: web.Request) -> web.Response:
        """`{"url": …, "limit"?: int, "api_key"?: str}`: adds an upstream, or restores a known one.
        A field that is left out keeps its value. A new upstream has only the key given here."""
        return await self._change(request, "add")

    async def drain(self, request: web.Request) -> web.Response:
        """`{"url": …}`: sends it no new requests; running ones continue."""
        return await self._change(request, "drain")

    async def remove(self, request: web.Request) -> web.Response:
        """`{"url": …}`: removes it; running requests continue."""
        return await self._change(request, "remove")

    async def _change(self, request: web.Request, verb: str) -> web.Response:
        if not self._config.admin_key:
            message = "Changes need an admin key: start the router with ADMIN_KEY."
            return errors.response(errors.invalid(message, 403, "admin_disabled"), request.path)
        if refused := self._refused(request, self._admin_keys()):
            return refused
        try:
            body = _parsed(await request.read())
            if not isinstance(body, dict) or not isinstance(body.get("url"), str):
                raise ValueError('the body must be {"url": "http://host:port"}')
            spec = self._read_spec(body)
        except ValueError as error:
            return errors.response(errors.invalid(str(error)), request.path)
        known = self._dispatcher.fleet.get(spec.url)
        if verb == "add":
            upstream = self._dispatcher.fleet.add(spec, ADMIN)
            self._prober.probe_soon()
        elif known is None:
            problem = errors.invalid(f"{spec.url} is not an upstream.", 404, "no_such_upstream")
            return errors.response(problem, request.path)
        else:
            upstream = known
            upstream.draining = True
            if verb == "remove":
                self._dispatcher.fleet.remove(spec.url)
        self._dispatcher.fleet_changed()
        return web.json_response(self._show(upstream), status=201 if known is None else 200)

    def _read_spec(self, body: dict[str, Any]) -> Spec:
        """Raises ValueError. Only configured servers get the common UPSTREAM_API_KEY: otherwise a
        user who may add servers could learn it by adding their own."""
        asked = parse_upstream(body["url"], self._config.max_connect_per_upstream)
        if asked.dns:
            raise ValueError("a dns+ name is allowed only in UPSTREAMS and the upstreams file")
        known = self._dispatcher.fleet.remembered(asked.url)
        spec = asked if known is None else known.spec
        limit, key = body.get("limit", spec.limit), body.get("api_key", spec.key)
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit must be a whole number of at least 1, not {limit!r}")
        if key is not None and not isinstance(key, str):
            raise ValueError("api_key must be a string")
        return replace(spec, limit=limit, key=key)

    def _admin_keys(self) -> tuple[str, ...]:
        """The keys that may read /upstreams: the clients' keys if there is no admin key."""
        return (self._config.admin_key,) if self._config.admin_key else self._config.api_keys

    @staticmethod
    def _refused(request: web.Request, keys: tuple[str, ...]) -> web.Response | None:
        if not keys or holds_key(request, keys):
            return None
        message = "A valid key is required (API_KEYS; for /upstreams ADMIN_KEY, if it is set)."
        problem = errors.no_key(message)
        return errors.response(problem, request.path)

    def _show(self, upstream: Upstream) -> dict[str, Any]:
        now = self._dispatcher.now()
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
            "tokens_per_s": upstream.load.known_rate(now),
            "told": upstream.load.told,
            "breaker": upstream.breaker.state(now).name.lower(),
            "paused_s": max(0.0, upstream.paused_until - now),
            "last_error": upstream.last_error,
        }


def _json(text: bytes) -> web.Response:
    return web.Response(body=text, headers={"Content-Type": "application/json; charset=utf-8"})


def _parsed(body: bytes) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not valid JSON: {error}") from None
