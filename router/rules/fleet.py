"""The upstreams in the operator's order, where they came from, and the models they serve. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from router.rules.breaker import Breaker
from router.rules.upstream import Spec, Upstream

BREAKER_OPEN_S = 5.0
ADMIN = "admin"  # the source of what was added at run time


class Fleet:
    """Upstreams by URL. An upstream belongs to the source that named it first (the environment,
    the file, the admin API, a DNS name), and only that source's next reading drops it. What the
    operator removed stays away for as long as its source still names it."""

    def __init__(self) -> None:
        self._by_url: dict[str, Upstream] = {}
        self._removed: dict[str, Upstream] = {}

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
        """Adds an upstream, or takes a draining or removed one back, with what is now said of it;
        it keeps the source that it had."""
        upstream = self.remembered(spec.url) or Upstream(spec, source, Breaker(BREAKER_OPEN_S))
        upstream.draining, upstream.spec = False, spec
        self._removed.pop(spec.url, None)
        self._by_url[spec.url] = upstream
        return upstream

    def remove(self, url: str) -> None:
        """Forgets an upstream; requests running on it finish on the object they hold."""
        upstream = self._by_url.pop(url)
        if upstream.source != ADMIN:  # nothing else would bring it back
            self._removed[url] = upstream

    def forget_removals(self) -> None:
        """The operator's lists were read again and replace the earlier ones."""
        self._removed.clear()

    def reconcile(self, source: str, specs: Iterable[Spec]) -> list[Upstream]:
        """Makes a source's upstreams those of `specs`; returns the new ones.

        One whose key or limit changed is changed in place and keeps its counters."""
        wanted = {spec.url: spec for spec in specs}
        self._removed = {
            url: removed
            for url, removed in self._removed.items()
            if removed.source != source or url in wanted
        }
        for upstream in [u for u in self if u.source == source and u.url not in wanted]:
            del self._by_url[upstream.url]
        added = []
        for url, spec in wanted.items():
            known = self._by_url.get(url)
            if known is None:
                if url not in self._removed:
                    added.append(self.add(spec, source))
            elif known.source == source and known.configured != spec:
                known.spec = known.configured = spec
        return added

    def all_probed(self) -> bool:
        """Whether every upstream has been probed once, whatever was found."""
        return all(u.probed for u in self)

    def serving(self, model: str) -> list[Upstream]:
        """The upstreams whose last good probe named the model, ready or not."""
        return [u for u in self if model in u.models]

    def models(self) -> dict[str, Mapping[str, Any]]:
        """The union of all models; an id that several serve is described by the first listed."""
        union: dict[str, Mapping[str, Any]] = {}
        for upstream in self:
            for name, described in upstream.models.items():
                union.setdefault(name, described)
        return union
