"""Which upstream gets calls about files, batches and stored responses: the one that keeps them, or
any if the upstreams share a database.

Uploads are passed on as they arrive, so a file of any size takes no memory here. The calls take no
place on an upstream, since they run no inference. They are never retried, since the router does not
keep their bodies.
"""

from collections.abc import Iterable

from router.config import ANY, RouterConfig
from router.http.server import ClientRequest
from router.rules.fleet import Upstreams
from router.rules.messages import errors
from router.rules.upstream import RESPONSES, Upstream

BATCHES = "/v1/batches"
PATHS = ("/v1/files", BATCHES)


def keeper(config: RouterConfig, fleet: Upstreams, response_id: str) -> Upstream | None:
    """The upstream that keeps a response; None if any may, since they share a database, or since
    the response was not made through a router."""
    return None if config.batch_upstream == ANY else fleet.keeper(response_id)


def choose(config: RouterConfig, fleet: Upstreams, request: ClientRequest, now: float) -> Upstream:
    """Raises RouterError."""
    if not config.batch_upstream and not request.path.startswith(RESPONSES):
        message = (
            "This router does not serve files and batches: BATCH_UPSTREAM is not set. "
            "Allowed: the URL of one of its upstreams, or 'any' if they share a database."
        )
        raise errors.invalid(message, 501, "no_batch_upstream")
    usable = [u for u in _candidates(config, fleet, request) if u.usable(now)]
    if not usable:
        raise errors.unavailable("No upstream that keeps what is asked for is ready.")
    return min(usable, key=lambda upstream: upstream.in_flight)


def _candidates(
    config: RouterConfig, fleet: Upstreams, request: ClientRequest
) -> Iterable[Upstream]:
    """Raises RouterError."""
    if request.path.startswith(RESPONSES):
        id = request.path.removeprefix(RESPONSES + "/").partition("/")[0]
        found = keeper(config, fleet, id)
        return fleet if found is None else [found]
    if config.batch_upstream != ANY:
        return [upstream for upstream in fleet if upstream.url == config.batch_upstream]
    if (request.method, request.path) != ("POST", BATCHES):
        return fleet
    # a batch gets the model of the server that accepts it; its lines may name no other
    if not fleet.all_probed():
        return []  # the models are not known yet
    known = list(fleet.models())
    if model := request.headers.text(b"x-model") or config.default_model:
        serving = fleet.serving(model)
        if not serving and fleet.complete():
            raise errors.unknown_model(model, known)
        return serving
    if len(known) > 1:
        message = (
            "The servers have several models: name the batch's model in the X-Model header, "
            f"all available models: {', '.join(known)}."
        )
        raise errors.invalid(message, 400, "model_required", "X-Model")
    return fleet
