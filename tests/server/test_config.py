"""Options: one definition for command line, environment, help and errors."""

from __future__ import annotations

from typing import Any

import pytest

from options import OptionError, flag
from serving.config import Config

VARIABLES = {option.name: option.variables[0] for option in Config.declared()}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("port", "0", "1 to 65535"),
        ("port", "80.5", "a whole number"),
        ("max_wait_ms", "nan", "0 to"),
        ("max_wait_ms", "soon", "a number"),
        ("drain_timeout", "inf", "0 to"),
        ("dtype", "float64", "auto, float32, bfloat16, float16"),
        ("device", "gpu", "cpu, cuda, cuda:1"),
        ("host", "", "empty"),
        ("token_budget", "some", "'some' is neither auto nor a whole number"),
        ("kv_memory", "much", "2GiB, 500MB, 30000tokens"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    name: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, environ in (
        (["dynamic", f"{flag(name)}={value}"], {}),
        (["dynamic"], {VARIABLES[name]: value}),
    ):
        with pytest.raises(SystemExit, match="2"):
            Config.from_args(args, environ)
        usage, error = capsys.readouterr().err.splitlines()
        assert usage.startswith("usage: ./server.sh MODE")
        assert error.startswith(f"server.sh: error: {flag(name)} ({VARIABLES[name]})")
        assert allowed in error


def test_a_body_of_any_allowed_size_fits_among_those_that_are_held() -> None:
    with pytest.raises(OptionError, match="--max-held-bytes is 4096; allowed: at least"):
        Config(mode="dynamic", max_body_bytes=4097, max_held_bytes=4096)


def test_the_environment_alone_needs_a_mode() -> None:
    with pytest.raises(OptionError, match="EB_MODE is not set; allowed: nobatch, static, dynamic"):
        Config.from_environment({})


@pytest.mark.parametrize(
    ("mode", "options", "told"),
    [
        ("static", {"policy": "tgi"}, ["--policy has an effect only in mode dynamic"]),
        ("nobatch", {"admission": "optimistic", "max_wait_ms": 50.0}, ["--admission has an"]),
        ("dynamic", {"max_wait_ms": 1.0}, ["--max-wait-ms has an effect only in mode static"]),
        (
            "dynamic",
            {"policy": "orca", "token_budget": 9},
            ["--token-budget has an effect only with --policy stall-free"],
        ),
        ("static", {"policy": "orca", "token_budget": 99}, ["--policy", "--token-budget"]),
        ("dynamic", {"policy": "mine:Mine", "token_budget": 9, "max_bypass": 1}, []),
        ("static", {"static_release": "request", "max_batch_size": 3, "kv_memory": "1GiB"}, []),
        ("dynamic", {}, []),
    ],
)
def test_an_option_without_effect_is_reported(
    mode: Any, options: dict[str, Any], told: list[str]
) -> None:
    found = Config(mode, **options).without_effect
    assert len(found) == len(told)
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True))


@pytest.mark.parametrize(
    ("args", "on_cpu", "on_gpu"),
    [
        (["dynamic"], 0, 1),
        (["static", "--lookahead", "1"], 1, 1),
        (["dynamic", "--lookahead", "0"], 0, 0),
        (["static", "--remote-model", "unix:/tmp/model"], 1, 1),
    ],
)
def test_a_remote_model_and_a_gpu_work_ahead_unless_told_otherwise(
    args: list[str], on_cpu: int, on_gpu: int
) -> None:
    config = Config.from_args(args, {})
    assert config.iterations_ahead("cpu") == on_cpu
    assert config.iterations_ahead("NVIDIA H100") == on_gpu


@pytest.mark.parametrize(
    ("host", "is_open", "url"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8500"),
        ("::1", False, "http://[::1]:8500"),
        ("::", True, "http://[::]:8500"),
        ("example.org", True, "http://example.org:8500"),
    ],
)
def test_a_remote_host_is_recognised(host: str, is_open: bool, url: str) -> None:
    config = Config(mode="dynamic", host=host)
    assert (config.open_to_the_world, config.url) == (is_open, url)
