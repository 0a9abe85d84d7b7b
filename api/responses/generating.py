"""A response as a chat: its request, and what is shown of the request in the response."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from api.defaults import NAMES as OF_SAMPLING
from api.defaults import SamplingDefaults
from api.http.errors import ApiError
from api.openai.fields.schemas import GenerationRequest
from api.openai.generation import Generation, Generations
from api.responses.items import Json, Message
from api.responses.output import GeneratedResponse, TextConfig
from api.responses.schemas import AllowedFunctions, OtherTool, ResponseRequest, ToolChoice, name_in

SHARED = set(GenerationRequest.model_fields) - {"n", "stream_options", "response_format"}
SHOWN = {  # of the request in the response
    "background",
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "service_tier",
    "tool_choice",
    "top_logprobs",
    "truncation",
    "user",
}
NAMES = {  # of fields of a chat -> what clients call them here
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
}
TOO_LONG = "context_length_exceeded"


def generation_of(
    wanted: ResponseRequest,
    messages: Sequence[Message],
    generations: Generations,
    arrival_s: float,
) -> Generation:
    """Raises ApiError."""
    fields = _chat(wanted)
    first: list[Message] = []
    if wanted.instructions is not None:
        first = [{"role": "system", "content": wanted.instructions}]

    def attempt(kept: Sequence[Message]) -> Generation:
        return generations.chat({**fields, "messages": [*first, *kept]}, arrival_s)

    try:
        if wanted.truncation == "auto":
            return truncated(messages, attempt)
        return attempt(messages)
    except ApiError as error:
        raise _renamed(error) from None


def truncated(
    messages: Sequence[Message], attempt: Callable[[Sequence[Message]], Generation]
) -> Generation:
    """Leaves out as few of the first messages as the context demands, but never the last one. The
    output of a tool goes with its call."""
    starts = [i for i, message in enumerate(messages) if message["role"] != "tool"]
    if len(starts) < 2:
        return attempt(messages)

    def fit(first: int) -> Generation | None:
        try:
            return attempt(messages[starts[first] :])
        except ApiError as error:
            if error.code == TOO_LONG:
                return None
            raise

    if (whole := fit(0)) is not None:
        return whole
    candidates = range(1, len(starts) - 1)
    least = bisect_left(candidates, True, key=lambda first: fit(first) is not None)
    return attempt(messages[starts[least + 1] :])


def _chat(wanted: ResponseRequest) -> Json:
    """The fields of a chat but for its messages."""
    fields = wanted.model_dump(include=SHARED, exclude_unset=True, by_alias=True)
    if wanted.max_output_tokens is not None:
        fields["max_completion_tokens"] = wanted.max_output_tokens
    if wanted.alternatives is not None:
        fields |= {"logprobs": True, "top_logprobs": wanted.alternatives}
    form = text_format(wanted)
    if form["type"] == "json_schema":
        schema = {key: value for key, value in form.items() if key != "type"}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form["type"] != "text":
        fields["response_format"] = form
    if wanted.reasoning is not None:
        fields["reasoning_effort"] = wanted.reasoning.effort
    if wanted.text is not None:
        fields["verbosity"] = wanted.text.verbosity
    if wanted.chat_template_kwargs is not None:
        fields["chat_template_kwargs"] = wanted.chat_template_kwargs
    if wanted.tools:
        fields["tools"] = [
            {
                "type": "function",
                "function": {
                    **tool.model_dump(exclude_none=True, exclude={"type"}),
                    "name": name_in(namespace, tool.name),
                },
            }
            for namespace, tool in wanted.functions
        ]
    if wanted.tool_choice is not None:
        fields["tool_choice"] = _of_chat(wanted.tool_choice)
    if wanted.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = wanted.parallel_tool_calls
    return fields


def _of_chat(choice: str | ToolChoice | AllowedFunctions) -> str | Json:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, ToolChoice):
        return {"type": "function", "function": {"name": name_in(choice.namespace, choice.name)}}
    allowed = {"mode": choice.mode, "tools": list(map(_of_chat, choice.tools))}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def text_format(wanted: ResponseRequest) -> Json:
    if wanted.text is None or wanted.text.format is None:
        return {"type": "text"}
    return wanted.text.format.model_dump()


def _renamed(error: ApiError) -> ApiError:
    if (name := NAMES.get(error.param or "")) is None:
        return error
    message = error.message.replace(f"'{error.param}'", f"'{name}'")
    return ApiError(error.status, message, error.headers, param=name, code=error.code)


def begun(
    wanted: ResponseRequest,
    response_id: str,
    model: str,
    defaults: SamplingDefaults,
    *,
    stores: bool,
) -> GeneratedResponse:
    """The response before anything is generated."""
    shown = wanted.model_dump(include=SHOWN, exclude_none=True)
    if "service_tier" in shown:
        shown["service_tier"] = "flex" if wanted.service_tier == "flex" else "default"
    if wanted.reasoning is not None:
        shown["reasoning"] = wanted.reasoning.model_dump()
    text = TextConfig(format=text_format(wanted))
    if wanted.text is not None and wanted.text.verbosity is not None:
        text.verbosity = wanted.text.verbosity
    chosen = defaults.model_copy(update=wanted.model_dump(include=OF_SAMPLING, exclude_none=True))
    return GeneratedResponse(
        id=response_id,
        created_at=int(time.time()),
        status="queued" if wanted.background else "in_progress",
        model=model,
        store=stores,
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        text=text,
        tools=[tool.model_dump() for tool in wanted.tools or () if not isinstance(tool, OtherTool)],
        **shown,
    )
