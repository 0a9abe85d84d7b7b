"""Reads what the router needs from a request's body: model, service class, the beginning of its
prompt, the limit of its output. No I/O.

The body is passed on byte for byte. The prompt is skipped, not decoded: this runs on the event loop
and delays all other requests (2.5 ms per MiB of token ids; decoding them would take 26 ms).
"""

import hashlib
import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec import Raw, field

from router.rules.upstream import RESPONSES
from web.requests import read_json

# The beginnings of a prompt that are told apart: two in each power of two.
PREFIX_BYTES = tuple(256 * n * 2**i // 2 for i in range(9) for n in (2, 3))

_NONE, _FALSE = Raw(b"null"), Raw(b"false")
_FLEX, _DEFERRED = Raw(b'"flex"'), Raw(b'"deferred"')
_MAX_NEW_TOKENS = re.compile(rb'"max_new_tokens"\s*:\s*(\d{1,9})\b')  # TGI's
_COUNT = re.compile(rb"\d{1,9}")
_PRIORITY = re.compile(rb"[+-]?\d{1,10}")
# These change nothing on a server: completions, embeddings, tokens. So do responses that are not
# stored.
_CHANGES_NOTHING = re.compile(
    r"/v1/((engines/.+/|chat/)?completions|embeddings|responses/input_tokens)"
    r"|/|/inference|/generate|/generate_stream"
)
# An escape of half a surrogate pair: valid JSON, though no text.
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class RequestBody(msgspec.Struct):
    """The fields that are read from a body. `Raw` ones stay bytes."""

    model: str | None = None
    service_tier: Raw = _NONE
    service_class: Raw = field(default=_NONE, name="class")
    messages: Raw = _NONE
    asked: Raw = field(default=_NONE, name="prompt")
    inputs: Raw = _NONE
    input: Raw = _NONE
    previous_response_id: Raw = _NONE
    store: Raw = _NONE
    limit: Raw = field(default=_NONE, name="max_tokens")
    max_completion_tokens: Raw = _NONE
    max_output_tokens: Raw = _NONE
    parameters: Raw = _NONE
    n: Raw = _NONE
    prompt_cache_key: Raw = _NONE
    user: Raw = _NONE
    priority: Raw = _NONE

    @property
    def deferred(self) -> bool:
        return self.service_tier == _FLEX or self.service_class == _DEFERRED

    @property
    def prompt(self) -> memoryview:
        """The JSON of the conversation or prompt, unchanged."""
        given = (self.messages, self.asked, self.inputs, self.input)
        return memoryview(max(given, key=len))

    @property
    def in_tgis_field(self) -> bool:
        """The prompt, as far as there is one."""
        return self.inputs != _NONE or self.messages == self.asked == _NONE

    @property
    def previous(self) -> str:
        """The id of the stored response that it continues; empty for none."""
        id = bytes(self.previous_response_id).decode(errors="replace")
        return id.strip('"') if id.startswith('"') else ""

    @property
    def session(self) -> bytes:
        """What it shares with other requests of a conversation or user, as JSON; empty if it says
        nothing."""
        keys = (self.prompt_cache_key, self.user)
        return next((bytes(key) for key in keys if key != _NONE), b"")

    @property
    def user_name(self) -> str:
        """As JSON; empty if it names none."""
        return "" if self.user == _NONE else bytes(self.user).decode(errors="replace")

    @property
    def max_tokens(self) -> int | None:
        """Of all choices together; None if it sets no limit."""
        limits = (self.max_completion_tokens, self.limit, self.max_output_tokens)
        found = [_COUNT.fullmatch(limit) for limit in limits if limit is not _NONE]
        if self.parameters is not _NONE:
            found.append(_MAX_NEW_TOKENS.search(self.parameters))
        limit = next((int(match[match.lastindex or 0]) for match in found if match), None)
        choices = None if self.n is _NONE else _COUNT.fullmatch(self.n)
        return limit if limit is None or choices is None else limit * int(choices[0])

    def is_repeatable(self, path: str) -> bool:
        """Whether it may be sent to a second server after a first one may have acted on it."""
        if path == RESPONSES:
            return self.store == _FALSE
        return _CHANGES_NOTHING.fullmatch(path) is not None


_DECODER = msgspec.json.Decoder(RequestBody)


def parse_body(body: bytes | bytearray) -> RequestBody:
    """Raises ValueError, which says what is wrong, if the body is not a JSON object or the model is
    not a string."""
    try:
        try:
            return _DECODER.decode(body)
        except msgspec.DecodeError:
            # With another character for each half, and escaped slashes for escaped backslashes,
            # which could look like the beginning of an escape.
            readable, halves = _HALF.subn(rb"\\ufffd", body.replace(b"\\\\", b"\\/"))
            if not halves:
                raise
            return _DECODER.decode(readable)
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise ValueError("'model' must be a string.") from None
        raise ValueError("The body must be a JSON object.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The body is not valid JSON: {error}.") from None


def priority_in(text: bytes | Raw) -> int | None:
    """None if it is no number that a server accepts."""
    return int(bytes(text)) if _PRIORITY.fullmatch(text) else None


def renamed(body: bytes | bytearray, model: str) -> bytearray:
    """The body of a request that names a model, with another one; all else stays as it is."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Raw])
    except msgspec.DecodeError:  # there is half a surrogate pair
        return bytearray(msgspec.json.encode(read_json(bytes(body)) | {"model": model}))
    if "model" in fields:
        fields["model"] = Raw(msgspec.json.encode(model))
    return bytearray(msgspec.json.encode(fields))


def prefixes(session: bytes, prompt: memoryview) -> Sequence[int]:
    """A hash of the session, if there is one, then one of each beginning of the prompt as long as
    `PREFIX_BYTES` says. They are the same in every process."""
    hashed, found = hashlib.blake2b(digest_size=8), []
    if session:
        found.append(_number(hashlib.blake2b(session, digest_size=8, key=b"session")))
    for start, end in pairwise((0, *PREFIX_BYTES)):
        if end > len(prompt):
            break
        hashed.update(prompt[start:end])
        found.append(_number(hashed))
    return found


def _number(hashed: hashlib.blake2b) -> int:
    return int.from_bytes(hashed.digest(), "big")
