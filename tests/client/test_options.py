"""What options ask for; one without effect, or a number that is not allowed, is refused on every
command line."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest

from client import capacity
from client.load.servers.processes import ROOT
from client.options import client, compare
from client.options.rules import RULES, check
from client.workloads.spec import SpecError
from client.workloads.workload_file import Workload

CLIENT, COMPARE, CAPACITY = client.parser(), compare.parser(), capacity.parser()
RUNNING = "--modes '' --target a=http://h"


@pytest.mark.parametrize(
    ("parser", "options", "sentence"),
    [
        (CLIENT, "--self-test --rate 2", "--rate has no effect with --self-test"),
        (CLIENT, "--numtokens 10", "--numtokens has no effect without --prompt; samples of N"),
        (CLIENT, "--prompt a --numsamples 5", "--numsamples has no effect with --prompt"),
        (CLIENT, "--prompt a --slo ttft:1", "--slo has no effect with --prompt"),
        (CLIENT, "--prompt a --out x", "--out has no effect with --prompt"),
        (CLIENT, "--wait 1 --rate 2", "--rate has no effect with --wait"),
        (CLIENT, "--duration 3 --numsamples 3", "--numsamples has no effect with --duration"),
        (CLIENT, "--duration 3 --arrivals burst", "--duration has no effect with --arrivals burst"),
        (CLIENT, "--arrivals closed:users=2 --rate 2", "--rate has no effect with --arrivals clos"),
        (CLIENT, "--arrivals burst --wait 2", "--wait has no effect with --arrivals burst"),
        (CLIENT, "--workload w --seed 1", "--seed has no effect with --workload"),
        (CLIENT, "--workload w --arrivals poisson", "--arrivals has no effect with --workload"),
        (CLIENT, "--selection buckets --numtokens_range 3", "no effect with --selection buckets"),
        (CLIENT, "--numtokens_range 3 --output-tokens fixed:3", "--output-tokens has no effect"),
        (CLIENT, "--deadline-s 3", "--deadline-s has no effect without --deferred-share"),
        (CLIENT, "--prompts request --prompt-tokens fixed:3", "with --prompts request, which have"),
        (CLIENT, "--arrivals trace:a --output-tokens fixed:3", "which has its own lengths"),
        (CLIENT, "--arrivals trace:a --numtokens_range 3", "which has its own lengths"),
        (COMPARE, "--distributions --out x", "--out has no effect with --distributions"),
        (COMPARE, "--original --loads 2", "--loads has no effect with --original"),
        (COMPARE, "--original --numsamples 2", "--numsamples has no effect with --original"),
        (COMPARE, "--numsamples 3 --budget-s 3", "--budget-s has no effect with --numsamples"),
        (COMPARE, "--watch --out x", "--out has no effect with --watch: watched runs are not"),
        (COMPARE, f"{RUNNING} --model gpt2", "--model has no effect on a server that already runs"),
        (COMPARE, f"{RUNNING} --servers restart", "--servers has no effect on a server"),
        (COMPARE, f"{RUNNING} -- --port 1", "-- --port 1 has no effect on a server"),
        (CAPACITY, "--mode static --slo ttft:1s --slo-multiple 2", "--slo-multiple has no effect"),
        (CAPACITY, "--target http://h --model gpt2", "--model has no effect on a server"),
        (CAPACITY, "--target http://h --start-s 2", "--start-s has no effect on a server"),
        (CAPACITY, "--target http://h -- --max-batch-size 2", "-- --max-batch-size 2 has no"),
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
        (CLIENT, "--warmup -1", "--warmup: must be seconds >= 0"),
        (CLIENT, "--workers 65", "--workers: must be 1 to 64, not 65"),
        (CLIENT, "--numsamples 0", "--numsamples: must be at least 1"),
        (CLIENT, "--numsamples x", "--numsamples: invalid int value: 'x'"),
        (CAPACITY, "--mode static --share 0", "--share: must be in (0, 1], not 0"),
        (CAPACITY, "--mode static --calibrate-s 0", "--calibrate-s: must be seconds > 0"),
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
        (CLIENT, ""),
        (CLIENT, "--drain-s 0 --warmup 0 --deferred-share 0.5 --deadline-s 3"),
        (COMPARE, ""),
        (COMPARE, "--target a=http://h --model gpt2"),  # beside modes that are started
        (COMPARE, "--original --model gpt2"),
        (CAPACITY, "--mode static --start-s 5 -- --max-batch-size 2"),
    ],
)
def test_options_that_go_together_are_accepted(parser: ArgumentParser, options: str) -> None:
    check(parser.parse_args(shlex.split(options)))


def test_every_rule_is_about_options_that_some_command_has() -> None:
    known = {
        *(flag for p in (CLIENT, COMPARE, CAPACITY) for flag in p._option_string_actions),
        "--requests", "server_options",
    }  # fmt: skip
    assert {name for rule in RULES for name in rule.options} <= known


def made(options: str) -> Workload:
    """What would be sent."""
    args = CLIENT.parse_args(shlex.split(options))
    check(args)
    return client.workload_of(args)


def test_a_duration_sends_what_the_rate_makes_of_it() -> None:
    workload = made("--duration 20 --rate 3")
    assert len(workload.requests) == 60


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ("--numtokens_range 3 5", {3, 5}),
        ("--selection range --numtokens_range 2", {2}),
        ("--selection buckets", set(range(5, 150, 5))),
    ],
)
def test_the_originals_options_choose_the_lengths(options: str, allowed: set[int]) -> None:
    assert {r.output_tokens for r in made(options).requests} <= allowed


def test_a_duration_ends_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:4{i}.0000000,3,2\n" for i in range(6))
    )
    workload = made(f"--arrivals trace:azure,path={path} --duration 2.5")
    assert [r.at_s for r in workload.requests] == [0.0, 1.0, 2.0]
    assert workload.duration_s == 2.5


def test_policies_are_servers_of_their_own_and_the_first_one_is_the_baseline() -> None:
    asked = ["--modes", "dynamic:hrrn,dynamic:vtc", "--", "--max-batch-size", "8"]
    first, second = compare.options_from(COMPARE.parse_args(asked)).systems
    for system, policy in ((first, "hrrn"), (second, "vtc")):
        assert system.name == f"dynamic:{policy}"
        assert system.command == (
            str(ROOT / "server.sh"), "dynamic", "--model", "embedded", "--policy", policy,
            "--prefix-caching", "false", "--max-batch-size", "8",
        )  # fmt: skip
        assert (system.target, system.beside) == (None, None)


def test_a_policy_of_ones_own_keeps_the_colon_of_its_class() -> None:
    asked = ["--modes", "dynamic,dynamic:my_policies:ShortestFirst"]
    own = compare.options_from(COMPARE.parse_args(asked)).systems[1]
    assert own.name == "dynamic:my_policies:ShortestFirst"
    assert own.command is not None
    assert own.command[4:6] == ("--policy", "my_policies:ShortestFirst")


def test_policies_of_other_modes_and_the_same_policy_twice_are_refused() -> None:
    for modes in ("static:vtc,dynamic", "dynamic:", "dynamic:vtc,dynamic:vtc", "vtc"):
        with pytest.raises(SpecError, match="and dynamic:POLICY"):
            compare.options_from(COMPARE.parse_args(["--modes", modes]))
