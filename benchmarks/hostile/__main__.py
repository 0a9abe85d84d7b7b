"""What a neighbour keeps beside four hostile clients: tokens of one stream after the other.

    python -m benchmarks.hostile [--through server router] [--kinds ...]

Each client is a process of its own, and so is the neighbour. The kinds take turns with the
neighbour alone, directly and through a router; ratios are taken within a round. `ordinary streams`
are four clients that are not hostile: what they take is the price of sharing. A kind is harmless
that leaves at least half. What hostile constraints do is measured in process:
`python -m benchmarks.hostile.grammars`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.servers import ROOT, free_port, healthy, server, serving
from benchmarks.harness.turns import Ratio, in_turns, ratio
from benchmarks.hostile.clients import KINDS
from client.load.http.target import parse_target
from client.load.servers.stats import settled_stats

CLIENTS = 4
SECONDS = 3.0
TOKENS = 100  # of each of the neighbour's streams
ALONE = "alone"
THROUGH = ("server", "router")


@dataclass(frozen=True, slots=True)
class Kept:
    """The neighbour's tokens a second, by round, and what the hostile clients were answered."""

    through: str
    beside: str
    tokens_per_s: list[float]
    answers: dict[str, int]
    to_alone: Ratio


@contextmanager
def routed(url: str) -> Iterator[str]:
    """A router before this server; its URL."""
    port = free_port()
    command = [
        sys.executable, "-m", "router", f"--port={port}", f"--upstreams={url}",
        "--max-connect-per-upstream=32",
    ]  # fmt: skip
    named = ("API_KEY", "UPSTREAMS", "TIB_", "EB_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(named)}
    with serving(command, environment, port, healthy, str(ROOT)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def hostile(url: str, kind: str, answers: Counter[str]) -> Iterator[None]:
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
    body = {
        "model": "embedded", "prompt": "def f(x):\n", "max_tokens": TOKENS, "stream": True,
        "ignore_eos": True, "seed": 1, "stream_options": {"include_usage": True},
    }  # fmt: skip
    told = {"url": f"{url}/v1/completions", "bodies": [body], "seconds": seconds}
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.http.client"],
        input=json.dumps(told), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    received = json.loads(ran.stdout)
    return max(1, int(received["tokens"])) / float(received["seconds"])


def turn(served: str, url: str, kind: str, seconds: float, answers: Counter[str]) -> float:
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
) -> list[Kept]:
    sides = [(way, kind) for way in through for kind in (ALONE, *kinds)]
    answers: dict[tuple[str, str], Counter[str]] = {side: Counter() for side in sides}
    with server("embedded", "float32", 32, "--policy", "stall-free") as url, routed(url) as router:
        ways = {"server": url, "router": router}
        turns = {
            (way, kind): partial(turn, url, ways[way], kind, seconds, answers[way, kind])
            for way, kind in sides
        }
        found = in_turns(turns, rounds, shown="hostile")
    return [
        Kept(*side, found[side], dict(answers[side]), ratio(found[side], found[side[0], ALONE]))
        for side in sides
    ]


def card(results: Sequence[Kept], seconds: float) -> str:
    rows = [
        (
            kept.through, kept.beside, f"{statistics.median(kept.tokens_per_s):.0f}",
            "" if kept.beside == ALONE else format(kept.to_alone, ".2f"),
            ", ".join(f"{n} x {status or 'none'}" for status, n in sorted(kept.answers.items())),
        )
        for kept in results
    ]  # fmt: skip
    told = (
        f"Tokens a second of a neighbour beside {CLIENTS} hostile clients, {seconds:g} s a turn; "
        f"embedded model, {machine()}, clients included"
    )
    columns = "through | beside | tokens/s: | to alone: | the clients' answers"
    return f"{told}\n\n{table(columns, rows)}"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--through", nargs="+", choices=THROUGH, default=THROUGH)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a turn (default: 3)")
    args = parser.parse_args()
    results = measure(args.through, args.kinds, args.rounds, args.seconds)
    figures = {"seconds": args.seconds, "results": [asdict(kept) for kept in results]}
    save(figures, card(results, args.seconds), args.out, "neighbours")


if __name__ == "__main__":
    main()
