"""`/metrics` under vLLM's names: Gateway API's inference extension, llm-d, rules of autoscalers and
vLLM's dashboards look for them.

A name is a second one of a family of `api/metrics.py`, with the label `model_name`. Types and
meanings are vLLM's; docs/metrics.md says what is counted otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

# the extension's protocol asks for the first three; older dashboards read the names behind
NAMES = {
    "tgi_queue_size": ("num_requests_waiting",),
    "tgi_batch_current_size": ("num_requests_running",),
    "eb_kv_used_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "eb_kv_blocks_info": ("cache_config_info",),
    "eb_prompt_tokens": ("prompt_tokens",),
    "eb_generated_tokens": ("generation_tokens",),
    "eb_preemptions": ("num_preemptions",),
    "eb_prefix_cache_looked_up_tokens": ("prefix_cache_queries",),
    "eb_prefix_cache_hit_tokens": ("prefix_cache_hits",),
    "eb_requests": ("request_success",),
    "eb_time_to_first_token_seconds": ("time_to_first_token_seconds",),
    "eb_inter_token_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tgi_request_duration": ("e2e_request_latency_seconds",),
    "tgi_request_queue_duration": ("request_queue_time_seconds",),
    "tgi_request_inference_duration": ("request_inference_time_seconds",),
    "eb_request_prefill_seconds": ("request_prefill_time_seconds",),
    "eb_request_decode_seconds": ("request_decode_time_seconds",),
    "tgi_request_input_length": ("request_prompt_tokens",),
    "tgi_request_generated_tokens": ("request_generation_tokens",),
    "tgi_request_max_new_tokens": ("request_params_max_tokens",),
}
REASON = "finished_reason"
REASONS = ("length", "stop")  # of a success


def under_vllms_names(families: Iterable[Metric], model: str) -> Iterator[Metric]:
    for family in families:
        for name in NAMES.get(family.name, ()):
            other = Metric(f"vllm:{name}", family.documentation, family.type)
            for sample in family.samples:
                labels = {"model_name": model, **sample.labels}
                if (end := labels.pop("end", None)) is not None:
                    if end not in REASONS:
                        continue
                    labels[REASON] = end
                suffix = sample.name.removeprefix(family.name)
                other.add_sample(other.name + suffix, labels, sample.value)
            yield other
