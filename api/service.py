"""Shared by all handlers: the queue, the served model with its names and vocabulary, the records,
and waiting for a response."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, cast

from flask import g, request
from typing_extensions import TypedDict
from werkzeug.datastructures import Headers

from api.defaults import SamplingDefaults
from api.follow import Item, awaited
from api.http.body import EncodingTurns
from api.http.departed import Departures
from api.http.errors import CLIENT_GONE, ApiError, busy, invalid, refusal, show
from api.http.hooks import belongs_to_request
from api.http.worker.handlers import ARRIVED_S
from api.http.writer import Writer
from api.signals import NONE, Signals, signal
from batching import BatchingManager
from engine.inference import Cause, Inference, OverloadedError, RefusedError
from models.names import GGUF_SUFFIX, local_path
from runtime.grammar.grammars import GrammarError, Grammars, GrammarsBusyError
from seams import Constraint, LoadedModel, RequestRecord
from serving.config import Config
from telemetry.machine import describe_machine
from telemetry.stats import Stats
from text.chat import ChatTemplate
from text.tokenizer import EncodingError, Tokenizer

KEPT_TEXTS = 2000
# a request for any model that is served; TGI's clients name it so
ANY_MODEL = (None, "tgi", "dummy")
COMPILING = "other grammars are being compiled or in use; try again"
FAILED_STATUS: Mapping[Cause | None, int] = {
    None: 500,
    "shutdown": 503,
    "timeout": 504,
    "constraint": 400,
}


class ServerDescription(TypedDict):
    """The running server; `model` is null while it is being loaded."""

    mode: Literal["nobatch", "static", "dynamic"]
    policy: str
    model: dict[str, Any] | None
    machine: dict[str, Any]
    options: dict[str, Any]


class Health(TypedDict):
    status: Literal["ready"]


READY: Health = {"status": "ready"}


def served_names(config: Config) -> list[str]:
    """`--served-model-name`, or else `--model` (of a path, its last part without .gguf)."""
    if config.served_model_name is not None:
        return config.served_model_name.split(",")
    path = local_path(config.model)
    return [config.model if path is None else path.name.removesuffix(GGUF_SUFFIX)]


@dataclass(frozen=True, slots=True)
class Service:
    """`names`: of the model, for clients; responses carry the first."""

    config: Config
    manager: BatchingManager
    names: Sequence[str]
    tokenizer: Tokenizer
    template: ChatTemplate
    stats: Stats
    departures: Departures
    writer: Writer
    clock: Callable[[], float]
    texts: OrderedDict[int, Inference] | None = None  # the newest, by id, for --watch-text
    grammars: Grammars | None = None  # None: constraints are refused
    # of OpenAI's APIs and /inference
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    turns: EncodingTurns = field(default_factory=EncodingTurns)

    def describe(self) -> ServerDescription:
        config, model, info = self.config, cast("LoadedModel | None", self.manager.model), None
        if model is not None:
            info = {**asdict(model.info), "sampling_defaults": self.defaults.stated}
        return {
            "mode": config.mode,
            "policy": config.policy if config.mode == "dynamic" else config.mode,
            "model": info,
            "machine": describe_machine(None if info is None else info["device"]),
            "options": config.as_dict(),
        }

    @property
    def context(self) -> int:
        """Of a model that is loaded."""
        assert self.manager.model is not None
        return self.manager.model.context

    def require_served(self, name: str | None, others: Container[str | None] = ANY_MODEL) -> None:
        """`others`: what is taken beside the model's names, as a request need not name it. Raises
        ApiError."""
        if name not in self.names and name not in others:
            raise ApiError(
                404,
                f"the model {show(name)} is not served here; allowed: "
                + ", ".join(map(show, self.names)),
                param="model",
                code="model_not_found",
            )

    def require_tokens(self, tokens: Sequence[int], field: str) -> None:
        """Raises ApiError for one that the vocabulary does not have."""
        vocab_size = self.tokenizer.vocab_size
        if tokens and (token := max(tokens)) >= vocab_size:
            raise invalid(field, f"has {token}, which is no token; allowed: 0 to {vocab_size - 1}")

    def encode(self, field: str, texts: Sequence[str], *, fit: bool = True) -> list[list[int]]:
        """`fit`: each must fit into the context. Raises ApiError."""
        if fit:
            for text in texts:
                self.require_fit(field, text)
        with self.turns.of(sum(map(len, texts))):
            try:
                return list(map(self.tokenizer.encode_prompt, texts))
            except EncodingError as error:
                raise ApiError(400, f"field '{field}': {error}") from error

    def require_fit(self, field: str, text: str) -> None:
        """Refuses, unread, a text that exceeds the context whatever its tokens are. Raises
        ApiError."""
        model, least = self.manager.model, self.tokenizer.least_tokens(text)
        if model is not None and least > model.context:
            raise ApiError(
                400,
                f"a prompt of at least {least} tokens exceeds the model's context of "
                f"{model.context} tokens",
                param=field,
                code="context_length_exceeded",
            )

    def require_ready(self) -> None:
        """Raises ApiError while no requests are accepted; called early, it saves tokenizing. One
        that was pending was accepted before, and waits for a lost model like those in the queue."""
        if ARRIVED_S.get() is not None and self.manager.recovers:
            return
        if (reason := self.manager.unavailable) is not None:
            raise busy(reason)

    def require_possible(self, requests: int, prompt_tokens: int, field: str) -> None:
        """Raises ApiError for more requests at once, or more prompt tokens in total, than an empty
        queue accepts; it accepts a single prompt of any length."""
        most, most_tokens = self.config.max_waiting, self.config.max_waiting_prompt_tokens
        said, allowed = f"{requests} requests at once", f"{most} (--max-waiting)"
        if requests <= most:
            if requests == 1 or prompt_tokens <= most_tokens:
                return
            said += f" with prompts of {prompt_tokens} tokens in all"
            allowed = f"{most_tokens} (--max-waiting-prompt-tokens)"
        raise ApiError(400, f"{said} are more than may wait; allowed: {allowed}", param=field)

    def require_compiled(self, constraint: Constraint, field: str) -> None:
        """Raises ApiError for a constraint that cannot be served."""
        if self.grammars is None:
            raise invalid(field, "needs grammars, which --disable-grammar-support excludes")
        try:
            self.grammars.compile(constraint)
        except GrammarError as error:
            raise invalid(field, f"is not valid: {error}") from None
        except GrammarsBusyError as error:
            raise busy(COMPILING) from error

    def submit(
        self, *inferences: Inference, asked: Signals = NONE, stored_for: str | None = None
    ) -> None:
        """Submits all or none: raises ApiError if one is refused. `stored_for`: the owner of a
        stored job, to whose lines the queue's limits do not apply."""
        owner, headers, enqueue = stored_for, Headers(), self.manager.enqueue_stored
        if owner is None:
            owner, headers, enqueue = g.owner, request.headers, self.manager.enqueue
            deferred = sum(inference.service_class == "deferred" for inference in inferences)
            most = self.manager.queue.max_waiting_deferred
            if deferred > most:
                raise ApiError(
                    400,
                    f"{deferred} deferred requests at once are more than may wait; allowed: "
                    f"{most}, half of --max-waiting",
                )
        signal(inferences, asked, headers, owner, self.config.max_priority)
        if not all(inference.prompt_tokens for inference in inferences):
            # a normalizer or a chat template may leave an empty text
            raise ApiError(400, "the prompt has no tokens; at least one is needed")
        try:
            for inference in inferences:
                constraint = inference.sampling.constraint
                if self.grammars is not None and constraint is not None:
                    inference.need = self.grammars.compile(constraint)
        except GrammarsBusyError as error:
            raise busy(COMPILING) from error
        belongs_to_request(self.clock, *inferences)
        for number, inference in enumerate(inferences):
            inference.salt = owner  # or the time to the first token would reveal others' prompts
            try:
                enqueue(inference)
            except RefusedError as error:
                if isinstance(error, OverloadedError):
                    self.stats.count_rejected()
                self.cancel(*inferences[:number])
                raise refusal(error) from None
            if self.texts is not None:
                self.texts[inference.id] = inference
                if len(self.texts) > KEPT_TEXTS:
                    self.texts.popitem(last=False)
            self.stats.count_received(self.clock() - inference.arrival_s)

    def cancel(self, *inferences: Inference) -> None:
        for inference in inferences:
            if inference.record is None:
                self.manager.cancel(inference)

    def wait(self, items: Iterable[Item | None], *inferences: Inference) -> list[Item]:
        """All items of what was submitted, once they are there; None: there is none before the next
        update. Cancels the requests when one fails or their client disconnects. Raises ApiError."""
        client, cancel = request.environ.get("gunicorn.socket"), partial(self.cancel, *inferences)
        unwatch = self.departures.watch(client, cancel)
        try:
            return list(awaited(items, inferences[0].updated))
        finally:
            unwatch()
            cancel()

    def outcome(self, inference: Inference) -> RequestRecord:
        """The record of a successful request. Raises ApiError for the others."""
        record = inference.record
        assert record is not None
        if record.end == "failed":
            status = FAILED_STATUS[inference.cause]
            raise ApiError(status, inference.error or "the request failed")
        if record.end == "cancelled":
            raise ApiError(CLIENT_GONE, "the client disconnected")
        return record
