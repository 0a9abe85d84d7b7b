"""What a neighbour keeps beside four hostile clients: tokens of one stream after the other.

    python -m benchmarks.hostile [--through server router] [--kinds ...]

Each client is a process of its own, and so is the neighbour. The kinds take turns with the
neighbour alone, directly and then through a router; ratios are taken within a round. `ordinary
streams` are four clients that are not hostile: what they take is the price of sharing. A kind is
harmless that leaves at least half.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.harness.report import options, report, table
from benchmarks.harness.servers import server, serving
from benchmarks.hostile.clients import KINDS
from client.experiment import Experiment, Found
from client.load.http.target import parse_target
from client.load.machine import ROOT
from client.load.servers.stats import settled_stats
from client.load.workers import Crew
from client.workloads.workload_file import Request, seal

CLIENTS = 4
TOKENS, MOST = 100, 1000  # of each of the neighbour's streams; streams
ALONE = "alone"
THROUGH = ("server", "router")
Answers = Counter[str]  # by status


@contextmanager
def hostile(url: str, kind: str, answers: Answers) -> Iterator[None]:
    """So many clients of this kind; their answers are counted at the end."""
    command = [sys.executable, "-m", "benchmarks.hostile.clients", url, kind]
    clients = [
        subprocess.Popen([*command, str(number)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for number in range(CLIENTS)
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            client.stdout.readline()  # it has begun
        yield
    finally:
        for client in clients:
            client.terminate()
        for client in clients:
            answers.update(json.loads(client.communicate(timeout=60)[0]))


def neighbour(url: str, seconds: float) -> float:
    """Tokens a second. None counts as one token, since a ratio needs a positive figure."""
    stream = Request(None, "def f(x):\n", None, TOKENS, "immediate", None, seed=1)
    workload = seal({}, [stream] * MOST, seconds, steady=False, users=1)
    with Crew() as crew:
        target = parse_target(f"openai+{url}?model=embedded&ignore_eos=true")
        run = crew.play(workload, target, drain_s=seconds)
    return max(1, sum(n for o in run.outcomes for _, n in o.deliveries)) / run.wall_s


def turn(served: str, url: str, kind: str, seconds: float, answers: Answers, _: int) -> float:
    """The next turn begins once nothing of this one waits or runs."""
    if kind == ALONE:
        kept = neighbour(url, seconds)
    else:
        with hostile(url, kind, answers):
            kept = neighbour(url, seconds)
    settled_stats(parse_target(served))
    return kept


def measure(
    through: Sequence[str], kinds: Sequence[str], rounds: int, seconds: float
) -> list[tuple[Found, dict[str, Answers]]]:
    """Each way's turns, and what the clients of a kind were answered."""
    measured = []
    router = [sys.executable, "-m", "router", "--max-connect-per-upstream=32"]
    with (
        server("embedded", "float32", 32, "--policy", "stall-free") as url,
        serving([*router, f"--upstreams={url}"]) as routed,
    ):
        ways = {"server": url, "router": routed}
        for way in through:
            answers = {kind: Answers() for kind in (ALONE, *kinds)}
            sides = {
                k: partial(turn, url, ways[way], k, seconds, told) for k, told in answers.items()
            }
            experiment = Experiment(sides, {"tokens_per_s": float}, ALONE, of={"through": way})
            measured.append((experiment.run(rounds, f"through the {way}"), answers))
    return measured


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--through", nargs="+", choices=THROUGH, default=THROUGH)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn (default: 3)")
    args = parser.parse_args(argv)
    measured = measure(args.through, args.kinds, args.rounds, args.seconds)
    answers = [
        (found.experiment.of["through"], kind, ", ".join(f"{n} x {s or 'none'}" for s, n in told))
        for found, of_kinds in measured
        for kind, counted in of_kinds.items()
        if (told := sorted(counted.items()))
    ]
    title = (
        f"Tokens a second of a neighbour beside {CLIENTS} hostile clients, {args.seconds:g} s a "
        "turn; embedded model, clients included"
    )
    report(
        [found for found, _ in measured], title, args.out, "neighbours",
        table("through | side | the clients' answers", answers), answers=answers,
    )  # fmt: skip


if __name__ == "__main__":
    main()
