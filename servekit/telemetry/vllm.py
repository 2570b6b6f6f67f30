"""The names of vLLM that routers, autoscalers and dashboards ask for, with our numbers.

Where ours are told apart by a label that vLLM does not have, they are summed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.registry import Collector, CollectorRegistry


@dataclass(frozen=True, slots=True)
class Alias:
    """`labels` are vLLM's names of labels of ours that are kept."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


CACHE_LABELS = {
    "block_size": "block_size",
    "num_gpu_blocks": "num_blocks",
    "cache_dtype": "dtype",
    "enable_prefix_caching": "prefix_caching",
}

ALIASES: dict[str, tuple[Alias, ...]] = {
    "servekit_requests_running": (Alias("vllm:num_requests_running"),),
    "servekit_requests_waiting": (Alias("vllm:num_requests_waiting"),),
    "servekit_kv_usage_ratio": (
        Alias("vllm:kv_cache_usage_perc"),
        Alias("vllm:gpu_cache_usage_perc"),
    ),
    "servekit_kv_info": (Alias("vllm:cache_config_info", CACHE_LABELS),),
    "servekit_preemptions": (Alias("vllm:num_preemptions"),),
    "servekit_prompt_tokens": (Alias("vllm:prompt_tokens"),),
    "servekit_prompt_cached_tokens": (Alias("vllm:prompt_tokens_cached"),),
    "servekit_generation_tokens": (Alias("vllm:generation_tokens"),),
    "servekit_prefix_query_tokens": (Alias("vllm:prefix_cache_queries"),),
    "servekit_prefix_hit_tokens": (Alias("vllm:prefix_cache_hits"),),
    "servekit_requests_finished": (Alias("vllm:request_success", {"finished_reason": "reason"}),),
    "gen_ai_server_time_to_first_token_seconds": (Alias("vllm:time_to_first_token_seconds"),),
    "gen_ai_server_time_per_output_token_seconds": (
        Alias("vllm:request_time_per_output_token_seconds"),
    ),
    "gen_ai_server_request_duration_seconds": (Alias("vllm:e2e_request_latency_seconds"),),
    "servekit_inter_token_latency_seconds": (
        Alias("vllm:inter_token_latency_seconds"),
        Alias("vllm:time_per_output_token_seconds"),
    ),
    "servekit_request_queue_time_seconds": (Alias("vllm:request_queue_time_seconds"),),
    "servekit_request_prefill_time_seconds": (Alias("vllm:request_prefill_time_seconds"),),
    "servekit_request_decode_time_seconds": (Alias("vllm:request_decode_time_seconds"),),
    "servekit_request_prompt_tokens": (Alias("vllm:request_prompt_tokens"),),
    "servekit_request_generation_tokens": (Alias("vllm:request_generation_tokens"),),
    "servekit_request_preemptions": (Alias("vllm:request_num_preemptions"),),
}
"""By our name in what Prometheus scrapes, counters without `_total`."""

ENGINE = "0"
"""vLLM numbers the copies of the model in one server; here there is one."""


class WithVllmNames(Collector):
    """What `registry` has, read once, and beside it the same under the names of vLLM."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry = registry
        self._labels = {"model_name": model, "engine": ENGINE}

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            yield family
            for alias in ALIASES.get(family.name, ()):
                yield renamed(family, alias, self._labels)


def renamed(family: Metric, alias: Alias, labels: Mapping[str, str]) -> Metric:
    """`labels` come first; of the family's own the alias keeps some, and the bounds of buckets."""
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for sample in family.samples:
        kept = {name: sample.labels[ours] for name, ours in alias.labels.items()}
        if "le" in sample.labels:
            kept["le"] = sample.labels["le"]
        suffix = sample.name.removeprefix(family.name)
        sums[suffix, tuple({**labels, **kept}.items())] += sample.value
    made = Metric(alias.name, family.documentation, family.type)
    for (suffix, pairs), value in sums.items():
        made.add_sample(alias.name + suffix, dict(pairs), value)
    return made
