"""The cost of a viewer of the live page: CPU time of the engine's thread for the same work.

    python -m benchmarks.watching            # embedded model, a minute and a half

Separate threads serve the viewers, and the engine's thread runs the same code with and without
them; it can only lose time by sharing caches and the interpreter. The loop runs in this process on
a batch that is always full. Windows without a viewer, with one that reads and with one that never
reads alternate. Each window has 64 iterations, the lifetime of a request, so all windows do the
same work. The time is the thread's CPU time (`time.thread_time`), which depends little on other
work on the machine.

The last figure is the share of that time spent on the records that the page shows. They are written
with and without viewers.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from batching import BatchingManager
from benchmarks.bare import GREEDY, loaded
from benchmarks.harness.report import options, report
from benchmarks.harness.spent import Spent
from client.experiment import Experiment
from engine.inference import Inference
from engine.iteration import Iteration, Wait
from generate.modes import MODES, make_ledger
from scheduling.policies.orca import Orca
from telemetry.stats import Stats
from watch.frames import Hello
from watch.hub import Hub

ROWS, TOKENS, PROMPT = 32, 64, 16


class Load:
    """A batch that is always full: each request that ends is replaced."""

    def __init__(self) -> None:
        model = loaded("embedded", "float32", ROWS)
        self.stats = Stats(time.perf_counter())
        self.manager = BatchingManager(Orca(), self.stats, max_batch_size=ROWS, max_waiting=ROWS)
        self.manager.serve(model, make_ledger("dynamic", model))
        rng = np.random.default_rng(0)
        self.prompts = rng.integers(0, model.vocab_size, (ROWS, PROMPT)).tolist()
        self.running = [self.submit(i, (i + 1) * TOKENS // ROWS) for i in range(ROWS)]
        self.window()  # all later windows are alike

    def submit(self, number: int, tokens: int) -> Inference:
        inference = Inference(self.prompts[number], tokens, GREEDY, time.perf_counter())
        self.manager.enqueue(inference)
        return inference

    def window(self) -> float:
        """CPU seconds of this thread, in which `ROWS * TOKENS` tokens are generated."""
        start_s = time.thread_time()
        for _ in range(TOKENS):
            step = self.manager.step(MODES["dynamic"].lay_out, time.perf_counter)
            assert not isinstance(step, Wait)
            for number, inference in enumerate(self.running):
                if inference.ended:
                    self.running[number] = self.submit(number, TOKENS)
        return time.thread_time() - start_s


@contextlib.contextmanager
def viewer(hub: Hub, reads: bool) -> Iterator[None]:
    """A process at the other end of a pipe; a thread writes to it, like a server's to a socket."""
    command = ["cat"] if reads else ["sleep", "600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        pipe, told = process.stdin, hub.join(None)

        def serve() -> None:
            with contextlib.suppress(OSError):  # it is gone
                for event in told:
                    pipe.write(event)
                    pipe.flush()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            hub.leave(told)
            told.drop()
            process.kill()
            thread.join()
            with contextlib.suppress(OSError):
                pipe.close()


def main() -> None:
    args = options(__doc__, rounds=40).parse_args()
    load = Load()
    hello: Hello = {
        "mode": "dynamic", "policy": "orca", "model": "embedded", "slots": ROWS,
        "blocks": load.manager.memory.num_blocks, "block_tokens": load.manager.memory.block_tokens,
        "text": False,
    }  # fmt: skip
    hub = Hub(
        load.manager.history,
        lambda: hello,
        lambda: load.stats.summary(time.perf_counter(), load.manager),
        time.perf_counter,
        lambda: False,
        1,
    )

    def watched(reads: bool, _: int) -> float:
        with viewer(hub, reads):
            return load.window()

    sides: dict[str, Callable[[int], float]] = {
        "none": lambda _: load.window(),
        "reader": partial(watched, True),
        "stalled": partial(watched, False),
    }
    metrics = {"us_a_token": lambda seconds: seconds / (ROWS * TOKENS) * 1e6}
    found = Experiment(sides, metrics, "none").run(args.rounds)
    spent, history = Spent(), load.manager.history
    Iteration.complete = spent.over("records", Iteration.complete)  # type: ignore[method-assign]
    history.add = spent.over("records", history.add)  # type: ignore[method-assign]
    total_s = sum(load.window() for _ in range(args.rounds // 4 + 1))
    share = spent.seconds["records"] / total_s
    also = f"Records: {100 * share:.2f} % of the thread's time, with and without viewers."
    report([found], "Viewers of the live page", args.out, "watching", also, records=share)


if __name__ == "__main__":
    main()
