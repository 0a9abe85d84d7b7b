"""Names that other load generators use ask for what they ask for there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from client.aliases import translate
from client.client import main
from client.client_options import check, parser, workload_of
from client.workloads.workload_file import Workload


def made(options: str) -> tuple[Workload, str | None, str | None]:
    """What would be sent, to whom, and with which objectives."""
    args = parser().parse_args(shlex.split(options))
    translate(args)
    check(args)
    return workload_of(args), args.target, args.slo


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--num-prompts 7 --request-rate 5", "--numsamples 7 --rate 5"),
        ("--request-count 7", "--numsamples 7"),
        ("--request-rate inf", "--arrivals burst"),
        ("--max-concurrency 4", "--arrivals closed:users=4"),
        ("--request-rate inf --concurrency 4", "--arrivals closed:users=4"),
        ("--burstiness 0.25 --request-rate 3", "--arrivals gamma:burstiness=0.25 --rate 3"),
        ("--random-input-len 12 --osl 5", "--prompt-tokens fixed:12 --output-tokens fixed:5"),
        ("--base-url http://h:1/v1/", "--target openai+http://h:1"),
        ("--goodput ttft:500 e2el:2s", "--slo ttft:500ms,e2e:2s"),
        ("--max-seconds 30", "--duration 30"),
    ],
)
def test_another_tools_name_means_our_option(theirs: str, ours: str) -> None:
    assert made(theirs) == made(ours)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--request-rate 3 --rate 3", "--rate has no effect with --request-rate"),
        ("--max-concurrency 4 --request-rate 2", "an open loop never holds a request back"),
        ("--burstiness 2 --arrivals poisson", "--arrivals has no effect with --burstiness"),
        ("--goodput ttft:5 --slo ttft:5s", "--slo has no effect with --goodput"),
        ("--base-url http://h --target http://h", "--target has no effect with --base-url"),
        ("--duration 3 --numsamples 3", "--numsamples has no effect with --duration"),
        (
            "--duration 3 --arrivals burst",
            "--duration has no effect with --arrivals burst",
        ),
        ("--duration 0", "--duration must be seconds > 0"),
    ],
)
def test_redundant_or_ineffective_options_are_refused(
    options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(options.split())
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_duration_sends_what_the_rate_makes_of_it() -> None:
    workload, _, _ = made("--duration 20 --rate 3")
    assert len(workload.requests) == 60


def test_a_duration_ends_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:4{i}.0000000,3,2\n" for i in range(6))
    )
    workload, _, _ = made(f"--arrivals trace:azure,path={path} --duration 2.5")
    assert [r.at_s for r in workload.requests] == [0.0, 1.0, 2.0]
    assert workload.duration_s == 2.5
