"""A call of OpenAI's API from its fields to its response, whether it arrived on a connection or as
a line of a batch."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from api.follow import follow
from api.http.body import of_schema
from api.http.errors import ApiError, invalid, show
from api.openai.choices import Choice, Segment
from api.openai.fields.messages import Message, for_template, text_of
from api.openai.fields.schemas import DEFAULT_COMPLETION_TOKENS, ChatRequest, CompletionRequest
from api.openai.fields.tools import Offer, rule_of
from api.openai.forms import (
    ChatCompletion,
    ChatForm,
    Completion,
    CompletionForm,
    CompletionTokensDetails,
    Form,
    Usage,
)
from api.service import Service
from api.stream import PLACE, around_text, event, quoted
from engine.inference import Inference, new_group
from seams import Constraint, Sampling
from text.chat import characters
from text.reasoning import Place, ReasoningParser, grammar_after_reasoning, place_of
from text.stops import Stops
from text.tokenizer import EncodingError
from text.tools.parsing import Parser

log = logging.getLogger(__name__)

CallRequest = CompletionRequest | ChatRequest

MOST_NOTED = 100  # fields and tools without effect that are logged
FORCE = 1e9  # more than any logit
MARK_TOKENS = 16  # more than a mark of reasoning and the blanks behind it have
DONE = "[DONE]"
END = f"data: {DONE}\n\n".encode()


def forced(token: int, sampling: Sampling) -> Sampling:
    """Generates `token`, whatever its logit. So a prompt is scored with its last token
    in the place of the one that every request generates, and may fill the whole context."""
    bias = ((token, FORCE),)
    return replace(
        sampling, temperature=0.0, repetition_penalty=1.0, logit_bias=bias, constraint=None
    )


def seed_of_choice(seed: int, index: int) -> int:
    """Choice 0 has the request's own seed and so equals the request alone."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


@dataclass(frozen=True, slots=True)
class Generation:
    """An api.stream.Call. `may_end_early`: what was generated is read while it arrives, as it may
    end its requests."""

    wanted: CallRequest
    choices: Sequence[Choice]
    inferences: Sequence[Inference]  # of the choices
    form: Form
    prompt_tokens: int
    may_end_early: bool

    def usage(self) -> Usage:
        """A prompt counts once, however many choices it has. An end token counts, though it is no
        part of the text, and so does a stop string."""
        of_each_prompt = self.inferences[:: self.wanted.n or 1]
        generated = sum(choice.generated for choice in self.choices)
        count: Usage = {
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(one.cached_tokens or 0 for one in of_each_prompt)
            },
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
        }
        details: CompletionTokensDetails = {}
        if reasoning := sum(choice.reasoning_tokens for choice in self.choices):
            details["reasoning_tokens"] = reasoning
        if isinstance(self.wanted, ChatRequest) and self.wanted.prediction is not None:
            details |= {
                "accepted_prediction_tokens": sum(one.accepted_drafts for one in self.inferences),
                "rejected_prediction_tokens": sum(one.rejected_drafts for one in self.inferences),
            }
        if details:
            count["completion_tokens_details"] = details
        return count

    def whole(self, parts: Sequence[Segment]) -> Completion | ChatCompletion:
        return self.form.whole(parts, len(self.choices), self.usage())

    def events(self) -> Iterator[bytes | None]:
        """Of a stream; None where there is none before the next update."""
        form, choices = self.form, range(len(self.choices))
        if isinstance(form, ChatForm):
            yield from map(event, form.opening(len(choices)))
        texts = [around_text(next(form.chunks(Segment(index, PLACE)))) for index in choices]
        for segment in follow(self.choices):
            if segment is None:
                yield None
            elif segment.tokens or segment.finish or segment.calls or segment.reasoning:
                yield from map(event, form.chunks(segment))
            else:
                before, after = texts[segment.index]
                yield before + quoted(segment.text).encode() + after
        if form.tells_usage:
            yield event(form.last(self.usage()))
        yield END


class Generations:
    """Makes generations. Raises ApiError for an invalid call."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._noted: set[str] = set()

    def completion(self, data: dict[str, Any], arrival_s: float) -> Generation:
        wanted, service = of_schema(data, CompletionRequest), self._service
        self._require_offered(wanted)
        choices = wanted.n or 1
        if wanted.best_of not in (None, choices):
            said = f"must be the same as 'n' ({choices}), got {wanted.best_of}"
            raise invalid("best_of", said)
        prompts: list[Any] = [wanted.prompt]
        if not isinstance(wanted.prompt, str) and not isinstance(wanted.prompt[0], int):
            prompts = wanted.prompt
        service.require_possible(len(prompts) * choices, 0, "n")
        if isinstance(prompts[0], str):
            prompts = service.encode("prompt", prompts)
        else:
            for ids in prompts:
                service.require_tokens(ids, "prompt")
        form = CompletionForm(service.names[0], wanted, service.tokenizer)
        return self._generation(wanted, prompts, form, arrival_s)

    def chat(self, data: dict[str, Any], arrival_s: float) -> Generation:
        wanted, service = of_schema(data, ChatRequest), self._service
        self._require_offered(wanted)
        if wanted.top_logprobs is not None and not wanted.logprobs:
            raise invalid("top_logprobs", "needs 'logprobs' to be true")
        offer, template = wanted.offer, service.template
        ids = self.conversation_ids(
            wanted.messages,
            offer,
            add_generation_prompt=wanted.add_generation_prompt is not False,
            names=wanted.template_names,
        )
        form = ChatForm(service.names[0], wanted, service.tokenizer, template.form)
        place: Place = "none"
        if template.reasons:
            end = b"".join(map(service.tokenizer.token_bytes, ids[-MARK_TOKENS:]))
            place = place_of(end.decode(errors="replace"))
        expected_ids: list[int] = []
        if wanted.prediction is not None:
            expected_ids = self._expected_ids(text_of(wanted.prediction.content))
        return self._generation(
            wanted, [ids], form, arrival_s, offer=offer, place=place, expected_ids=expected_ids
        )

    def note(self, what: str, why: str) -> None:
        """Logs it once."""
        if what not in self._noted and len(self._noted) < MOST_NOTED:
            self._noted.add(what)
            log.warning("%s: %s", what, why)

    def conversation_ids(
        self,
        messages: Sequence[Message],
        offer: Offer | None,
        *,
        add_generation_prompt: bool = True,
        names: Mapping[str, Any] | None = None,
        fit: bool = True,
    ) -> list[int]:
        """As the model's chat template writes it. `names`: that it also gets. `fit`: it must fit
        into the context."""
        service, template = self._service, self._service.template
        if reserved := (names or {}).keys() & template.reserved:
            raise invalid("chat_template_kwargs", f"must not have {show(min(reserved))}")
        conversation = list(for_template(messages))
        tools = [] if offer is None else offer.for_template()
        try:
            with service.turns.of(characters(conversation, tools, names or {})):
                text = template.text(
                    conversation, tools, add_generation_prompt=add_generation_prompt, names=names
                )
                if fit:
                    service.require_fit("messages", text)
                return template.tokens(text)
        except EncodingError as error:
            raise ApiError(400, str(error), param="messages") from error

    def _expected_ids(self, text: str) -> list[int]:
        """Of the answer that a client expects, as far as one can be."""
        tokenizer, context = self._service.tokenizer, self._service.context
        kept = tokenizer.head(text, context)
        try:
            with self._service.turns.of(len(kept)):
                return tokenizer.encode(kept)[:context]
        except EncodingError as error:
            raise invalid("prediction", f"is not valid: {error}") from error

    def _require_offered(self, wanted: CallRequest) -> None:
        service = self._service
        service.require_served(wanted.model)
        for name in wanted.model_extra or {}:
            self.note(f"the field {show(name)}", "unknown on /v1 and ignored")
        if wanted.stream_options is not None and not wanted.stream:
            raise invalid("stream_options", "needs 'stream' to be true")
        if wanted.logit_bias:
            service.require_tokens([int(key) for key in wanted.logit_bias], "logit_bias")
        if wanted.stop_token_ids:
            service.require_tokens(wanted.stop_token_ids, "stop_token_ids")
        service.require_ready()

    def _most_tokens(self, wanted: CallRequest, known: int) -> int:
        """Tokens to generate after a prompt of `known` tokens."""
        context = self._service.context
        room = context - known
        limits = [room, self._service.defaults.max_new_tokens or room]
        if isinstance(wanted, ChatRequest):
            field, most = "messages", wanted.max_completion_tokens or wanted.max_tokens
        else:
            field, most = "prompt", wanted.max_tokens
            limits.append(DEFAULT_COMPLETION_TOKENS)
        if most is None:
            most = max(1, min(limits))
        if most > room:
            raise ApiError(
                400,
                # OpenAI's words, by which LiteLLM and others recognise this error
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{known + most} tokens ({known} in the {field}, {most} in the completion). Please "
                "shorten either.",
                param=field,
                code="context_length_exceeded",
            )
        if (least := wanted.min_tokens or 0) > most:
            raise invalid("min_tokens", f"must be at most 'max_tokens' ({most}), got {least}")
        return most

    def _rules(
        self, wanted: CallRequest, offer: Offer | None, place: Place
    ) -> tuple[Constraint | None, Callable[[], Parser] | None]:
        """What the answer must be behind its reasoning, and what finds reasoning and calls in it. A
        constraint is compiled: from then on it is accepted."""
        found, constraint, of_calls = wanted.constraint(), None, None
        special_ids = self._service.tokenizer.special_ids
        if offer is not None:
            found, of_calls = offer.rules(self._service.template.form, special_ids, found)
        if found is not None:
            field, constraint = found
            if place != "none":
                grammar = grammar_after_reasoning(rule_of(constraint), place, special_ids)
                constraint = Constraint("lark", grammar)
            self._service.require_compiled(constraint, field)
        if place == "none":
            return constraint, of_calls
        kept = self._service.config.reasoning == "text"
        return constraint, lambda: ReasoningParser(place, of_calls and of_calls(), kept=kept)

    def _generation(
        self,
        wanted: CallRequest,
        prompts: Sequence[list[int]],
        form: Form,
        arrival_s: float,
        *,
        offer: Offer | None = None,
        place: Place = "none",
        expected_ids: Sequence[int] = (),
    ) -> Generation:
        service, number_each = self._service, wanted.n or 1
        constraint, parser = self._rules(wanted, offer, place)
        prompt_tokens = sum(map(len, prompts))
        service.require_possible(len(prompts) * number_each, prompt_tokens * number_each, "n")
        echo = isinstance(wanted, CompletionRequest) and bool(wanted.echo)
        end_ids = frozenset(wanted.stop_token_ids or ())
        if constraint is not None or not wanted.ignore_eos:
            end_ids |= service.tokenizer.end_ids  # they alone may follow a constraint's whole text
        of_call = wanted.sampling(
            service.defaults, end_ids, constraint, of_prompt=echo, expected_ids=expected_ids
        )
        stops = Stops([wanted.stop] if isinstance(wanted.stop, str) else wanted.stop or [])
        may_end_early = bool(wanted.stop) or (offer is not None and offer.most_calls is not None)
        updated = Event()
        choices: list[Choice] = []
        for prompt in prompts:
            most = self._most_tokens(wanted, len(prompt))
            group = new_group() if number_each > 1 else 0
            for number in range(number_each):
                known, sampling = prompt, of_call
                if number > 0:
                    sampling = replace(of_call, seed=seed_of_choice(of_call.seed, number))
                if most == 0 and len(prompt) > 1:
                    known, sampling = prompt[:-1], forced(prompt[-1], sampling)
                inference = Inference(
                    known,
                    max(most, 1),
                    sampling,
                    arrival_s,
                    end_ids=end_ids,
                    service_class="deferred" if wanted.service_tier == "flex" else "immediate",
                    group=group,
                    streaming=bool(wanted.stream) or may_end_early,
                    updated=updated,
                )
                choice = Choice(
                    len(choices),
                    inference,
                    service,
                    stops,
                    prompt_tokens=len(prompt),
                    echo=echo,
                    most_tokens=most,
                    stop_included=bool(wanted.include_stop_str_in_output),
                    parser=parser and parser(),
                )
                choices.append(choice)
        inferences = [choice.inference for choice in choices]
        return Generation(wanted, choices, inferences, form, prompt_tokens, may_end_early)
