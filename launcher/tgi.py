"""Text Generation Inference's options and environment variables, translated to this project's.

Source: the options of its launcher, router (webserver) and model server, version 3. Pure functions
over text; `docs/tgi.md` shows the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

SWITCH = "switch"  # an option that needs no value


class TranslationError(ValueError):
    """An option of Text Generation Inference that is not offered; the message says why."""


@dataclass(frozen=True, slots=True)
class Same:
    """The option has the same name and meaning here."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """The option exists under another name. `value` returns its value, or None if the option asks
    for the default; it raises ValueError with the reason for a refusal."""

    to: str
    value: Callable[[str], str | None] = str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The option is accepted and changes nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The option is refused."""

    why: str


@dataclass(frozen=True, slots=True)
class Named:
    """One option of Text Generation Inference."""

    flag: str
    here: Same | Renamed | Accepted | Refused
    kind: Literal["value", "switch"] = "value"
    variable: str | None = ""  # environment variable; empty: derived from the flag; None: none

    @property
    def environment(self) -> str | None:
        if self.variable == "":
            return self.flag.removeprefix("--").replace("-", "_").upper()
        return self.variable


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "1", "yes", "false", "0", "no", ""}:
        raise ValueError("allowed: true, false")
    return text.lower() in {"true", "1", "yes"}


def _sharded(text: str) -> str | None:
    return None if _truth(text) else "1"


def _json(text: str) -> str | None:
    return "json" if _truth(text) else None


def _graphs(text: str) -> str:
    """TGI's value is a list of sizes, or 0 for none; here the sizes follow from
    --max-batch-size."""
    return "false" if text in {"0", "false"} else "true"


def _quantize(text: str) -> str:
    if text in {"int8", "eetq", "bitsandbytes", "compressed-tensors"}:
        return "int8"
    raise ValueError(
        "allowed: eetq, bitsandbytes, compressed-tensors and int8, which all mean 8-bit weights "
        "(--dtype int8 here)"
    )


def _dtype(text: str) -> str:
    if text in {"float16", "bfloat16", "float32", "int8", "auto"}:
        return text
    raise ValueError("allowed: float16, bfloat16, float32, int8, auto")


_HERE = Same()
_NO_NGROK = Refused("no tunnel is opened; run ngrok beside the server")
_NO_WATERMARK = Refused("output is not watermarked")
_NO_ROPE = Refused("the scaling of rotary embeddings is read from the model's files")
_CACHE = Renamed("--hub-cache")
_SOCKET = Renamed("--socket")

OPTIONS: tuple[Named, ...] = (
    # of the launcher; the router and the model server also have most of them
    Named("--model-id", Renamed("--model")),
    Named("--revision", _HERE),
    Named("--validation-workers", Accepted("each request is tokenized in its own thread")),
    Named("--sharded", Renamed("--shards", _sharded)),
    Named("--num-shard", Renamed("--shards")),
    Named("--quantize", Renamed("--dtype", _quantize)),
    Named("--speculate", _HERE),
    Named("--dtype", Renamed("--dtype", _dtype)),
    Named("--kv-cache-dtype", Refused("keys and values have the precision of --dtype")),
    Named("--trust-remote-code", Refused("code from a model's folder is never run"), "switch"),
    Named("--max-concurrent-requests", _HERE),
    Named("--max-best-of", _HERE),
    Named("--max-stop-sequences", _HERE),
    Named("--max-top-n-tokens", _HERE),
    Named("--max-input-tokens", _HERE),
    Named("--max-input-length", Renamed("--max-input-tokens")),
    Named("--max-total-tokens", _HERE),
    Named("--waiting-served-ratio", _HERE),
    Named("--max-batch-prefill-tokens", _HERE),
    Named("--max-batch-total-tokens", _HERE),
    Named("--max-waiting-tokens", _HERE),
    Named("--max-batch-size", _HERE),
    Named("--cuda-graphs", Renamed("--cuda-graphs", _graphs)),
    Named("--hostname", Renamed("--host"), variable=None),
    Named("--port", _HERE),
    Named("-p", Renamed("--port"), variable=None),
    Named("--prometheus-port", Refused("/metrics is on the server's own port")),
    Named("--shard-uds-path", _SOCKET),
    Named("--master-shard-uds-path", _SOCKET),
    Named("--uds-path", _SOCKET),
    Named("--master-addr", Renamed("--master-addr")),
    Named("--master-port", Renamed("--master-port")),
    Named("--huggingface-hub-cache", _CACHE),
    Named("--weights-cache-override", _CACHE),
    Named(
        "--disable-custom-kernels",
        Accepted("the GPU kernel is compared with plain torch at first start"),
        "switch",
    ),
    Named("--cuda-memory-fraction", Refused("--kv-memory sets the memory for keys and values")),
    Named("--rope-scaling", _NO_ROPE),
    Named("--rope-factor", _NO_ROPE),
    Named("--json-output", Renamed("--log-format", _json), "switch"),
    Named("--otlp-endpoint", _HERE),
    Named("--otlp-service-name", _HERE),
    Named("--cors-allow-origin", _HERE),
    Named("--api-key", _HERE),
    Named("--watermark-gamma", _NO_WATERMARK),
    Named("--watermark-delta", _NO_WATERMARK),
    Named("--ngrok", _NO_NGROK, "switch"),
    Named("--ngrok-authtoken", _NO_NGROK),
    Named("--ngrok-edge", _NO_NGROK),
    Named("--tokenizer-config-path", Refused("the chat template is read from the model's folder")),
    Named("--disable-grammar-support", _HERE, "switch"),
    Named("--env", Refused("GET /info and /stats describe a running server"), "switch", None),
    Named("-e", Refused("GET /info and /stats describe a running server"), "switch", None),
    Named("--max-client-batch-size", _HERE),
    Named("--lora-adapters", Refused("adapters are not applied; merge them into the weights")),
    Named("--usage-stats", Accepted("no usage is reported")),
    Named("--payload-limit", Renamed("--max-body-bytes")),
    Named("--enable-prefill-logprobs", Accepted("they are always available"), "switch"),
    Named("--graceful-termination-timeout", Renamed("--drain-timeout")),
    # of the router
    Named("--tokenizer-name", Refused("the tokenizer is read from the model's folder")),
    Named("--messages-api-enabled", Accepted("the messages API is always on"), "switch"),
    # of the model server
    Named("--logger-level", Renamed("--log-level", str.lower)),
)
BY_FLAG: Mapping[str, Named] = {named.flag: named for named in OPTIONS}


def from_args(args: Sequence[str]) -> list[str]:
    """The command line in this project's names; other words are left as they are. Raises
    TranslationError."""
    return [word for words in _from_args(args) for word in words]


def from_environment(environ: Mapping[str, str], taken: Sequence[str]) -> list[str]:
    """The environment variables as a command line in this project's names. Leaves out options that
    the translated command line `taken` has. Raises TranslationError."""
    has = {word.partition("=")[0] for word in taken}
    found: list[str] = []
    for named in OPTIONS:
        variable = named.environment
        if variable is None or (text := environ.get(variable, "")) == "":
            continue
        if named.kind == SWITCH and not _switch(variable, text):
            continue
        words = _translate(named, variable, "true" if named.kind == SWITCH else text)
        if words and words[0] not in has:
            found += words
    return found


def _from_args(args: Sequence[str]) -> Iterator[list[str]]:
    left = list(args)
    while left:
        word = left.pop(0)
        flag, equals, text = word.partition("=")
        named = BY_FLAG.get(flag)
        if named is None:
            yield [word]
            continue
        if not equals:
            if named.kind == SWITCH:
                text = "true"
            elif left and not isinstance(named.here, Refused):
                text = left.pop(0)
            elif not isinstance(named.here, Refused):
                raise TranslationError(f"{flag} needs a value")
        yield _translate(named, flag, text)


def _switch(variable: str, text: str) -> bool:
    try:
        return _truth(text)
    except ValueError as error:
        raise TranslationError(f"{variable} is {text!r}; {error}") from None


def _translate(named: Named, given_as: str, text: str) -> list[str]:
    match named.here:
        case Same():
            return [named.flag, text]
        case Renamed(to, value):
            try:
                meant = value(text)
            except ValueError as error:
                raise TranslationError(f"{given_as} is {text!r}; {error}") from None
            return [] if meant is None else [to, meant]
        case Accepted():
            return []
        case Refused(why):
            raise TranslationError(f"{given_as} is not supported: {why}")


def table() -> list[str]:
    """Rows of Markdown, one for each option, as `docs/tgi.md` shows them."""
    return [
        f"| `{named.flag}` | {_cell(named.environment)} | {_meaning(named)} |" for named in OPTIONS
    ]


def _cell(variable: str | None) -> str:
    return "" if variable is None else f"`{variable}`"


def _meaning(named: Named) -> str:
    match named.here:
        case Same():
            return "the same"
        case Renamed(to, _):
            return f"`{to}`"
        case Accepted(why):
            return f"accepted, no effect: {why}"
        case Refused(why):
            return f"refused: {why}"
