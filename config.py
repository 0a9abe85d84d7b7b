"""Every option of the server once: name, type, default, environment variable, help.

The command line, the environment, `--help` and `/stats` are all made from the fields of `Config`.
Standard library only: options are parsed before anything is installed or loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

ENV_PREFIX = "EB_"
MODES = ("nobatch", "static", "dynamic")
SPARE_THREADS = 32  # for /stats, /health and refusals while every place is taken

_DESCRIPTION = """\
Serves one model over HTTP. MODE is how requests share it: nobatch (one at a time), static
(a batch forms and runs until its longest request is done) or dynamic (requests join and leave
at every iteration)."""


class ConfigError(ValueError):
    """A value that is not allowed; the message names the option, the value and what is allowed."""


def _option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    pattern: str | None = None,
    secret: bool = False,
    only: str | None = None,
) -> Any:
    """`only`: the mode, or `policy NAME`, without which the option has no effect."""
    if only is not None:
        help = f"{only}: {help}"
    limits = {"least": least, "most": most, "pattern": pattern, "secret": secret}
    return field(default=default, metadata={"help": help, "only": only, **limits})


@dataclass(frozen=True, slots=True)
class Config:
    """What a server process is told. Raises ConfigError."""

    mode: Literal["nobatch", "static", "dynamic"]
    model: str = _option(
        "embedded",
        "embedded (ships with the project), gpt2, gpt2-medium, gpt2-large, gpt2-xl (downloaded), "
        "random:gpt2-medium and the like (random weights of that shape, to measure speed), or a "
        "folder in the Hugging Face layout",
    )
    host: str = _option("127.0.0.1", "address to listen on; 0.0.0.0 opens it to the network")
    port: int = _option(8500, "port to listen on", least=1, most=65535)
    device: str = _option(
        "auto",
        "auto (a GPU where there is one), cpu, cuda, cuda:1 ...",
        pattern=r"auto|cpu|cuda(:\d+)?",
    )
    dtype: Literal["float32", "bfloat16"] = _option("float32", "precision of weights and KV cache")
    policy: str = _option(
        "orca",
        "who is advanced next: orca, tgi, stall-free, shortest-first, or a policy of your "
        "own as MODULE:CLASS",
        only="dynamic",
    )
    max_batch_size: int = _option(32, "most requests in one iteration", least=1, most=4096)
    max_batch_prefill_tokens: int = _option(
        4096,
        "most prompt tokens in one iteration",
        least=1,
        most=2**31,
        only="policy tgi",
    )
    max_batch_total_tokens: int | None = _option(
        None,
        "most tokens, of prompts and asked for, of all running requests; none: what "
        "the KV memory holds",
        least=2,
        most=2**40,
        only="policy tgi",
    )
    waiting_served_ratio: float = _option(
        0.3,
        "running requests are interrupted for this many times as many waiting ones",
        least=0,
        most=1000,
        only="policy tgi",
    )
    max_waiting_tokens: int = _option(
        20,
        "tokens that running requests generate before any waiting one interrupts them",
        least=1,
        most=2**31,
        only="policy tgi",
    )
    token_budget: int = _option(
        512,
        "tokens of an iteration, decodes and pieces of prompts",
        least=2,
        most=2**31,
        only="policy stall-free",
    )
    admission: Literal["reserve", "optimistic"] = _option(
        "reserve",
        "a request is admitted when the KV memory holds all that it may generate (and is "
        "never preempted), or when it holds its prompt (and is preempted when memory runs short)",
        only="dynamic",
    )
    kv_memory: str = _option(
        "auto",
        "keys and values: auto (what the batch limit needs, or a share of the free memory), or "
        "an amount such as 2GiB, 500MB, 30000tokens",
        pattern=r"auto|\d+(\.\d+)?(tokens|[KMG]?B|[KMG]iB)",
    )
    max_bypass: int = _option(
        32,
        "later arrivals that may be admitted before a request",
        least=1,
        most=2**31,
        only="policy shortest-first",
    )
    deferred_policy: Literal["budget", "fifo", "priority", "exclusive"] = _option(
        "budget",
        "deferred requests: budget (they fill what a time budget leaves in each iteration), fifo "
        "(as immediate ones), priority (immediate ones are admitted first), exclusive (only while "
        "no immediate one is there); in modes other than dynamic all but fifo admit them only "
        "while no immediate one waits",
    )
    deferred_budget: float = _option(
        1.15,
        "deferred policy budget: how many times as long immediate requests may take for the sake "
        "of deferred ones",
        least=1,
        most=100,
    )
    deferred_target_ms: float | None = _option(
        None,
        "deferred policy budget: iterations with immediate requests may take so long, instead of "
        "--deferred-budget; none: that",
        least=0.001,
        most=3_600_000,
    )
    deferred_max_step_ms: float = _option(
        100.0,
        "deferred policy budget: longest iteration of deferred requests alone, for which the next "
        "immediate one may have to wait",
        least=0.001,
        most=3_600_000,
    )
    max_waiting: int = _option(
        1024, "most requests in the queue; those beyond are answered with 429", least=1, most=16384
    )
    max_waiting_prompt_tokens: int = _option(
        2**20,
        "most prompt tokens in the queue; requests beyond are answered with 429",
        least=1,
        most=2**40,
    )
    request_timeout: float = _option(
        3600.0,
        "seconds after its arrival at which a request that is not done, waiting or running, ends "
        "with an error",
        least=0.001,
        most=31_536_000,
    )
    max_wait_ms: float = _option(
        50.0,
        "how long the oldest request waits for others to join its batch",
        least=0,
        most=60_000,
        only="static",
    )
    static_release: Literal["batch", "request"] = _option(
        "batch",
        "answers leave with their batch, or each request's when it is complete",
        only="static",
    )
    seed: int = _option(0, "seed of the random weights of random:NAME", least=0, most=2**63 - 1)
    drain_timeout: float = _option(
        30.0,
        "seconds that accepted requests have to finish after SIGTERM",
        least=0,
        most=86_400,
    )
    max_body_bytes: int = _option(2**20, "largest request body", least=1024, most=2**30)
    client_timeout: float = _option(
        60.0,
        "seconds in which a client has to send, or to take, some more of what the server waits "
        "for; else its connection is closed and its request cancelled",
        least=0.1,
        most=86_400,
    )
    stream_heartbeat: float = _option(
        15.0,
        "seconds without a token after which a stream is sent a comment, and its head before that; "
        "shorter than the idle timeout of every proxy in between",
        least=0.01,
        most=86_400,
    )
    api_key: str | None = _option(
        None,
        "keys of visible ASCII, comma separated, one of which a client has to send as "
        "Authorization: Bearer KEY to all paths but /health; other users of this machine can read "
        "a command line, not your environment; none: everyone may ask",
        pattern=r"[!-+\--~]+(,[!-+\--~]+)*",  # visible ASCII
        secret=True,
    )
    log_level: Literal["debug", "info", "warning", "error"] = _option("info", "least level logged")
    log_format: Literal["plain", "json"] = _option("plain", "logs for people or for machines")
    max_concurrent_requests: int | None = _option(
        None,
        "TGI's API: most requests at once, those beyond are answered with 429; none: as many as "
        "the queue and the batch take",
        least=1,
        most=65536,
    )
    max_best_of: int = _option(2, "TGI's API: largest best_of", least=1, most=64)
    max_stop_sequences: int = _option(4, "TGI's API: most stop strings", least=0, most=256)
    max_top_n_tokens: int = _option(5, "TGI's API: largest top_n_tokens", least=0, most=100)
    max_client_batch_size: int = _option(
        4, "TGI's API: most texts in the inputs of one request", least=1, most=1024
    )
    max_input_tokens: int | None = _option(
        None,
        "TGI's API: most tokens of a prompt; none: one less than --max-total-tokens",
        least=1,
        most=2**20,
    )
    max_total_tokens: int | None = _option(
        None,
        "TGI's API: most tokens of a prompt and its answer; none: the model's context",
        least=2,
        most=2**20,
    )
    data_dir: str = _option(
        "data",
        "folder of the Batch API's files and jobs; made when they are first used, for one server "
        "at a time",
    )
    database_url: str | None = _option(
        None,
        "the Batch API's database in place of --data-dir: postgresql://USER:PASSWORD@HOST/NAME, "
        "which several servers may share, or sqlite:////PATH/jobs.db",
        pattern=r"postgresql(\+psycopg)?://[^/]*/.+|sqlite:////.+",
        secret=True,
    )
    file_retention_days: float = _option(
        30.0,
        "Batch API: days after which files are deleted, where the client did not say",
        least=0.001,
        most=36_500,
    )
    cors_allow_origin: str | None = _option(
        None,
        "pages of other origins that may call this server: https://host[:port], several comma "
        "separated, or * for all; none: no page may",
        pattern=r"\*|https?://[^,\s/]+(,https?://[^,\s/]+)*",
    )

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            if (value := getattr(self, spec.name)) is not None:
                _check(spec, value)
        if self.max_input_tokens and self.max_total_tokens:
            _check_order(self.max_input_tokens, self.max_total_tokens)

    @property
    def threads(self) -> int:
        """Enough that every request the limits admit has a thread, so that none hides in the
        socket's backlog and all refusals are ours."""
        return self.max_batch_size + self.max_waiting + SPARE_THREADS

    @property
    def grows(self) -> bool:
        """Whether requests are admitted with less memory than they may come to need."""
        return self.mode == "dynamic" and self.admission == "optimistic"

    @property
    def without_effect(self) -> list[str]:
        """What is set to another value than its default and has no effect here, in words."""
        told = []
        for spec in dataclasses.fields(self):
            only = spec.metadata.get("only")
            if only is None or getattr(self, spec.name) == spec.default:
                continue
            if only in MODES:
                fits, where = only == self.mode, f"in mode {only}"
            else:  # a policy of one's own may read the options of any other
                fits = only == f"policy {self.policy}" or ":" in self.policy
                fits, where = fits and self.mode == "dynamic", f"with --{only}"
            if not fits:
                told.append(f"{flag(spec.name)} has an effect {where} only")
        return told

    @property
    def open_to_the_world(self) -> bool:
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def keys(self) -> list[str]:
        return self.api_key.split(",") if self.api_key else []

    def as_dict(self) -> dict[str, Any]:
        """To be shown: what is secret is not in it."""
        values = dataclasses.asdict(self)
        for spec in dataclasses.fields(self):
            if spec.metadata.get("secret") and values[spec.name] is not None:
                values[spec.name] = "(set)"
        return values

    def as_environment(self) -> dict[str, str]:
        """The environment from which `from_environment` reads the same configuration."""
        values = dataclasses.asdict(self)
        given = {name: value for name, value in values.items() if value is not None}
        return {env_name(name): str(value) for name, value in given.items()}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Config:
        environ = os.environ if environ is None else environ
        if env_name("mode") not in environ:
            raise ConfigError(f"{env_name('mode')} is not set; allowed: {', '.join(MODES)}")
        values = {}
        for spec in dataclasses.fields(cls):
            if (text := environ.get(env_name(spec.name))) is not None:
                values[spec.name] = _parse(spec, text)
        return cls(**values)

    @classmethod
    def from_args(cls, args: Sequence[str], environ: Mapping[str, str] | None = None) -> Config:
        """The command line; what it leaves out comes from the environment, then the defaults.
        Prints usage and exits with status 2 on what is not allowed."""
        parser = argparse.ArgumentParser(
            prog="server.sh",
            description=_DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="The command line wins over the environment.",
            allow_abbrev=False,
        )
        parser.add_argument("mode", metavar="MODE", choices=MODES, help=", ".join(MODES))
        for spec in dataclasses.fields(cls)[1:]:
            choices = _choices(spec)
            parser.add_argument(
                flag(spec.name),
                metavar="|".join(choices) or {str: "NAME", int: "N", float: "X"}[_type(spec)],
                help=f"{spec.metadata['help']} (default {spec.default}; {env_name(spec.name)})",
            )
        given = {k: v for k, v in vars(parser.parse_args(args)).items() if v is not None}
        environ = os.environ if environ is None else environ
        try:
            return cls.from_environment(
                {**environ, **{env_name(name): text for name, text in given.items()}}
            )
        except ConfigError as error:
            parser.error(str(error))


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


UNPREFIXED = ("api_key", "data_dir", "database_url")  # the names that such settings go by elsewhere


def env_name(name: str) -> str:
    return name.upper() if name in UNPREFIXED else ENV_PREFIX + name.upper()


def _label(spec: dataclasses.Field[Any]) -> str:
    return f"{flag(spec.name)} ({env_name(spec.name)})"


def _type(spec: dataclasses.Field[Any]) -> type:
    """Of the value, where one is given."""
    hint = get_type_hints(Config)[spec.name]
    if get_origin(hint) is Literal:
        return str
    return cast(type, get_args(hint)[0] if get_args(hint) else hint)  # int of `int | None`


def _choices(spec: dataclasses.Field[Any]) -> tuple[str, ...]:
    hint = get_type_hints(Config)[spec.name]
    return get_args(hint) if get_origin(hint) is Literal else ()


def _parse(spec: dataclasses.Field[Any], text: str) -> Any:
    kind = _type(spec)
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{_label(spec)} is {text!r}; allowed: {noun}") from None


def _check_order(max_input_tokens: int, max_total_tokens: int) -> None:
    if max_input_tokens >= max_total_tokens:
        raise ConfigError(
            f"--max-input-tokens is {max_input_tokens}; allowed: less than --max-total-tokens "
            f"({max_total_tokens})"
        )


def _check(spec: dataclasses.Field[Any], value: Any) -> None:
    choices = _choices(spec)
    if choices and value not in choices:
        raise ConfigError(f"{_label(spec)} is {value!r}; allowed: {', '.join(choices)}")
    least, most = spec.metadata.get("least"), spec.metadata.get("most")
    if least is not None and not least <= value <= most:  # nan fails this comparison too
        raise ConfigError(f"{_label(spec)} is {value}; allowed: {least} to {most}")
    pattern = spec.metadata.get("pattern")
    if pattern is not None and not re.fullmatch(pattern, value):
        if spec.metadata["secret"]:
            raise ConfigError(f"{_label(spec)} is wrong; allowed: {spec.metadata['help']}")
        raise ConfigError(f"{_label(spec)} is {value!r}; allowed: {spec.metadata['help']}")
    if value == "":
        raise ConfigError(f"{_label(spec)} is empty")
