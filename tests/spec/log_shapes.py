"""Models of published start-up logs, as far as the cache and the activations depend on them."""

from typing import Any

from servekit.config.schema import Config
from servekit.config.shape import Shape
from tests.spec import shapes
from tests.spec.shapes import published


def experts(
    count: int, chosen: int, width: int, shared: int = 0, dense: tuple[int, ...] = ()
) -> dict[str, Any]:
    """All layers but `dense` have experts."""
    return {
        "experts": count,
        "experts_per_token": chosen,
        "intermediate_size": width,
        "shared_intermediate_size": shared,
        "shared_gate": False,
        "router": "softmax",
        "renormalise": True,
        "routed_scale": 1.0,
        "router_bias": False,
        "expert_bias": False,
        "dense_layers": dense,
    }


def latent(q_lora_rank: int | None = None) -> dict[str, Any]:
    return {
        "kv_lora_rank": 512,
        "q_lora_rank": q_lora_rank,
        "rope_head_dim": 64,
        "nope_head_dim": 128,
        "indexer": None,
    }


def every(step: int, layers: int) -> tuple[int, ...]:
    """The last of each `step` layers."""
    return tuple(range(step - 1, layers, step))


def gemma3(
    layers: int, hidden: int, heads: tuple[int, int, int], width: int, window: int = 1024
) -> Shape:
    return published(
        layers,
        hidden,
        heads,
        width,
        262208,
        sliding_window=window,
        full_attention_layers=every(6, layers),
    )


GEMMA3_4B = gemma3(34, 2560, (8, 4, 256), 10240)
GEMMA3_12B = gemma3(48, 3840, (16, 8, 256), 15360)
GEMMA3_27B = gemma3(62, 5376, (32, 16, 128), 21504)


def gemma2(layers: int, hidden: int, heads: tuple[int, int, int], width: int) -> Shape:
    full = every(2, layers)
    more: dict[str, Any] = {"sliding_window": 4096, "full_attention_layers": full}
    return published(layers, hidden, heads, width, 256000, **more)


GEMMA2_2B = gemma2(26, 2304, (8, 4, 256), 9216)
GEMMA2_9B = gemma2(42, 3584, (16, 8, 256), 14336)
GEMMA2_27B = gemma2(46, 4608, (32, 16, 128), 36864)


def gpt_oss(layers: int, count: int) -> Shape:
    return published(
        layers,
        2880,
        (64, 8, 64),
        2880,
        201088,
        sliding_window=128,
        full_attention_layers=every(2, layers),
        moe=experts(count, 4, 2880) | {"expert_bias": True},
    )


GPT_OSS_20B = gpt_oss(24, 32)
GPT_OSS_120B = gpt_oss(36, 128)
QWEN3_30B_A3B = published(48, 2048, (32, 4, 128), 6144, 151936, moe=experts(128, 8, 768))
QWEN25_72B = published(80, 8192, (64, 8, 128), 29568, 152064, qkv_bias=True)
MISTRAL_24B = published(40, 5120, (32, 8, 128), 32768, 131072)
DEEPSEEK_V3 = published(
    61,
    7168,
    (128, 128, 192),
    18432,
    129280,
    value_head_dim=128,
    mla=latent(1536),
    moe=experts(256, 8, 2048, shared=2048, dense=(0, 1, 2)),
    mtp_layers=1,
)
KIMI_VL = published(
    27,
    2048,
    (16, 16, 192),
    11264,
    163840,
    value_head_dim=128,
    mla=latent(),
    moe=experts(64, 6, 1408, shared=2816, dense=(0,)),
)

LOGGED = {
    "codellama/CodeLlama-7b-hf": published(32, 4096, (32, 32, 128), 11008, 32016),
    "RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic": shapes.LLAMA_70B,
    "redhatai/Llama-3.3-70B-Instruct-quantized.w8a8": shapes.LLAMA_70B,
    "RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic": shapes.QWEN25_7B,
    "Qwen/Qwen2.5-7B-Instruct": shapes.QWEN25_7B,
    "google/gemma-2-2b-it": GEMMA2_2B,
    "google/gemma-3-12b-it": GEMMA3_12B,
    "google/gemma-3-4b-it": GEMMA3_4B,
    "ibm-granite/granite-3.1-8b-instruct": published(40, 4096, (32, 8, 128), 12800, 49155),
    "ibm-granite/granite-vision-3.3-2b": published(40, 2048, (32, 8, 64), 8192, 49156),
    "meta-llama/Llama-3.1-8B-Instruct": shapes.LLAMA_8B,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": MISTRAL_24B,
    "RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8": MISTRAL_24B,
    "moonshotai/Kimi-Dev-72B": QWEN25_72B,
    "Qwen/Qwen2.5-72B-Instruct": QWEN25_72B,
    "moonshotai/Kimi-VL-A3B-Instruct": KIMI_VL,
    "openai/gpt-oss-20b": GPT_OSS_20B,
    "Qwen/Qwen3-30B-A3B": QWEN3_30B_A3B,
}


def on_card(shape: Shape, card: str, kv_gib: float, **groups: dict[str, Any]) -> Config:
    """A cache of so many GiB, layers in groups, steps as large as the card's default."""
    large = card in ("h100", "h200")
    limits = {"max_num_seqs": 1024 if large else 256, "max_num_batched_tokens": 8192}
    if not large:
        limits["max_num_batched_tokens"] = 2048
    kv = {"memory_fraction": None, "memory_gib": kv_gib, "hybrid": True}
    return shapes.deployment(
        shape,
        card,
        **{
            **groups,
            "scheduler": {**limits, **groups.get("scheduler", {})},
            "kv": {**kv, **groups.get("kv", {})},
        },
    )
