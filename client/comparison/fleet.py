"""The servers of the compared systems: started, made warm, watched, and ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self
from urllib.parse import urlsplit

from client.analysis.comparison.results import Loss
from client.load.live import live_view, say
from client.load.machine import cores_for, holds
from client.load.play import SILENCE_S
from client.load.records import Run
from client.load.servers.probing import FIRST_ANSWER_S, adapted, served_words
from client.load.servers.processes import (
    Server,
    ServerError,
    System,
    await_health,
    free_port,
    launched,
)
from client.load.servers.stats import settled_stats
from client.load.workers import Crew
from client.workloads.prompts import Words
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload


class Fleet:
    """The systems' servers: all together, or one at a time if memory may not hold several.

    Together, all but one are idle, so that compared runs are seconds apart. ``lost`` are systems
    whose servers failed, by name.
    """

    def __init__(
        self,
        recipe: Recipe,
        logs: Path | None,
        start_s: float | None,
        *,
        together: bool | None,
        workers: int = 1,
        keep_alive: bool = False,
        watched: Sequence[System] = (),
    ) -> None:
        """``recipe``: of all that is played. ``logs`` None: they are not kept. ``start_s`` None: a
        server may take ten minutes to start. ``together`` None: if memory suffices. ``watched``:
        those of our servers that one live page shows; its address is printed."""
        # of all workloads: the first server's that was ready; None: the embedded vocabulary's
        self.words: Words | None = None
        self.lost: dict[str, Loss] = {}
        self.recipe, self._start_s = recipe, start_s or 600.0
        self._keep_alive = keep_alive
        self.together = together
        self._held = ExitStack()  # the crew, and their ports, which stay theirs
        self._logs = logs or Path(self._held.enter_context(TemporaryDirectory()))
        self._pages = {  # of those that are watched
            system.name: f"http://127.0.0.1:{self._held.enter_context(free_port())}"
            for system in watched
            if system.command is not None
        }
        self._shown = False
        self.cores = cores_for(workers)
        self.crew = Crew(workers, None if self.cores.shared else self.cores.client)
        self._launched: dict[str, tuple[Server, ExitStack]] = {}
        self._ready: dict[str, Server] = {}

    def __enter__(self) -> Self:
        self._held.enter_context(self.crew)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()
        self._held.close()

    def start(self, systems: Sequence[System]) -> None:
        """Start all servers that stay up together at once, so that they load their models in
        parallel; the first alone, if its memory decides whether they do."""
        if self.together is None:
            first = self._launch(systems[0])
            self._await()
            # twice: keys and values are written later
            self.together = holds(len(systems) - 1, 2 * first.memory_bytes())
        if self.together:
            for system in systems:
                self._launch(system)
            self._await()

    def _await(self) -> None:
        for server, _ in self._launched.values():
            with suppress(ServerError):  # raised again when the server is requested
                await_health(server, self._start_s)

    def server(self, system: System) -> Server:
        """Running and warm. Raises ServerError if it does not come up or respond, or no longer."""
        name = system.name
        if name in self._ready:
            if (why := self._ready[name].failure()) is not None:
                raise ServerError(why)
        else:
            if not self.together:
                self._end_all(but=name)
            server = self._launch(system)
            try:
                await_health(server, self._start_s)
                server = self._warmed(server)
                self.words = self.words or served_words(server.target, self.recipe.prompts)
                self._ready[name] = server
            except BaseException:
                self.end(name)
                raise
            if name in self._pages and not self._shown:
                shown = ",".join(self._pages.values())
                say(f"watch all side by side: {self._pages[name]}/watch?with={shown}#measured")
                self._shown = True  # once: the page outlives the server that it came from
        return self._ready[name]

    def play(
        self,
        system: System,
        workload: Workload,
        title: str,
        *,
        drain_s: float | None = None,
        silence_s: float = SILENCE_S,
        name: str | None = None,
    ) -> Run:
        """A run that begins when the server is idle, shown in the terminal. Raises ServerError as
        `server`, and KeyboardInterrupt with what was measured of a run that it cut."""
        target = self.server(system).target
        settled_stats(target)  # requests of an earlier run that were cut must have ended
        with live_view(title, len(workload.requests), leave=False) as watch:
            run = self.crew.play(
                workload, target, drain_s=drain_s, silence_s=silence_s, watch=watch, name=name
            )
        if run.interrupted:
            raise KeyboardInterrupt(run)
        return run

    @contextmanager
    def losing(self, system: System, when: str) -> Iterator[None]:
        """A ServerError within costs this system only: it is reported and left out from then on."""
        try:
            yield
        except ServerError as error:
            self.end(system.name)
            loss = self.lost[system.name] = Loss(system.name, when, str(error))
            say(f"{loss.headline}; it is left out from here on")

    def _launch(self, system: System) -> Server:
        """Its server, which may not respond yet, started if it was not."""
        name, cores = system.name, None if self.cores.shared else self.cores.servers
        if name in self._launched:
            return self._launched[name][0]
        with ExitStack() as stack:
            if system.target is not None:
                server = Server(system.target)
            else:
                assert system.command is not None  # one of the two is always there
                command, port = [*system.command], None
                if self._pages:  # other origins may show it
                    command += ["--cors-allow-origin", ",".join(self._pages.values())]
                    port = urlsplit(self._pages[name]).port
                log = self._logs / f"server-{name}.log"
                server = stack.enter_context(launched(command, name, log, cores=cores, port=port))
            self._launched[name] = server, stack.pop_all()
        return server

    def _warmed(self, server: Server) -> Server:
        """Streaming if it can, and warm: the first measured request must not include one-time
        work."""
        target = replace(adapted(server.target), keep_alive=self._keep_alive)
        server = replace(server, target=target)
        few = replace(
            self.recipe, requests=4, rate=1.0, arrivals="burst", output_tokens="fixed:16", seed=7
        )
        run = self.crew.play(make(few), target, silence_s=FIRST_ANSWER_S)
        if run.interrupted:
            raise KeyboardInterrupt
        must_answer(run, server)
        return server

    def _end_all(self, but: str = "") -> None:
        for name in [name for name in self._launched if name != but]:
            self.end(name)

    def end(self, name: str) -> None:
        """Ends it if it runs."""
        self._ready.pop(name, None)
        if name in self._launched:
            self._launched.pop(name)[1].close()


def must_answer(run: Run, server: Server) -> None:
    failures = [o.failure for o in run.outcomes if o.failure is not None and not o.unfinished]
    if failures:
        why = server.failure()
        raise ServerError(
            f"{run.target} failed the first request: {failures[0]}"
            + ("" if why is None else f"; {why}")
        )
