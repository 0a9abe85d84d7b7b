"""Text Generation Inference's options and environment variables, translated to this project's.

Source: the options of its launcher, router (webserver) and model server, version 3. Pure functions
over text; `docs/tgi.md` shows the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


class TranslationError(ValueError):
    """An option of Text Generation Inference that is not offered; the message says why."""


@dataclass(frozen=True, slots=True)
class Named:
    """One option of Text Generation Inference: it has the name `to` here, is `accepted` and changes
    nothing, or is `refused`, for this reason. `value` returns its value here, or None if the option
    asks for the default; it raises ValueError with the reason for a refusal."""

    flag: str
    to: str = ""
    value: Callable[[str], str | None] = str
    accepted: str = ""
    refused: str = ""
    is_switch: bool = False  # needs no value
    variable: str | None = ""  # of the environment; empty: derived from the flag; None: none

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


_NO_NGROK = "no tunnel is opened; run ngrok beside the server"
_NO_WATERMARK = "output is not watermarked"
_NO_ROPE = "the scaling of rotary embeddings is read from the model's files"
_NO_ENV = "GET /info and /stats describe a running server"

OPTIONS: tuple[Named, ...] = (
    # of the launcher; the router and the model server also have most of them
    Named("--model-id", "--model"),
    Named("--revision", "--revision"),
    Named("--validation-workers", accepted="each request is tokenized in its own thread"),
    Named("--sharded", "--shards", _sharded),
    Named("--num-shard", "--shards"),
    Named("--quantize", "--dtype", _quantize),
    Named("--speculate", "--speculate"),
    Named("--dtype", "--dtype", _dtype),
    Named("--kv-cache-dtype", refused="keys and values have the precision of --dtype"),
    Named("--trust-remote-code", refused="code from a model's folder is never run", is_switch=True),
    Named("--max-concurrent-requests", "--max-concurrent-requests"),
    Named("--max-best-of", "--max-best-of"),
    Named("--max-stop-sequences", "--max-stop-sequences"),
    Named("--max-top-n-tokens", "--max-top-n-tokens"),
    Named("--max-input-tokens", "--max-input-tokens"),
    Named("--max-input-length", "--max-input-tokens"),
    Named("--max-total-tokens", "--max-total-tokens"),
    Named("--waiting-served-ratio", "--waiting-served-ratio"),
    Named("--max-batch-prefill-tokens", "--max-batch-prefill-tokens"),
    Named("--max-batch-total-tokens", "--max-batch-total-tokens"),
    Named("--max-waiting-tokens", "--max-waiting-tokens"),
    Named("--max-batch-size", "--max-batch-size"),
    Named("--cuda-graphs", "--cuda-graphs", _graphs),
    Named("--hostname", "--host", variable=None),
    Named("--port", "--port"),
    Named("-p", "--port", variable=None),
    Named("--prometheus-port", refused="/metrics is on the server's own port"),
    Named("--shard-uds-path", "--socket"),
    Named("--master-shard-uds-path", "--socket"),
    Named("--uds-path", "--socket"),
    Named("--master-addr", "--master-addr"),
    Named("--master-port", "--master-port"),
    Named("--huggingface-hub-cache", "--hub-cache"),
    Named("--weights-cache-override", "--hub-cache"),
    Named(
        "--disable-custom-kernels",
        accepted="the GPU kernel is compared with plain torch at first start",
        is_switch=True,
    ),
    Named("--cuda-memory-fraction", refused="--kv-memory sets the memory for keys and values"),
    Named("--rope-scaling", refused=_NO_ROPE),
    Named("--rope-factor", refused=_NO_ROPE),
    Named("--json-output", "--log-format", _json, is_switch=True),
    Named("--otlp-endpoint", "--otlp-endpoint"),
    Named("--otlp-service-name", "--otlp-service-name"),
    Named("--cors-allow-origin", "--cors-allow-origin"),
    Named("--api-key", "--api-key"),
    Named("--watermark-gamma", refused=_NO_WATERMARK),
    Named("--watermark-delta", refused=_NO_WATERMARK),
    Named("--ngrok", refused=_NO_NGROK, is_switch=True),
    Named("--ngrok-authtoken", refused=_NO_NGROK),
    Named("--ngrok-edge", refused=_NO_NGROK),
    Named("--tokenizer-config-path", refused="the chat template is read from the model's folder"),
    Named("--disable-grammar-support", "--disable-grammar-support", is_switch=True),
    Named("--env", refused=_NO_ENV, is_switch=True, variable=None),
    Named("-e", refused=_NO_ENV, is_switch=True, variable=None),
    Named("--max-client-batch-size", "--max-client-batch-size"),
    Named("--lora-adapters", refused="adapters are not applied; merge them into the weights"),
    Named("--usage-stats", accepted="no usage is reported"),
    Named("--payload-limit", "--max-body-bytes"),
    Named("--enable-prefill-logprobs", accepted="they are always available", is_switch=True),
    Named("--graceful-termination-timeout", "--drain-timeout"),
    # of the router
    Named("--tokenizer-name", refused="the tokenizer is read from the model's folder"),
    Named("--messages-api-enabled", accepted="the messages API is always on", is_switch=True),
    # of the model server
    Named("--logger-level", "--log-level", str.lower),
)
BY_FLAG: Mapping[str, Named] = {named.flag: named for named in OPTIONS}


def from_args(args: Sequence[str]) -> list[str]:
    """The command line in this project's names; other words are left as they are. Raises
    TranslationError."""
    left, ours = list(args), list[str]()
    while left:
        word = left.pop(0)
        flag, equals, text = word.partition("=")
        if (named := BY_FLAG.get(flag)) is None:
            ours.append(word)
            continue
        if not (equals or named.refused):
            if not (named.is_switch or left):
                raise TranslationError(f"{flag} needs a value")
            text = "true" if named.is_switch else left.pop(0)
        ours += _translate(named, flag, text)
    return ours


def from_environment(environ: Mapping[str, str], taken: Sequence[str]) -> list[str]:
    """The environment variables as a command line in this project's names. Leaves out options that
    the translated command line `taken` has. Raises TranslationError."""
    has = {word.partition("=")[0] for word in taken}
    ours: list[str] = []
    for named in OPTIONS:
        if (variable := named.environment) is None or not (text := environ.get(variable, "")):
            continue
        if named.is_switch:
            try:
                if not _truth(text):
                    continue
            except ValueError as error:
                raise TranslationError(f"{variable} is {text!r}; {error}") from None
            text = "true"
        words = _translate(named, variable, text)
        if words and words[0] not in has:
            ours += words
    return ours


def _translate(named: Named, given_as: str, text: str) -> list[str]:
    if named.refused:
        raise TranslationError(f"{given_as} is not supported: {named.refused}")
    try:
        meant = named.value(text)
    except ValueError as error:
        raise TranslationError(f"{given_as} is {text!r}; {error}") from None
    return [named.to, meant] if named.to and meant is not None else []


def table() -> list[str]:
    """Rows of Markdown, one for each option, as `docs/tgi.md` shows them."""
    rows = []
    for named in OPTIONS:
        variable = "" if named.environment is None else f"`{named.environment}`"
        meaning = "the same" if named.to == named.flag else f"`{named.to}`"
        if named.accepted:
            meaning = f"accepted, no effect: {named.accepted}"
        elif named.refused:
            meaning = f"refused: {named.refused}"
        rows.append(f"| `{named.flag}` | {variable} | {meaning} |")
    return rows
