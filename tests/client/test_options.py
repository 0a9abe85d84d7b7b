"""What options ask for; one without effect, or a number that is not allowed, is refused on every
command line."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest

from client import capacity
from client.load.machine import ROOT
from client.options import client, compare
from client.options.rules import check
from client.workloads.spec import SpecError
from client.workloads.workload_file import Workload

CLIENT, COMPARE, CAPACITY = client.parser(), compare.parser(), capacity.parser()
RUNNING = "--modes '' --target a=http://h"


@pytest.mark.parametrize(
    ("parser", "options", "sentence"),
    [
        (CLIENT, "--self-test --rate 2", "--rate has no effect with --self-test"),
        (CLIENT, "--numtokens 10", "--numtokens has no effect without --prompt; samples of N"),
        (CLIENT, "--prompt a --out x", "--out has no effect with --prompt"),
        (CLIENT, "--duration 3 --arrivals burst", "--duration has no effect with --arrivals burst"),
        (CLIENT, "--workload w --seed 0", "--seed has no effect with --workload"),
        (CLIENT, "--selection buckets --numtokens_range 3", "no effect with --selection buckets"),
        (CLIENT, "--deadline-s 3", "--deadline-s has no effect without --deferred-share"),
        (CLIENT, "--prompts request --prompt-tokens fixed:3", "with --prompts request, which have"),
        (CLIENT, "--arrivals trace:a --output-tokens fixed:3", "which has its own lengths"),
        (COMPARE, "--original --loads 2", "--loads has no effect with --original"),
        (COMPARE, f"{RUNNING} --model gpt2", "--model has no effect on a server that already runs"),
        (COMPARE, f"{RUNNING} -- --port 1", "-- --port 1 has no effect on a server"),
        (CAPACITY, "--mode static --slo ttft:1s --slo-multiple 2", "--slo-multiple has no effect"),
        (CAPACITY, "--target http://h --start-s 2", "--start-s has no effect on a server"),
    ],
)
def test_the_sentence_names_the_option_and_the_reason(
    parser: ArgumentParser, options: str, sentence: str
) -> None:
    with pytest.raises(SpecError) as refused:
        check(parser.parse_args(shlex.split(options)))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("parser", "options", "sentence"),
    [
        (CLIENT, "--wait 0", "--wait: must be seconds > 0, not 0.0"),
        (CLIENT, "--workers 65", "--workers: must be 1 to 64, not 65"),
        (CLIENT, "--numsamples x", "--numsamples: invalid int value: 'x'"),
        (CLIENT, "--rate inf", "--rate: must be > 0"),
        (CLIENT, "--seed -1", "--seed: must be at least 0"),
        (CAPACITY, "--mode static --share 0", "--share: must be in (0, 1], not 0"),
    ],
)
def test_a_number_that_is_not_allowed_is_refused_with_what_is(
    parser: ArgumentParser, options: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(shlex.split(options))
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parser", "options"),
    [
        (CLIENT, "--drain-s 0 --warmup 0 --deferred-share 0.5 --deadline-s 3"),
        (COMPARE, "--target a=http://h --model gpt2"),  # beside modes that are started
        (CAPACITY, "--mode static --start-s 5 -- --max-batch-size 2"),
    ],
)
def test_options_that_go_together_are_accepted(parser: ArgumentParser, options: str) -> None:
    check(parser.parse_args(shlex.split(options)))


def made(options: str) -> Workload:
    """What would be sent."""
    args = CLIENT.parse_args(shlex.split(options))
    check(args)
    return client.workload_of(args)


@pytest.mark.parametrize(
    ("options", "count", "allowed"),
    [
        ("--numtokens_range 3 5", 100, {3, 5}),
        ("--selection buckets", 100, set(range(5, 150, 5))),
        ("--duration 20 --rate 3", 60, set(range(1, 201))),
    ],
)
def test_the_originals_options_choose_the_lengths_and_how_many(
    options: str, count: int, allowed: set[int]
) -> None:
    requests = made(options).requests
    assert len(requests) == count
    assert {r.output_tokens for r in requests} <= allowed


def test_a_duration_ends_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{i},3,2\n" for i in range(6))
    path.write_text(f"arrival,prompt_tokens,output_tokens\n{rows}")
    workload = made(f"--arrivals trace:csv,path={path} --duration 2.5")
    assert [r.at_s for r in workload.requests] == [0.0, 1.0, 2.0]
    assert workload.duration_s == 2.5


def test_policies_are_servers_of_their_own() -> None:
    """One of one's own keeps the colon of its class."""
    asked = ["--modes", "dynamic:hrrn,dynamic:mine:Shortest", "--", "--max-batch-size", "8"]
    for system, policy in zip(
        compare.options_from(COMPARE.parse_args(asked)).systems, ("hrrn", "mine:Shortest"),
        strict=True,
    ):  # fmt: skip
        assert system.name == f"dynamic:{policy}"
        assert system.command == (
            str(ROOT / "server.sh"), "dynamic", "--model", "embedded", "--policy", policy,
            "--prefix-caching", "false", "--max-batch-size", "8",
        )  # fmt: skip
        assert (system.target, system.beside) == (None, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--modes static:vtc,dynamic", "and dynamic:POLICY"),
        ("--modes dynamic:vtc,dynamic:vtc", "share a name"),
        ("--loads 0.5,x", "expected auto or numbers > 0"),
        ("--modes '' --target a=ftp://x", "SCHEME one of"),
        ("--modes ''", "nothing to compare"),
        ("--arrivals burst", "arrivals that have a rate"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        compare.options_from(COMPARE.parse_args(shlex.split(options)))


def test_static_batching_without_its_wait_is_compared_beside_it() -> None:
    asked = compare.options_from(COMPARE.parse_args(["--", "--max-wait-ms", "20"]))
    command, beside = {c.name: (c.command, c.beside) for c in asked.systems}["static:nowait"]
    assert beside == "static"
    assert command is not None
    assert command[-4:] == ("--max-wait-ms", "20", "--max-wait-ms", "0"), "the last one counts"
    alone = compare.options_from(COMPARE.parse_args(["--modes", "static:nowait,dynamic"]))
    assert [c.beside for c in alone.systems] == [None, None], "it plays all loads"


def test_shared_prefixes_are_one_option_of_a_comparison() -> None:
    asked = compare.options_from(COMPARE.parse_args(["--shared-prefixes"]))
    assert asked.recipe.prompts == "shared:prefixes=8,tokens=512"
    options = {c.name: (c.command or ())[4:] for c in asked.systems}
    assert options["dynamic"] == ("--prefix-caching", "true")
    assert options["static"] == options["nobatch"] == ()
