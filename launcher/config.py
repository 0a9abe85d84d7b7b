"""The launcher's options. All other options are the HTTP server's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from launcher import tgi
from options import OptionGroup, Options, of_people
from serving.config import Config

LAUNCHER = OptionGroup("launcher")
SHARDS = OptionGroup("shards")


@dataclass(frozen=True, slots=True)
class LauncherConfig(Options):
    """What to start. Raises OptionError."""

    usage: ClassVar = "./server.sh launcher [options] [any option of ./server.sh MODE]"
    description: ClassVar = (
        "Starts a model server, with a process for each shard, and the HTTP server in front of it. "
        "Restarts processes that die and ends all in order. Options and environment variables of "
        "Text Generation Inference's launcher work, see docs/tgi.md."
    )
    prefix: ClassVar = "EB_"

    mode: Literal["nobatch", "static", "dynamic"] = LAUNCHER.option("dynamic")
    """how requests share the model, as in ./server.sh MODE; dynamic runs --policy tgi unless
    another policy is given"""
    hub_cache: str | None = LAUNCHER.option(None)
    """folder of downloaded weights; none: HF_HUB_CACHE, or the default of huggingface_hub"""

    shards: int = SHARDS.option(1, least=1, most=64)
    """processes among which the model is split (tensor parallelism)"""
    socket: str | None = SHARDS.option(None, pattern=r"/.{1,90}")
    """absolute path of the model server's Unix socket, at most 91 characters; further shards add
    -1, -2 ...; none: in a temporary folder"""
    master_addr: str = SHARDS.option("127.0.0.1")
    """address at which the shards meet; only used with --master-port"""
    master_port: int = SHARDS.option(0, least=0, most=65535)
    """port at which the shards meet; 0: a free port of this machine"""


def read(
    args: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[LauncherConfig, Config]:
    """The launcher's configuration and the server's. Ends the process with a message if an option
    is wrong or not offered."""
    if any(word in {"-h", "--help"} for word in args):
        LauncherConfig.from_args(["--help"])
    try:
        ours = tgi.from_args(args)
        ours += tgi.from_environment(of_people(environ), ours)
    except tgi.TranslationError as error:
        LauncherConfig.refuse(str(error))
    mine, servers = LauncherConfig.split(ours)
    config = LauncherConfig.from_args(mine, environ)
    flags = {word.partition("=")[0] for word in servers}
    if config.mode == "dynamic" and not {"--policy", "EB_POLICY"} & {*flags, *environ}:
        servers += ["--policy", "tgi"]
    return config, Config.from_args([config.mode, *servers], environ)
