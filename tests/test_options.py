"""What every program's options have in common: other names, precedence, groups, secrets."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from options import Group, OptionError, Options
from router.config import Config as RouterConfig
from serving.config import Config as ServerConfig

PLACE = Group("place")
REST = Group("rest")


@dataclass(frozen=True, slots=True)
class Sample(Options):
    """A program with an option of every kind."""

    usage: ClassVar = "sample KIND [options]"
    description: ClassVar = "A sample."
    prefix: ClassVar = "S_"

    kind: Literal["small", "large"] = PLACE.option(MISSING)
    """small or large"""
    host: str = PLACE.option("here", flags=["--hostname"], variables=["S_HOST", "SAMPLE_HOSTNAME"])
    """address, of
    which the help is two lines"""
    port: int = PLACE.option(80, least=1, most=99)
    """a number"""
    share: float | None = REST.option(None, least=0)
    """a share of something, 0.5 being 50 %"""
    names: tuple[str, ...] = REST.option(())
    """names"""
    loud: bool = REST.option(False)
    """say more"""
    password: str | None = REST.option(None, pattern="[a-z]+", secret=True)
    """letters"""


@pytest.mark.parametrize(
    ("args", "environ", "host"),
    [
        ([], {}, "here"),
        ([], {"SAMPLE_HOSTNAME": "b"}, "b"),
        ([], {"S_HOST": "a", "SAMPLE_HOSTNAME": "b"}, "a"),
        (["--hostname", "c"], {"S_HOST": "a", "SAMPLE_HOSTNAME": "b"}, "c"),
        (["--host", "c"], {"SAMPLE_HOSTNAME": "b"}, "c"),
        (["--host", "c", "--hostname", "d"], {}, "d"),
    ],
)
def test_an_option_goes_by_other_flags_and_other_variables_too(
    args: list[str], environ: dict[str, str], host: str
) -> None:
    assert Sample.from_args(["small", *args], environ).host == host


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("Yes", True), ("0", False), ("no", False), ("", False)]
)
def test_a_switch_is_on_by_its_flag_alone_or_as_it_says(text: str, value: bool) -> None:
    assert Sample.from_args(["small", "--loud"], {}).loud
    assert Sample.from_args(["small", f"--loud={text}"], {}).loud is value
    assert Sample.from_args(["small"], {"S_LOUD": text}).loud is value


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["small", "--prot", "9"], "there is no option --prot; did you mean --port?"),
        (["small", "--hostnam=x"], "there is no option --hostnam; did you mean --hostname?"),
        (["small", "--xyz", "9"], "there is no option --xyz; --help lists all options"),
        (
            ["small", "--port", "9", "extra"],
            "unexpected argument 'extra'; --help lists all options",
        ),
    ],
)
def test_an_unknown_word_is_refused_with_the_option_that_was_probably_meant(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        Sample.from_args(args, {})
    assert capsys.readouterr().err.splitlines()[-1] == f"server.sh: error: {says}"


def test_help_shows_the_options_by_group_with_all_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="0"):
        Sample.from_args(["--help"])
    shown = capsys.readouterr().out
    assert shown.index("place:") < shown.index("--port") < shown.index("rest:")
    assert shown.index("rest:") < shown.index("--loud")
    assert "(default 80; S_PORT)" in shown
    words = " ".join(shown.split())
    assert "a share of something, 0.5 being 50 % (default none; S_SHARE)" in words
    assert "--host TEXT, --hostname TEXT address, of which the help is two lines" in words
    assert "(default here; S_HOST, SAMPLE_HOSTNAME)" in words


def test_an_error_names_every_name_of_its_option_and_secrets_are_not_shown() -> None:
    with pytest.raises(OptionError) as refused:
        Sample("small", host="")
    assert str(refused.value).startswith("--host, --hostname (S_HOST, SAMPLE_HOSTNAME) is ''; ")
    sample = Sample("small", password="abc")
    assert "abc" not in repr(sample)
    assert sample.as_dict()["password"] == "(set)"
    with pytest.raises(OptionError, match=r"--password \(S_PASSWORD\) is wrong; allowed: letters"):
        Sample("small", password="ABC")


@pytest.mark.parametrize("program", [ServerConfig, RouterConfig])
def test_no_two_options_share_a_variable(program: type[Options]) -> None:
    names = [name for option in program.declared() for name in option.variables]
    assert len(set(names)) == len(names)


TEXTS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


@given(
    st.builds(
        Sample,
        kind=st.sampled_from(["small", "large"]),
        host=TEXTS,
        port=st.integers(1, 99),
        share=st.none() | st.floats(0, allow_infinity=False),
        names=st.lists(TEXTS).map(tuple),
        loud=st.booleans(),
        password=st.none() | st.from_regex("[a-z]+", fullmatch=True),
    )
)
def test_options_survive_the_way_through_the_environment(sample: Sample) -> None:
    assert Sample.from_environment(sample.as_environment()) == sample


def test_what_kubernetes_sets_for_a_service_is_no_option() -> None:
    service = {"S_PORT": "tcp://10.0.0.7:9090"}
    assert Sample.from_args(["small"], service).port == 80
    assert Sample.from_environment({"S_KIND": "small", **service}).port == 80
    assert Sample.from_args(["small", "--port", "9"], service).port == 9
    with pytest.raises(SystemExit):
        Sample.from_args(["small", "--port", "tcp://10.0.0.7:9090"], {})
