"""The responses of TGI's API: generated text with details, errors, times in headers.

This module neither waits nor routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from api.http.errors import ApiError
from api.openapi import documented
from api.tgi import shapes
from api.tgi.schemas import Parameters
from api.tgi.shapes import Details, Generated, PromptToken, StreamToken, TgiError, TopToken
from api.tgi.steps import Steps, TokenStep
from engine.inference import Inference
from text.tokenizer import Tokenizer

STATUS = {400: 422, 500: 424}  # of an error, where TGI's is another one than ours
PREFIXED = {
    424: ("generation", "Request failed during generation"),
    429: ("overloaded", "Model is overloaded"),
}
UNPREFIXED = {
    401: "unauthorized",
    403: "forbidden",
    408: "timeout",
    499: "dropped",
    503: "unavailable",
    504: "timeout",
}

tgi_errors = partial(documented, TgiError, 424)


def shape(error: ApiError) -> TgiError:
    """TGI's error object; its clients distinguish errors by `error_type`."""
    status = STATUS.get(error.status, error.status)
    if (kind := UNPREFIXED.get(status)) is not None:
        return {"error": error.message, "error_type": kind}
    kind, prefix = PREFIXED.get(status, ("validation", "Input validation error"))
    return {"error": f"{prefix}: {error.message}", "error_type": kind}


def generated(
    prompt: str, answers: Sequence[Steps], asked: Parameters, tokenizer: Tokenizer
) -> Generated:
    """A GenerateResponse: the best of the generations, and with details the others, too."""
    told: Generated = {"generated_text": _full(prompt, answers[0], asked)}
    if asked.details or asked.decoder_input_details:
        best, *others = answers
        details = cast(Details, _sequence(best, asked, tokenizer))
        if others:
            details["best_of_sequences"] = [
                {
                    "generated_text": _full(prompt, other, asked),
                    **_sequence(other, asked, tokenizer),
                }
                for other in others
            ]
        told["details"] = details
    return told


def _full(prompt: str, answer: Steps, asked: Parameters) -> str:
    return prompt + answer.text if asked.return_full_text else answer.text


def _sequence(answer: Steps, asked: Parameters, tokenizer: Tokenizer) -> shapes.Sequence:
    inference, steps = answer.inference, answer.all
    finish = steps[-1].finish
    assert finish is not None  # it has ended
    told: shapes.Sequence = {
        "finish_reason": finish,
        "generated_tokens": len(steps),
        "seed": _seed(inference),
        "prefill": _prefill(inference, tokenizer) if asked.decoder_input_details else [],
        "tokens": [_token(step, inference, tokenizer) for step in steps],
    }
    if asked.top_n_tokens:
        told["top_tokens"] = [_top_tokens(step, inference, tokenizer) for step in steps]
    return told


def stream_token(
    step: TokenStep, answer: Steps, prompt: str, asked: Parameters, tokenizer: Tokenizer
) -> StreamToken:
    """The event of the newest step."""
    inference = answer.inference
    told: StreamToken = {
        "index": len(answer.all),
        "token": _token(step, inference, tokenizer),
        "generated_text": None,
        "details": None,
    }
    if asked.top_n_tokens:
        told["top_tokens"] = _top_tokens(step, inference, tokenizer)
    if step.finish is not None:
        told["generated_text"] = _full(prompt, answer, asked)
        if asked.details:
            told["details"] = {
                "finish_reason": step.finish,
                "generated_tokens": len(answer.all),
                "seed": _seed(inference),
                "input_length": inference.prompt_tokens,
            }
    return told


def _seed(inference: Inference) -> int | None:
    return inference.sampling.seed if inference.sampling.temperature > 0 else None


def _token(step: TokenStep, inference: Inference, tokenizer: Tokenizer) -> TopToken:
    return {
        "id": step.token,
        "text": step.text + (_text(step.token, tokenizer) if step.special else ""),
        "logprob": inference.logprobs[step.index].logprob,
        "special": step.special,
    }


def _top_tokens(step: TokenStep, inference: Inference, tokenizer: Tokenizer) -> list[TopToken]:
    return [
        {
            "id": token,
            "text": _text(token, tokenizer),
            "logprob": logprob,
            "special": token in tokenizer.end_ids,
        }
        for token, logprob in inference.logprobs[step.index].top
    ]


def _prefill(inference: Inference, tokenizer: Tokenizer) -> list[PromptToken]:
    """The prompt's tokens; nothing comes before the first, so it has no logprob."""
    ids = inference.ids[: inference.prompt_tokens]
    logprobs = [None, *(found.logprob for found in inference.prompt_logprobs)]
    return [
        {"id": token, "text": _text(token, tokenizer), "logprob": logprob}
        for token, logprob in zip(ids, logprobs, strict=True)
    ]


def _text(token: int, tokenizer: Tokenizer) -> str:
    return tokenizer.token_bytes(token).decode(errors="replace")


def timing(
    answers: Sequence[Steps], arrival_s: float, submitted_s: float, end_s: float
) -> dict[str, str]:
    """Of the generation that was admitted last; one request has only one, unless its inputs are
    a list."""
    admitted_s = max(answer.inference.admitted_s or submitted_s for answer in answers)
    inference_s = end_s - admitted_s
    most = max(len(answer.all) for answer in answers)
    spans_s = {
        "x-total-time": end_s - arrival_s,
        "x-validation-time": submitted_s - arrival_s,
        "x-queue-time": admitted_s - submitted_s,
        "x-inference-time": inference_s,
        "x-time-per-token": inference_s / most,
    }
    drafts = {
        "x-accepted-drafts": sum(answer.inference.accepted_drafts for answer in answers),
        "x-rejected-drafts": sum(answer.inference.rejected_drafts for answer in answers),
    }
    return {
        "x-compute-time": f"{end_s - arrival_s:.6f}",
        **{name: str(max(0, int(span_s * 1000))) for name, span_s in spans_s.items()},
        "x-prompt-tokens": str(sum(answer.inference.prompt_tokens for answer in answers)),
        "x-generated-tokens": str(sum(len(answer.all) for answer in answers)),
        **{name: str(count) for name, count in drafts.items() if any(drafts.values())},
    }
