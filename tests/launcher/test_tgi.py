"""Text Generation Inference's command lines and environments, as our users type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import tgi
from launcher.config import LauncherConfig, read
from serving.config import Config

DOCS = Path(__file__).parents[2] / "docs" / "tgi.md"


def test_a_command_line_of_tgi_starts_what_it_means() -> None:
    typed = (
        "--model-id ./llama --revision v2 --num-shard 2 --sharded true --quantize eetq "
        "--hostname 0.0.0.0 -p 80 --max-input-length 1000 --max-total-tokens=1500 "
        "--waiting-served-ratio 1.2 --json-output --payload-limit 4096 "
        "--graceful-termination-timeout 90 --shard-uds-path /tmp/tgi "
        "--master-port 29500 --messages-api-enabled --validation-workers 4 --usage-stats off"
    )
    launched = tgi.from_args(typed.split())
    assert " ".join(launched) == (
        "--model ./llama --revision v2 --shards 2 --dtype int8 --host 0.0.0.0 --port 80 "
        "--max-input-tokens 1000 --max-total-tokens 1500 --waiting-served-ratio 1.2 "
        "--log-format json --max-body-bytes 4096 --drain-timeout 90 --socket /tmp/tgi "
        "--master-port 29500"
    )


def test_launcher_and_server_get_their_options_of_the_command_line_before_the_environment() -> None:
    launcher, server = read(
        ["--model-id", "random:gpt2", "--num-shard", "2", "--port=9000"],
        {"MAX_TOTAL_TOKENS": "700", "JSON_OUTPUT": "true", "EB_MAX_WAITING": "9"},
    )
    assert (launcher.shards, launcher.mode) == (2, "dynamic")
    assert (server.model, server.port, server.policy) == ("random:gpt2", 9000, "tgi")
    assert (server.max_total_tokens, server.log_format, server.max_waiting) == (700, "json", 9)
    launched = tgi.from_args(["--max-total-tokens", "10"])
    variables = {"MAX_TOTAL_TOKENS": "20", "MODEL_ID": "gpt2"}
    assert tgi.from_environment(variables, launched) == ["--model", "gpt2"]
    assert read(["--policy", "orca"], {})[1].policy == "orca"
    assert read([], {"EB_POLICY": "stall-free"})[1].policy == "stall-free"
    assert read(["--mode", "static"], {})[1].policy == Config(mode="static").policy
    for sizes, here in (("0", False), ("1,2,4", True)):
        assert read(["--cuda-graphs", sizes], {})[1].cuda_graphs is here


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("--quantize gptq", "--quantize is 'gptq'; allowed: eetq, bitsandbytes"),
        ("--ngrok", "--ngrok is not supported"),
        ("--watermark-gamma 0.5", "--watermark-gamma is not supported: output is not watermarked"),
        ("--trust-remote-code", "code from a model's folder is never run"),
        ("--model-id", "--model-id needs a value"),
        ("--sharded maybe", "--sharded is 'maybe'; allowed: true, false"),
        ("--no-such-option 1", "--no-such-option"),
    ],
)
def test_options_that_are_not_offered_are_refused_by_name_with_the_reason(
    typed: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(typed.split(), {})
    assert ended.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_every_option_that_is_the_same_or_renamed_exists_here() -> None:
    ours = {name for c in (Config, LauncherConfig) for o in c.declared() for name in o.names}
    assert {named.to for named in tgi.OPTIONS if named.to} <= ours


def test_the_page_shows_every_option() -> None:
    assert "\n".join(tgi.table()) in DOCS.read_text()
