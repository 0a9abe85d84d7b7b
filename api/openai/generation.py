"""A call of OpenAI's API from its fields to its response, whether it arrived on a connection or as
a line of a batch."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event

from api.http.errors import ApiError, show
from api.limits import FRESH_SEED_BITS
from api.openai.answers import Answer, Form, usage
from api.openai.chat_form import ChatForm, FunctionForm
from api.openai.choices import Choice, Segment
from api.openai.completion_form import CompletionForm
from api.openai.fields.constraints import constraint_of
from api.openai.fields.schemas import DEFAULT_COMPLETION_TOKENS, ChatRequest, CompletionRequest
from api.openai.fields.shared import GenerationRequest, seed_of_choice
from api.openai.offer import CallRules, Offer, rule_of
from api.openai.served import ServedModel
from api.openai.shapes import CompletionTokensDetails, Usage
from api.service import Service
from engine.inference import Inference, new_group
from requested import Constraint, Sampling
from text.reasoning import Place, ReasoningParser, grammar_after_reasoning
from text.stops import Stops
from text.tools.parsing import Parser

log = logging.getLogger(__name__)

MOST_NOTED = 100  # fields and tools without effect that are logged
FORCE = 1e9  # more than any logit


def forced(token: int, sampling: Sampling) -> Sampling:
    """Generates `token`, whatever its logit. So a prompt is scored with its last token
    in the place of the one that every request generates, and may fill the whole context."""
    bias = ((token, FORCE),)
    return replace(
        sampling, temperature=0.0, repetition_penalty=1.0, logit_bias=bias, constraint=None
    )


@dataclass(frozen=True, slots=True)
class Generation:
    """A valid call: its requests to the queue, and the format of its response. `may_end_early`:
    what was generated is read while it arrives, as it may end its requests."""

    wanted: GenerationRequest
    choices: Sequence[Choice]
    form: Form
    prompt_tokens: int
    may_end_early: bool = False

    @property
    def inferences(self) -> list[Inference]:
        return [choice.inference for choice in self.choices]

    def usage(self) -> Usage:
        of_each_prompt = self.choices[:: self.wanted.choices]
        cached_tokens = sum(choice.inference.cached_tokens or 0 for choice in of_each_prompt)
        count = usage(self.prompt_tokens, cached_tokens, self.choices)
        details: CompletionTokensDetails = {}
        if (reasoning := sum(choice.reasoning_tokens for choice in self.choices)) > 0:
            details["reasoning_tokens"] = reasoning
        if self.wanted.expected is not None:
            details |= {
                "accepted_prediction_tokens": sum(one.accepted_drafts for one in self.inferences),
                "rejected_prediction_tokens": sum(one.rejected_drafts for one in self.inferences),
            }
        if details:
            count["completion_tokens_details"] = details
        return count

    def whole(self, parts: Sequence[Segment]) -> Answer:
        return self.form.whole(parts, len(self.choices), self.usage())


class Generations:
    """Makes generations. Raises ApiError for an invalid call."""

    def __init__(self, service: Service, served: ServedModel) -> None:
        self.served = served
        self.defaults = service.defaults
        self._service = service
        self._noted: set[str] = set()

    def completion(self, wanted: CompletionRequest, arrival_s: float) -> Generation:
        self._require_offered(wanted)
        if wanted.best_of not in (None, wanted.choices):
            raise ApiError(
                400,
                f"field 'best_of' must be the same as 'n' ({wanted.choices}), got {wanted.best_of}",
                param="best_of",
            )
        self._service.require_possible(len(wanted.prompts) * wanted.choices, 0, "n")
        prompts = self.served.prompts_ids(wanted.prompts)
        form = CompletionForm(self.served.name, wanted, self._service.tokenizer)
        return self._generation(wanted, prompts, wanted.max_tokens, form, arrival_s)

    def chat(self, wanted: ChatRequest, arrival_s: float) -> Generation:
        self._require_offered(wanted)
        if wanted.top_logprobs is not None and not wanted.logprobs:
            raise ApiError(
                400, "field 'top_logprobs' needs 'logprobs' to be true", param="top_logprobs"
            )
        served, offer = self.served, wanted.offer
        ids = served.conversation_ids(
            wanted.messages,
            offer,
            add_generation_prompt=wanted.add_generation_prompt is not False,
            names=wanted.template_names,
        )
        make = FunctionForm if wanted.of_functions else ChatForm
        form = make(served.name, wanted, self._service.tokenizer, served.call_form)
        most = wanted.max_completion_tokens or wanted.max_tokens
        return self._generation(wanted, [ids], most, form, arrival_s, offer, served.reasoning(ids))

    def note(self, what: str, why: str) -> None:
        """Logs it once."""
        if what not in self._noted and len(self._noted) < MOST_NOTED:
            self._noted.add(what)
            log.warning("%s: %s", what, why)

    def _require_offered(self, wanted: GenerationRequest) -> None:
        self.served.require_served(wanted.model)
        for name in wanted.model_extra or {}:
            self.note(f"the field {show(name)}", "unknown on /v1 and ignored")
        if wanted.stream_options is not None and not wanted.stream:
            raise ApiError(
                400, "field 'stream_options' needs 'stream' to be true", param="stream_options"
            )
        self.served.require_tokens([int(key) for key in wanted.logit_bias or {}], "logit_bias")
        self.served.require_tokens(wanted.stop_token_ids or [], "stop_token_ids")
        self._service.require_ready()

    def _most_tokens(
        self, wanted: GenerationRequest, form: Form, known: int, asked: int | None
    ) -> int:
        """Tokens to generate after a prompt of `known` tokens."""
        context = self.served.context
        room = context - known
        most = asked
        if most is None:
            limits = [room, self.defaults.max_new_tokens or room]
            limits += [DEFAULT_COMPLETION_TOKENS] if form.is_completion else []
            most = max(1, min(limits))
        if most > room:
            raise ApiError(
                400,
                # OpenAI's words, by which LiteLLM and others recognise this error
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{known + most} tokens ({known} in the {form.prompt_field}, {most} in the "
                "completion). Please shorten either.",
                param=form.prompt_field,
                code="context_length_exceeded",
            )
        if (least := wanted.min_tokens or 0) > most:
            raise ApiError(
                400,
                f"'min_tokens' must be at most 'max_tokens' ({most}), not {show(least)}",
                param="min_tokens",
            )
        return most

    def _rules(
        self, wanted: GenerationRequest, offer: Offer | None, place: Place
    ) -> tuple[Constraint | None, CallRules | None]:
        """What the answer must be behind its reasoning, and how calls are found in it. A constraint
        is compiled: from then on it is accepted."""
        found, calls = constraint_of(wanted), None
        special_ids = self._service.tokenizer.special_ids
        if offer is not None:
            calls = offer.rules(self.served.call_form, special_ids, found)
            found = calls.constraint
        if found is None:
            return None, calls
        field, constraint = found
        if place != "none":
            grammar = grammar_after_reasoning(rule_of(constraint), place, special_ids)
            constraint = Constraint("lark", grammar)
        self._service.require_compiled(constraint, field)
        return constraint, calls

    def _parser(self, calls: CallRules | None, place: Place) -> Parser | None:
        parser = None if calls is None else calls.parser()
        if place == "none":
            return parser
        return ReasoningParser(place, parser, kept=self._service.config.reasoning == "text")

    def _generation(
        self,
        wanted: GenerationRequest,
        prompts: Sequence[list[int]],
        asked: int | None,
        form: Form,
        arrival_s: float,
        offer: Offer | None = None,
        place: Place = "none",
    ) -> Generation:
        service = self._service
        constraint, calls = self._rules(wanted, offer, place)
        prompt_tokens = sum(map(len, prompts))
        service.require_possible(len(prompts) * wanted.choices, prompt_tokens * wanted.choices, "n")
        expected_ids = self.served.expected_ids(wanted.expected)
        echo = isinstance(wanted, CompletionRequest) and bool(wanted.echo)
        end_ids = frozenset[int]() if wanted.ignore_eos else service.tokenizer.end_ids
        if constraint is not None:  # they alone may follow where its text is complete
            end_ids = service.tokenizer.end_ids
        end_ids |= frozenset(wanted.stop_token_ids or ())
        seed = secrets.randbits(FRESH_SEED_BITS) if wanted.seed is None else wanted.seed
        may_end_early = bool(wanted.stops) or (offer is not None and offer.most_calls is not None)
        updated, stops = Event(), Stops(wanted.stops)
        choices: list[Choice] = []
        for prompt in prompts:
            most = self._most_tokens(wanted, form, len(prompt), asked)
            group = new_group() if wanted.choices > 1 else 0
            for number in range(wanted.choices):
                sampling = wanted.sampling(
                    seed_of_choice(seed, number),
                    end_ids,
                    self.defaults,
                    of_prompt=echo,
                    constraint=constraint,
                    expected_ids=expected_ids,
                )
                known = prompt
                if most == 0 and len(prompt) > 1:
                    known, sampling = prompt[:-1], forced(prompt[-1], sampling)
                inference = Inference(
                    known,
                    max(most, 1),
                    sampling,
                    arrival_s,
                    end_ids=end_ids,
                    service_class=wanted.service_class,
                    group=group,
                    streaming=bool(wanted.stream) or may_end_early,
                )
                inference.updated = updated
                choices.append(
                    Choice(
                        len(choices),
                        inference,
                        service,
                        stops,
                        prompt_tokens=len(prompt),
                        echo=echo,
                        most_tokens=most,
                        stop_included=bool(wanted.include_stop_str_in_output),
                        parser=self._parser(calls, place),
                    )
                )
        return Generation(wanted, choices, form, prompt_tokens, may_end_early)
