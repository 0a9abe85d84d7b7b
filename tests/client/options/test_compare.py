"""Which servers a comparison starts for its modes."""

from __future__ import annotations

import pytest

from client.load.servers.processes import ROOT
from client.options.compare import options_from, parser
from client.workloads.spec import SpecError


def test_policies_are_servers_of_their_own_and_the_first_one_is_the_baseline() -> None:
    asked = ["--modes", "dynamic:hrrn,dynamic:vtc", "--", "--max-batch-size", "8"]
    first, second = options_from(parser().parse_args(asked)).systems
    for system, policy in ((first, "hrrn"), (second, "vtc")):
        assert system.name == f"dynamic:{policy}"
        assert system.command == (
            str(ROOT / "server.sh"), "dynamic", "--model", "embedded", "--policy", policy,
            "--prefix-caching", "false", "--max-batch-size", "8",
        )  # fmt: skip
        assert (system.target, system.beside) == (None, None)


def test_a_policy_of_ones_own_keeps_the_colon_of_its_class() -> None:
    asked = ["--modes", "dynamic,dynamic:my_policies:ShortestFirst"]
    own = options_from(parser().parse_args(asked)).systems[1]
    assert own.name == "dynamic:my_policies:ShortestFirst"
    assert own.command is not None
    assert own.command[4:6] == ("--policy", "my_policies:ShortestFirst")


def test_policies_of_other_modes_and_the_same_policy_twice_are_refused() -> None:
    for modes in ("static:vtc,dynamic", "dynamic:", "dynamic:vtc,dynamic:vtc", "vtc"):
        with pytest.raises(SpecError, match="and dynamic:POLICY"):
            options_from(parser().parse_args(["--modes", modes]))
