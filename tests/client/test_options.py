"""What options ask for; one without effect, or a number that is not allowed, is refused on every
command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from client import capacity
from client.claims.__main__ import main as claims_main
from client.client import main as client_main
from client.compare import main as compare_main
from client.load.machine import ROOT
from client.options import client, compare
from client.options.rules import check
from client.workloads.workload_file import Workload

CLIENT, COMPARE = client.parser(), compare.parser()
DOWN = "--target http://127.0.0.1:1"
RUNNING = "--modes '' --target a=http://h"


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (client_main, "--self-test --rate 2", "--rate has no effect with --self-test"),
        (client_main, "--numtokens 10", "--numtokens has no effect without --prompt; samples of N"),
        (client_main, "--prompt a --out x", "--out has no effect with --prompt"),
        (client_main, "--duration 3 --arrivals burst", "--duration has no effect with --arrivals"),
        (client_main, "--workload w --seed 0", "--seed has no effect with --workload"),
        (client_main, "--selection buckets --numtokens_range 3", "with --selection buckets"),
        (client_main, "--deadline-s 3", "--deadline-s has no effect without --deferred-share"),
        (client_main, "--prompts request --prompt-tokens fixed:3", "with --prompts request, which"),
        (client_main, "--arrivals trace:a --output-tokens fixed:3", "which has its own lengths"),
        (client_main, f"{DOWN} --workload /nowhere", "/nowhere: cannot be read"),
        (client_main, "--slo ttft", "expected ttft:500ms"),
        (client_main, f"{DOWN} --arrivals closed:users=2 --drain-s 2", "in a closed loop"),
        (client_main, f"{DOWN} --out /dev/null/x", "--out /dev/null/x: Not a directory"),
        (client_main, f"{DOWN.replace('http', 'tgi+http')} --no-stream --slo ttft:1s", "no TTFT"),
        (client_main, "--wait 0", "--wait: must be seconds > 0, not 0.0"),
        (client_main, "--workers 65", "--workers: must be 1 to 64, not 65"),
        (client_main, "--numsamples x", "--numsamples: invalid int value: 'x'"),
        (client_main, "--rate inf", "--rate: must be > 0"),
        (client_main, "--seed -1", "--seed: must be at least 0"),
        (compare_main, "--original --loads 2", "--loads has no effect with --original"),
        (compare_main, f"{RUNNING} --model gpt2", "--model has no effect on a server that already"),
        (compare_main, f"{RUNNING} -- --port 1", "-- --port 1 has no effect on a server"),
        (compare_main, "--modes static:vtc,dynamic", "and dynamic:POLICY"),
        (compare_main, "--modes dynamic:vtc,dynamic:vtc", "share a name"),
        (compare_main, "--loads 0.5,x", "expected auto or numbers > 0"),
        (compare_main, "--modes '' --target a=ftp://x", "SCHEME one of"),
        (compare_main, "--modes ''", "nothing to compare"),
        (compare_main, "--arrivals burst", "arrivals that have a rate"),
        (capacity.main, "--mode static --slo ttft:1s --slo-multiple 2", "--slo-multiple has no"),
        (capacity.main, f"{DOWN} --start-s 2", "--start-s has no effect on a server"),
        (capacity.main, "--mode static --share 0", "--share: must be in (0, 1], not 0"),
        (claims_main, "", "which claims?"),
        (claims_main, "vtc --all", "which claims?"),
        (claims_main, "nonsense", "there is no claim about nonsense; allowed: stall-free"),
        (claims_main, "mine:Policy --as vtc,nonsense", "there is no claim about nonsense;"),
        (claims_main, "vtc --seeds 3", "--seeds must be at least 4"),
        (claims_main, "vtc --out /dev/null/x", "--out /dev/null/x: Not a directory"),
    ],
)
def test_what_has_no_effect_or_is_not_allowed_is_refused_with_the_reason(
    command: Callable[[list[str]], int],
    options: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(shlex.split(options))
    assert words in capsys.readouterr().err


def made(options: str) -> Workload:
    """What would be sent."""
    args = CLIENT.parse_args(shlex.split(options))
    check(args)
    return client.workload_of(args)


def test_a_duration_ends_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{i},3,2\n" for i in range(6))
    path.write_text(f"arrival,prompt_tokens,output_tokens\n{rows}")
    workload = made(f"--arrivals trace:csv,path={path} --duration 2.5")
    assert [r.at_s for r in workload.requests] == [0.0, 1.0, 2.0]
    assert workload.duration_s == 2.5


@pytest.mark.parametrize(
    ("options", "name", "command", "beside"),
    [
        (
            "--modes dynamic:hrrn -- --dtype float32", "dynamic:hrrn",
            "dynamic --model embedded --policy hrrn --prefix-caching false --dtype float32", None,
        ),
        (
            "--modes dynamic:mine:Shortest", "dynamic:mine:Shortest",  # a class of one's own
            "dynamic --model embedded --policy mine:Shortest --prefix-caching false", None,
        ),
        (
            "-- --max-wait-ms 20", "static:nowait",  # the last one counts
            "static --model embedded --max-wait-ms 20 --max-wait-ms 0", "static",
        ),
        (
            "--modes static:nowait,dynamic", "static:nowait",  # it plays all loads
            "static --model embedded --max-wait-ms 0", None,
        ),
        (
            "--shared-prefixes", "dynamic",
            "dynamic --model embedded --prefix-caching true", None,
        ),
        ("--shared-prefixes", "static", "static --model embedded", None),
    ],
)  # fmt: skip
def test_systems_are_modes_of_the_server_with_its_options(
    options: str, name: str, command: str, beside: str | None
) -> None:
    asked = compare.options_from(COMPARE.parse_args(shlex.split(options)))
    (found,) = (system for system in asked.systems if system.name == name)
    assert found.command == (str(ROOT / "server.sh"), *command.split())
    assert (found.target, found.beside) == (None, beside)
    shared = asked.recipe.prompts == "shared:prefixes=8,tokens=512"
    assert shared == ("--shared-prefixes" in options)
