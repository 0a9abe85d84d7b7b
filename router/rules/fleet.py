"""The upstreams in the operator's order, their sources, and the models they serve. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence

from router.rules.load import Slowdown, UpstreamLoad
from router.rules.upstream import Spec, Upstream, mark_of

ADMIN = "admin"  # the source of upstreams added at run time
MARKED = re.compile(r"resp_([0-9a-f]{8})_[0-9a-f]+")  # the id of a response made through a router


class Upstreams:
    """Upstreams by URL. An upstream belongs to the source that named it first (the environment, the
    file, the admin API, a DNS name), and is dropped only when that source no longer names it. An
    upstream that the operator removed stays removed while its source still names it.

    `unresolved`: the sources that are DNS names and have no address yet."""

    def __init__(self) -> None:
        self._by_url: dict[str, Upstream] = {}
        self._removed: dict[str, Upstream] = {}
        self._slowdown = Slowdown()
        self.unresolved: set[str] = set()

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._by_url.values())

    def __len__(self) -> int:
        return len(self._by_url)

    def get(self, url: str) -> Upstream | None:
        return self._by_url.get(url)

    def remembered(self, url: str) -> Upstream | None:
        """The upstream, or the one that the operator removed."""
        return self._by_url.get(url) or self._removed.get(url)

    def add(self, spec: Spec, source: str) -> Upstream:
        """Adds an upstream, or restores a draining or removed one with the new spec and its old
        source."""
        load = UpstreamLoad(self._slowdown)
        upstream = self.remembered(spec.url) or Upstream(spec, source, load)
        upstream.draining, upstream.spec = False, spec
        self._removed.pop(spec.url, None)
        self._by_url[spec.url] = upstream
        return upstream

    def remove(self, url: str) -> None:
        """Removes an upstream. Requests that run on it finish on the object they hold."""
        upstream = self._by_url.pop(url)
        if upstream.source != ADMIN:  # its source still names it and would add it again
            self._removed[url] = upstream

    def forget_removals(self) -> None:
        """Call it when the operator's lists were read again: they replace earlier removals."""
        self._removed.clear()

    def reconcile(self, source: str, specs: Iterable[Spec]) -> None:
        """Replaces a source's upstreams by `specs`. An upstream whose key or limit changed keeps
        its counters."""
        wanted = {spec.url: spec for spec in specs}
        self.unresolved.discard(source)
        self._removed = {
            url: removed
            for url, removed in self._removed.items()
            if removed.source != source or url in wanted
        }
        for upstream in [u for u in self if u.source == source and u.url not in wanted]:
            del self._by_url[upstream.url]
        for url, spec in wanted.items():
            known = self._by_url.get(url)
            if known is None:
                if url not in self._removed:
                    self.add(spec, source)
            elif known.source == source and known.configured != spec:
                known.spec = known.configured = spec

    def keeper(self, response_id: str) -> Upstream | None:
        """The upstream that made a response, and keeps it; None if the id does not say."""
        marked = MARKED.fullmatch(response_id)
        return next((u for u in self if marked and mark_of(u.url) == marked[1]), None)

    def all_probed(self) -> bool:
        """Whether every upstream has been probed once, whatever was found. A router that knows only
        names without addresses has probed nothing."""
        return all(u.probed for u in self) and not (self.unresolved and not self._by_url)

    def complete(self) -> bool:
        """Whether no other model can be found: a model that is not known has no upstream."""
        return self.all_probed() and not self.unresolved

    def serving(self, model: str) -> list[Upstream]:
        """The upstreams whose last successful probe named the model, ready or not."""
        return [u for u in self if model in u.models]

    def models(self) -> dict[str, bytes]:
        """The models of all upstreams. If several serve an id, the first listed describes it."""
        union: dict[str, bytes] = {}
        for upstream in self:
            for name, described in upstream.models.items():
                union.setdefault(name, described)
        return union

    def available(self, names: Sequence[str], now: float) -> str:
        """The first of the models that can be used, else that is known, else the first."""
        known = [name for name in names if self.serving(name)]
        usable = (name for name in known if any(u.usable(now) for u in self.serving(name)))
        return next(usable, (known or names)[0])
