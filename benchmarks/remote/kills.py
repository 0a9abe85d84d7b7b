"""Shards killed or stopped at random moments under load, and the effect on their requests."""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from dataclasses import dataclass, field

from batching import BatchingManager, dynamic_batching_loop
from benchmarks.bare import Job, Tally, run_bare
from benchmarks.remote.servers import connected, serving
from engine.inference import Inference
from generate.modes import make_ledger
from model import LoadOptions, load_model
from requested import Sampling, TokenLogprobs
from scheduling.policies.orca import Orca

LIMIT = 16
TOKENS = 48
PROMPTS = 32  # different requests
NEAR_TIE = 1e-4
MOST_PAUSE_S = 1.0  # between a recovery and the next death
TICK_S = 0.005


@dataclass(slots=True)
class Kills:
    model: str
    signal: str
    deaths: int
    requests: int = 0
    failed: int = 0
    answered_twice: int = 0
    wrong_tokens: int = 0  # texts that differ from the undisturbed ones beyond ties
    preempted: int = 0
    recovery_s: list[float] = field(default_factory=list)  # from the death to the next token

    @property
    def median_recovery_s(self) -> float:
        return statistics.median(self.recovery_s)


def measure(model: str, shards: int, deaths: int, number: int, patience_s: float) -> Kills:
    """`number`: the signal."""
    kills = Kills(model, signal.Signals(number).name, deaths)
    expected = undisturbed(model)
    tally = Tally()
    manager = BatchingManager(Orca(), tally, max_batch_size=LIMIT, max_waiting=10 * LIMIT)
    with (
        serving(model, "float32", shards, LIMIT, patience_s) as (address, group),
        connected(address, model, LIMIT, patience_s) as remote,
    ):
        remote.on_return = manager.wake
        manager.serve(remote, make_ledger("dynamic", remote))
        loop = threading.Thread(target=dynamic_batching_loop, args=(manager, time.perf_counter))
        loop.start()
        load = Load(manager, tally)
        feeder = threading.Thread(target=load.feed)
        feeder.start()
        chance = random.Random(0)
        for _ in range(deaths):
            load.wait_for_tokens()
            time.sleep(chance.random() * MOST_PAUSE_S)
            victim = chance.choice(group.processes)
            start_s = time.perf_counter()
            os.kill(victim.pid, number)
            wait_until(lambda: not manager.ready)
            wait_until(lambda: manager.ready)
            load.wait_for_tokens()
            kills.recovery_s.append(time.perf_counter() - start_s)
        load.end()
        feeder.join()
        manager.drain()
        loop.join()
    kills.requests = len(load.submitted)
    kills.answered_twice = len(tally.requests) - kills.requests
    for number_of, inference in load.submitted:
        kills.failed += inference.error is not None
        kills.preempted += inference.num_preemptions > 0
        kills.wrong_tokens += differs(inference, expected[number_of])
    return kills


class Load:
    """Keeps the batch full until the end."""

    def __init__(self, manager: BatchingManager, tally: Tally) -> None:
        self.manager = manager
        self.tally = tally
        self.submitted: list[tuple[int, Inference]] = []
        self._ending = threading.Event()

    def feed(self) -> None:
        running: list[Inference] = []
        while not self._ending.wait(TICK_S):
            running = [inference for inference in running if not inference.event.is_set()]
            while len(running) < 2 * LIMIT and self.manager.ready:
                number = len(self.submitted) % PROMPTS
                inference = request(number)
                self.manager.enqueue(inference)
                self.submitted.append((number, inference))
                running.append(inference)

    def end(self) -> None:
        self._ending.set()

    def wait_for_tokens(self) -> None:
        before = len(self.tally.iterations)
        wait_until(lambda: len(self.tally.iterations) > before)


def wait_until(holds: object) -> None:
    assert callable(holds)
    while not holds():
        time.sleep(TICK_S)


def prompt(number: int) -> list[int]:
    return [1 + (number * 31 + i * 7) % 250 for i in range(4 + number)]


def request(number: int) -> Inference:
    sampling = Sampling(temperature=0, logprobs=2)
    return Inference(prompt(number), TOKENS, sampling, time.perf_counter())


def undisturbed(model: str) -> list[list[int]]:
    """The tokens of each request, prompts included, from a model in this process."""
    local = load_model(LoadOptions("dynamic", model, "cpu", "float32", 0, LIMIT))
    jobs = [Job(prompt(number), TOKENS) for number in range(PROMPTS)]
    done = run_bare(local, Orca(), "dynamic", jobs, LIMIT)
    return [inference.ids for inference in done.inferences]


def differs(inference: Inference, expected: list[int]) -> bool:
    """Whether a token differs although the two best were not a tie."""
    for i, (token, other) in enumerate(zip(inference.ids, expected, strict=True)):
        if token != other:
            scores: TokenLogprobs = inference.logprobs[i - inference.prompt_tokens]
            return scores.top[0][1] - scores.top[1][1] > NEAR_TIE
    return False
