"""What every program's options have in common: other names, precedence, groups, secrets."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from options import OptionGroup, Options
from router.config import RouterConfig
from serving.config import Config as ServerConfig

PLACE = OptionGroup("place")
REST = OptionGroup("rest")


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
    ("args", "environ", "name", "value"),
    [
        ([], {"S_HOST": "a", "SAMPLE_HOSTNAME": "b"}, "host", "a"),
        (["--hostname", "c"], {"SAMPLE_HOSTNAME": "b"}, "host", "c"),
        (["--host", "c", "--hostname", "d"], {}, "host", "d"),
        *((words, {"S_LOUD": ""}, "loud", True) for words in (["--loud"], ["--loud=Yes"])),
        (["--loud=0"], {"S_LOUD": ""}, "loud", False),
        # what Kubernetes sets for a service is no option
        ([], {"S_PORT": "tcp://10.0.0.7:9090"}, "port", 80),
    ],
)
def test_an_option_goes_by_other_flags_and_variables_too_and_a_switch_by_its_flag_alone(
    args: list[str], environ: dict[str, str], name: str, value: object
) -> None:
    assert getattr(Sample.from_args(["small", *args], environ), name) == value
    if not args:
        assert getattr(Sample.from_environment({"S_KIND": "small", **environ}), name) == value


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--hostnam=x"], "did you mean --hostname?"),
        (["--port", "9", "extra"], "'extra'"),
        (["--port", "100"], "--port (S_PORT) is 100; allowed: 1 to 99"),
        (["--port", "nine"], "a whole number"),
        (["--share", "nan"], "--share"),
        (["--loud", "perhaps"], "true or false"),
        (["--host", ""], "--host, --hostname (S_HOST, SAMPLE_HOSTNAME) is ''"),
        (["--password", "ABC"], "--password (S_PASSWORD) is wrong; allowed: letters"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_that_shows_no_secret(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        Sample.from_args(["small", *words], {})
    told = capsys.readouterr().err.splitlines()[-1]
    assert says in told
    sample = Sample("small", password="abc")
    for shown in (told, repr(sample), str(sample.as_dict())):
        assert "abc" not in shown.lower()


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
