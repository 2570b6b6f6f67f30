"""Weights of a rank are those of published start-up logs, and those worked out by hand."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from servekit.spec.model import GIB, rank_weights
from tests.spec.served import served


def fmt(weights: str, scope: str = "linears") -> dict[str, Any]:
    return {"quantization": {"weights": weights, "scope": scope}}


LOGGED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "codellama/CodeLlama-7b-hf": ("codellama_7b", {}),
    "RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic": ("llama3_70b", {}),
    "redhatai/Llama-3.3-70B-Instruct-quantized.w8a8": ("llama3_70b", {}),
    "RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic": ("qwen2_5_7b", {}),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2_5_7b", {}),
    "google/gemma-2-2b-it": (
        "gemma2_9b",
        {
            "layers": 26,
            "hidden_size": 2304,
            "heads": 8,
            "kv_heads": 4,
            "intermediate_size": 9216,
            "full_attention_layers": (),
        },
    ),
    "google/gemma-3-12b-it": ("gemma3_12b", {}),
    "google/gemma-3-4b-it": ("gemma3_4b", {}),
    "ibm-granite/granite-3.1-8b-instruct": ("granite3_8b", {}),
    "ibm-granite/granite-vision-3.3-2b": (
        "granite3_8b",
        {
            "hidden_size": 2048,
            "head_dim": 64,
            "intermediate_size": 8192,
            "vocab_size": 49156,
            "other_parameters": 440_000_000,
        },
    ),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama3_8b", {}),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (
        "mistral_small_24b",
        {"other_parameters": 439_000_000, "max_position_embeddings": 131072},
    ),
    "RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8": (
        "mistral_small_24b",
        {"other_parameters": 439_000_000, "max_position_embeddings": 131072},
    ),
    "moonshotai/Kimi-Dev-72B": ("qwen2_5_72b", {}),
    "Qwen/Qwen2.5-72B-Instruct": ("qwen2_5_72b", {}),
    "moonshotai/Kimi-VL-A3B-Instruct": (
        "deepseek_v2_lite",
        {"vocab_size": 163840, "intermediate_size": 11264, "other_parameters": 446_000_000},
    ),
    "openai/gpt-oss-20b": ("gpt_oss_20b", {}),
    "Qwen/Qwen3-30B-A3B": ("qwen3_30b_a3b", {}),
}
"""Models of the catalogue, or what of them is different in the model of the log; vision towers by
their published sizes."""
FORMAT = {
    "-": fmt("none"),
    "fp8-dyn": fmt("fp8"),
    "fp8(runtime)": fmt("fp8"),
    "int8-w8a8": fmt("int8"),
    "mxfp4": fmt("mxfp4", "experts"),
}


def logs() -> list[dict[str, str]]:
    lines = (Path(__file__).parent / "kv_logs.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("log", logs(), ids=lambda log: log["id"])
def test_the_weights_are_those_that_were_logged(log: dict[str, str]) -> None:
    option, changes = LOGGED[log["model"]]
    spread = {"tensor": int(log["tp"]), "pipeline": int(log["pp"])}
    config = served(option, "h100", parallelism=spread, **FORMAT[log["quant"]])
    shape = config.model.shape.model_copy(update=changes)
    model = config.model.model_copy(update={"shape": shape})
    config = config.model_copy(update={"model": model})
    planned = rank_weights(config).bytes
    uncertain = shape.other_parameters or log["quant"] == "mxfp4"
    assert planned / GIB == pytest.approx(
        float(log["weights_gib"]), rel=0.02 if uncertain else 0.006
    )


@pytest.mark.parametrize(
    ("option", "tensor", "weights", "gib"),
    [
        ("llama3_8b", 1, "none", 14.99),
        ("llama3_8b", 1, "fp8", 8.49),
        ("llama3_70b", 4, "none", 32.89),
        ("llama3_70b", 8, "none", 16.46),
        ("llama3_70b", 8, "fp8", 8.49),
        ("llama3_70b", 4, "int4_g128", 9.29),
        ("qwen3_30b_a3b", 1, "none", 56.88),
        ("qwen3_30b_a3b", 2, "none", 28.45),
        ("qwen3_30b_a3b", 8, "none", 7.12),
        ("mixtral_8x7b", 2, "none", 43.51),
        ("deepseek_v3", 8, "fp8_block", 79.29),
        ("deepseek_v3", 16, "fp8_block", 40.18),
        ("gemma3_27b", 1, "none", 51.15),
    ],
)
def test_one_rank_holds_what_was_worked_out_by_hand(
    option: str, tensor: int, weights: str, gib: float
) -> None:
    config = served(option, "h200", tensor, **fmt(weights))
    assert rank_weights(config).bytes / GIB == pytest.approx(gib, rel=0.0065)


def test_scales_of_rows_are_on_every_rank_that_shares_a_row() -> None:
    config = served("qwen3_30b_a3b", "l4", 4, **fmt("fp8"))
    # 7.26 with every scale cut too; experts of width 768 have 192 columns left on a rank
    assert rank_weights(config).bytes / GIB == pytest.approx(7.26, rel=0.01)


def test_llama_405b_in_fp8_keeps_its_attention_in_sixteen_bits() -> None:
    config = served("llama3_405b", "h100", 8, **fmt("fp8", "mlps"))
    # MLPs of the first and the last of 126 layers are kept too: 0.6 GiB that are not counted
    assert rank_weights(config).bytes / GIB == pytest.approx(57.752, rel=0.03)


def test_experts_in_mxfp4_are_padded_for_their_kernels() -> None:
    config = served("gpt_oss_20b", "h100", **fmt("mxfp4", "experts"))
    matrices = 24 * 32 * 3 * 2944 * 3072 * 4.25 / 8
    biases = 24 * 32 * (3 * 2880) * 2
    assert rank_weights(config).experts.bytes == pytest.approx(matrices + biases, rel=1e-6)
