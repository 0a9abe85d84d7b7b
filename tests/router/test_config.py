"""Options, environment variables and upstream lists. The parse cases restate
text-inference-batcher's tests of `parseUpstreams`."""

import pytest

from router.config import RouterConfig, parse_upstreams, parse_upstreams_file

TWO = ["http://llama-2:8000", "http://falcon:8000"]


@pytest.mark.parametrize("written", ["{0},{1}", " {0} ,  {1} ", "{0}/,{1}/"])
def test_upstreams_are_parsed_with_spaces_and_slashes(written: str) -> None:
    assert [spec.url for spec in parse_upstreams(written.format(*TWO), 1)] == TWO


@pytest.mark.parametrize(
    "text",
    [
        "[http://llama-2:8000,http://falcon:8000]",
        "",
        "http://llama-2:8000,http://",
        "http://llama-2:8000,websocket://falcon:8000",
        "http://llama-2:8000,http://falcon:8000/v1",
        "http://llama-2:99999",
        "http://user:pass@llama-2",
    ],
)
def test_a_bad_upstream_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a valid URL|is missing"):
        parse_upstreams(text, 1)


def test_the_upstreams_file_has_limits_keys_and_comments_and_bad_lines_have_a_number() -> None:
    text = (
        "# ours\nhttp://a:1 limit=8 key=s3cret # first\n\ndns+http://pods:8500\nhttps://[::1]:9\n"
    )
    a, pods, v6 = parse_upstreams_file(text, 2, "common")
    assert (a.url, a.limit, a.key) == ("http://a:1", 8, "s3cret")
    assert (pods.url, pods.limit, pods.key, pods.dns) == ("http://pods:8500", 2, "common", True)
    assert v6.url == "https://[::1]:9"
    for line in ("http://a:1 limit=0", "http://a:1 weight=2", "ftp://a:1"):
        with pytest.raises(ValueError, match="line 2"):
            parse_upstreams_file(f"http://ok:1\n{line}\n", 1)


@pytest.mark.parametrize(
    "given",
    [
        "--max-connect-per-upstream=0",  # nobody would ever be sent to a server
        "--max-attempts=0",
        "--max-body-bytes=0",
        "--max-held-bytes=0",
        "--max-queue=-1",
        "--probe-interval=0",
        "--probe-timeout=0",
        "--connect-timeout=0",
        "--client-idle=0",
        "--stream-idle=0",
        "--wait-for=-1",
        "--timeout=0",
        "--requests-per-minute=-1",
        "--tokens-per-minute=-1",
        "--workers=0",
        "--port=65536",
    ],
)
def test_a_number_with_which_no_router_could_work_is_refused(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        RouterConfig.from_args(["--upstreams=http://a:1", given], {})
    assert f"error: {given.partition('=')[0]} " in capsys.readouterr().err
