"""GGUF files: every kind of tensor, every architecture, and what is refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from servekit.config.shape import Llama3Rope
from servekit.errors import WeightsError
from servekit.model import checkpoint
from servekit.model.checkpoint import BLOCKS, Stored
from servekit.model.decoder import Decoder
from servekit.model.weights import copy_into, load_decoder
from tests.conftest import tiny_shape
from tests.model.families import LLAMA3_ROPE, SIZES, save
from tests.model.gguf_files import rounded, write_gguf
from tests.model.steps import Paged

TOKENS = [5, 17, 299, 0, 44, 44, 3, 260, 101]
WIDE = {"intermediate_size": 64}  # rows of every matrix hold whole blocks of 32


def load(path: Path, **changes) -> Decoder:
    return load_decoder(path, tiny_shape(**changes), "float32", "cpu", lambda done, total: None)


def llama(**changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **WIDE, **changes})).eval()


def logits_agree(decoder: Decoder, model) -> None:
    with torch.no_grad():
        truth = model(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(Paged(decoder).step(a=TOKENS)["a"], truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_quantised_file_computes_what_its_dequantised_weights_do(tmp_path, kind):
    model = llama()
    path = write_gguf(tmp_path / "model.gguf", model, kind)
    logits_agree(load(path, **WIDE), rounded(model, kind))


@pytest.mark.parametrize(
    "name",
    [
        "llama-tied-biased",
        "qwen2",
        "qwen3",
        "mistral",
        "gemma2",
        "gemma3",
        "mixtral",
        "qwen2-moe",
        "qwen3-moe",
    ],
)
def test_a_file_of_each_architecture_computes_what_transformers_does(tmp_path, name):
    model, shape = save(name, tmp_path)
    path = write_gguf(tmp_path / "model.gguf", model)
    decoder = load_decoder(path, shape, "float32", "cpu", lambda done, total: None)
    logits_agree(decoder, model)


def random_blocks(kind: str, rows: int, width: int) -> np.ndarray:
    """Any bytes are a valid block, but for the float16 scales in it."""
    values, size = BLOCKS[kind]
    raw = np.random.default_rng(0).integers(0, 256, (rows, width // values, size), np.uint8)
    scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    for offset in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]:
        raw[..., offset : offset + 2] = scale
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_decoded_piece_by_piece(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(checkpoint, "CHUNK_VALUES", 3 * 512)
    raw = random_blocks(kind, rows=10, width=512)
    file = tmp_path / "raw"
    file.write_bytes(b"before" + raw.tobytes())
    place = torch.empty(10, 512)
    stored = Stored(name="x", canonical="x", size=(10, 512), kind=kind, file=file, offset=6)
    copy_into(place, stored)
    whole = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert torch.equal(place, torch.from_numpy(whole))
    assert place.std() > 0


def test_pieces_hold_whole_heads_where_rows_are_interleaved(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK_VALUES", 1)
    model = llama()
    logits_agree(load(write_gguf(tmp_path / "model.gguf", model), **WIDE), model)


def test_missing_tensors_are_named_as_the_file_would(tmp_path):
    def drop(tensors):
        del tensors["blk.1.attn_k.weight"], tensors["output.weight"]

    path = write_gguf(tmp_path / "model.gguf", llama(), change=drop)
    with pytest.raises(WeightsError, match=r"2 tensors missing .*output.weight") as error:
        load(path, **WIDE)
    assert "blk.1.attn_k.weight" in error.value.message


def test_a_truncated_file_names_the_tensors_it_does_not_reach(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", llama())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 9000)
    with pytest.raises(WeightsError, match=r"truncated: \d+ bytes .* of output\.weight;"):
        load(path, **WIDE)


def test_an_unsupported_kind_is_named_with_those_supported(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q2_K
    writer.add_tensor("token_embd.weight", np.zeros((300, 84), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"Q2_K \(token_embd.weight\); supported are .*Q4_K"):
        load(tmp_path / "model.gguf")


def test_an_unknown_architecture_is_named_with_those_supported(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"'mamba'; supported are llama, qwen2"):
        load(tmp_path / "model.gguf")


def test_a_file_that_is_not_gguf_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(WeightsError, match="not a whole GGUF file"):
        load(path)


def test_every_contradiction_of_the_metadata_is_listed(tmp_path):
    path = write_gguf(
        tmp_path / "model.gguf", llama(), rope__freq_base=5e5, attention__head_count_kv=4
    )
    with pytest.raises(WeightsError) as error:
        load(path, **WIDE)
    assert "rope.theta is 10000 in the configuration and 500000 in the file" in error.value.message
    assert "kv_heads is 2 in the configuration and 4 in the file" in error.value.message


def test_a_shorter_context_than_the_file_allows_is_no_contradiction(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", llama(), context_length=100_000)
    load(path, **WIDE)


def test_a_file_of_another_family_is_refused_though_its_tensors_fit(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", llama())
    with pytest.raises(WeightsError, match=r"activation is gelu_tanh .* silu in the file"):
        load(path, **WIDE, activation="gelu_tanh")


def rope_factors(tensors: dict[str, np.ndarray]) -> None:
    tensors["rope_freqs.weight"] = np.array([1.0, 5.7578125, 8.0, 8.0], np.float32)


def test_rope_factors_that_are_not_those_configured_are_refused(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", llama(), change=rope_factors)
    with pytest.raises(WeightsError, match=r"rope_freqs.weight .* up to 8, .* default rope"):
        load(path, **WIDE)


def test_rope_factors_that_follow_from_the_shape_are_accepted(tmp_path):
    rope = Llama3Rope(kind="llama3", theta=1e4, **LLAMA3_ROPE)

    def add(tensors):
        # 32 positions make 32 / 2 pi turns at frequency 1, a tenth, a hundredth, a thousandth
        turns = 32 / (2 * np.pi) * np.array([1.0, 0.1, 0.01, 0.001])
        blend = np.clip((turns - 1) / 3, 0, 1)
        tensors["rope_freqs.weight"] = (1 / ((1 - blend) / 8 + blend)).astype(np.float32)

    load(write_gguf(tmp_path / "model.gguf", llama(), change=add), **WIDE, rope=rope)
