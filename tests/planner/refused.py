"""Words of deployments that are refused, each in its own way."""

from functools import cache

from servekit.config.compose import load
from servekit.planner.plan import plan

CPU = "hardware=cpu hardware.threads=8 hardware.bandwidth_gb_s=40 hardware.bf16_tflops=1"

UNFIT = (
    "model=llama3_70b hardware=h100",
    "model=llama3_8b hardware=l4",
    "model=llama3_8b hardware=l4 model.dtype=float32 kv.dtype=float32",
    "model=llama3_8b hardware=t4",
    "model=llama3_70b hardware=t4 model.dtype=float16",
    "model=llama3_405b hardware=l4",
    "model=deepseek_v3 hardware=h100",
    "model=kimi_k2 hardware=l40s",
    "model=mixtral_8x7b hardware=a100_80g",
    "model=qwen3_235b_a22b hardware=h100 parallelism=tp4",
    "model=qwen3_30b_a3b hardware=rtx4090",
    "model=gpt_oss_120b hardware=l40s",
    "model=gemma3_27b hardware=h100 kv.memory_fraction=0.5",
    "model=gemma2_27b hardware=l40s kv.hybrid=false",
    "model=qwen2_5_72b hardware=a100_80g parallelism=tp2 kv.memory_gib=30",
    "model=llama3_8b hardware=mi300x kv.memory_gib=180",
    "model=llama4_scout hardware=h100",
    "+recipe=chat_llama8b kv.capacity_tokens=1000000",
    "+recipe=chat_llama8b kv.memory_fraction=0.01",
    "+recipe=rag_qwen3_8b hardware=l4 model.max_model_len=40960",
    "model=llama3_8b hardware=l4 scheduler.max_num_seqs=2048 "
    "scheduler.max_num_batched_tokens=65536",
    f"+recipe=chat_smollm2 {CPU} hardware.memory_gib=1",
    f"+recipe=chat_smollm2 {CPU} hardware.memory_gib=8 kv.memory_gib=0.0001",
    f"model=llama3_8b {CPU} hardware.memory_gib=16 kv.memory_gib=4",
    f"model=mixtral_8x7b {CPU} hardware.memory_gib=64",
)
"""What does not fit: dense and with experts, on GPUs and on a CPU."""

SLOW = (
    ("model=llama3_8b hardware=l4 model.max_model_len=8192", "slo.tpot_ms", 0.55),
    ("model=llama3_8b hardware=h100", "slo.tpot_ms", 0.7),
    ("model=llama3_70b hardware=h100 parallelism=tp4", "slo.tpot_ms", 0.7),
    ("model=llama3_8b hardware=h100 slo=chat", "workload.request_rate", 3.0),
    ("model=qwen3_30b_a3b hardware=h100", "slo.tpot_ms", 0.6),
    ("model=llama3_8b hardware=a100_80g model.max_model_len=8192", "slo.ttft_ms", 0.6),
)
"""What fits and does not do what its users are promised: a key, and its value as a share of what is
predicted."""


@cache
def too_much(words: str, key: str, share: float) -> str:
    """The words with a target, or with traffic, in proportion to what they give without."""
    made = plan(load(words.split()).config, advise=False).prediction
    assert made is not None
    given = {
        "slo.ttft_ms": made.at_slo.ttft_ms,
        "slo.tpot_ms": made.at_slo.tpot_ms,
        "workload.request_rate": made.capacity_per_s,
    }[key]
    assert given is not None
    return f"{words} {key}={share * given:.4g}"


REFUSED = (*UNFIT, *(too_much(*case) for case in SLOW))
