"""Options, environment variables and upstream lists. The parse cases restate
text-inference-batcher's tests of `parseUpstreams`."""

import subprocess
import sys
from pathlib import Path

import pytest

from router.config import parse_args, parse_upstreams, parse_upstreams_file
from tests.router.conftest import Pair

TWO = ["http://llama-2:8000", "http://falcon:8000"]
ENV = {"UPSTREAMS": "http://a:1"}


@pytest.mark.parametrize("written", ["{0},{1}", " {0} ,  {1} ", "{0}/,{1}/"])
def test_upstreams_are_parsed_with_spaces_and_slashes(written: str) -> None:
    assert [spec.url for spec in parse_upstreams(written.format(*TWO), 1)] == TWO


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[http://llama-2:8000,http://falcon:8000]", "not a valid URL"),
        ("", r"--upstreams \(UPSTREAMS\) is missing"),
        ("http://llama-2:8000,http://", "not a valid URL"),
        ("http://llama-2:8000,websocket://falcon:8000", "websocket:// is not supported"),
        ("http://llama-2:8000,http://falcon:8000/v1", "only scheme, host and port"),
        ("http://llama-2:99999", "not a valid URL"),
        ("http://user:pass@llama-2", "only scheme, host and port"),
        ("llama-2:8000", "not supported"),
    ],
)
def test_a_bad_upstream_list_is_refused_saying_why(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_upstreams(text, 1)


def test_the_upstreams_file_has_limits_keys_and_comments_and_bad_lines_have_a_number() -> None:
    text = (
        "# ours\nhttp://a:1 limit=8 key=s3cret # first\n\ndns+http://pods:8500\nhttps://[::1]:9\n"
    )
    a, pods, v6 = parse_upstreams_file(text, 2, "common")
    assert (a.url, a.limit, a.key) == ("http://a:1", 8, "s3cret")
    assert (pods.url, pods.limit, pods.key, pods.dns) == ("http://pods:8500", 2, "common", True)
    assert v6.url == "https://[::1]:9"
    assert "s3cret" not in repr(a)
    for line in ("http://a:1 limit=0", "http://a:1 weight=2", "ftp://a:1"):
        with pytest.raises(ValueError, match="line 2"):
            parse_upstreams_file(f"http://ok:1\n{line}\n", 1)


def test_the_variables_of_text_inference_batcher_work_as_documented() -> None:
    env = {"UPSTREAMS": "http://a:1,http://b:1", "MAX_CONNECT_PER_UPSTREAM": "666"}
    env |= {"WAIT_FOR": "30000", "TIMEOUT": "60000", "DEBUG": "true", "TIB_PORT": "8889"}
    config = parse_args([], env)
    assert (config.port, config.max_connect_per_upstream, config.debug) == (8889, 666, True)
    assert (config.wait_for, config.timeout) == (30_000, 60_000)
    defaults = parse_args([], ENV)
    assert (defaults.port, defaults.max_connect_per_upstream, defaults.debug) == (8000, 1, False)
    assert (defaults.wait_for, defaults.timeout) == (5000, 600_000)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--timeout", "nan"], "--timeout (TIMEOUT) is nan; allowed: 1 or more"),
        (["--port", "65536"], "--port (TIB_PORT) is 65536; allowed: 0 to 65535"),
        (["--policy", "best"], "allowed: least-work, round-robin, power-of-two, prefix"),
        (["--batch-upstream", "x"], "--batch-upstream (BATCH_UPSTREAM): 'x' is not a valid URL"),
        (["--max-held-bytes", "9"], "--max-held-bytes (MAX_HELD_BYTES) is 9; allowed: at least"),
        (["--upstreams", "x"], "'x' is not a valid URL"),
        (["--upstreams-file", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_bad_option_ends_with_a_message_naming_it(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_args(args, ENV)
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: ./server.sh router")
    assert says in error


def test_a_port_in_use_is_one_line_and_an_earlier_record_stays(
    shared: Pair, tmp_path: Path
) -> None:
    record = tmp_path / "run.jsonl"
    record.write_text("an earlier run")
    for options, says in (
        (["--port", str(shared.upstream.port), "--record", record], "address already in use"),
        (
            ["--record", "/no/x"],
            "--record (RECORD): cannot write /no/x (No such file or directory)",
        ),
    ):
        command = [sys.executable, "-m", "router", "--upstreams", "http://a:1", *options]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode != 0
        assert says in refused.stderr
        assert "Traceback" not in refused.stderr
    assert record.read_text() == "an earlier run"


def test_the_router_imports_nothing_of_the_server() -> None:
    ours = {p.stem for p in Path().glob("*.py")} | {p.parent.name for p in Path().glob("*/*.py")}
    code = "import sys, router.service; print('\\n'.join(sys.modules))"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    known = {"options", "telemetry", "telemetry.journal", "telemetry.tracing"}
    known |= {name for name in loaded if name.partition(".")[0] in ("router", "web")}
    assert {name for name in loaded if name.partition(".")[0] in ours} <= known
