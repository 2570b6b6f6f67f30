"""Hugging Face folders: what is loaded, what is let pass, what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from servekit.config.shape import DefaultRope, Shape
from servekit.errors import WeightsError
from servekit.model.decoder import Decoder
from servekit.model.weights import load_decoder
from tests.conftest import tiny_shape
from tests.model.families import save
from tests.model.steps import Paged

TOKENS = [5, 17, 299, 0, 44]


def load(folder: Path, shape: Shape, dtype: str = "float32") -> Decoder:
    return load_decoder(folder, shape, dtype, "cpu", lambda done, total: None)


def logits(folder: Path, shape: Shape) -> torch.Tensor:
    return Paged(load(folder, shape)).step(a=TOKENS)["a"]


def truth(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0]


def edit(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(change(tensors) or tensors, file)


def test_sharded_files_are_read_as_one(tmp_path):
    model, shape = save("llama", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    torch.testing.assert_close(logits(tmp_path, shape), truth(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_are_converted_from_the_dtype_they_are_saved_in(tmp_path, dtype):
    model, shape = save("llama", tmp_path)
    edit(tmp_path, lambda tensors: {name: t.to(dtype) for name, t in tensors.items()})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    torch.testing.assert_close(logits(tmp_path, shape), truth(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_multimodal_checkpoint_gives_its_language_model(tmp_path, prefix):
    model, shape = save("gemma3", tmp_path)

    def rename(tensors):
        renamed = {name.replace("model.", prefix, 1): t for name, t in tensors.items()}
        vision = "vision_tower." if prefix.startswith("language") else "model.vision_tower."
        return renamed | {f"{vision}patch.weight": torch.zeros(2, 2)}

    edit(tmp_path, rename)
    torch.testing.assert_close(logits(tmp_path, shape), truth(model), rtol=1e-5, atol=1e-5)


def test_tables_and_a_tied_head_that_are_saved_too_are_let_pass(tmp_path):
    model, shape = save("llama-tied-biased", tmp_path)

    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit(tmp_path, add)
    torch.testing.assert_close(logits(tmp_path, shape), truth(model), rtol=1e-5, atol=1e-5)


def test_a_head_of_its_own_beside_a_tied_shape_is_an_error(tmp_path):
    _, shape = save("llama-tied-biased", tmp_path)

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    edit(tmp_path, add)
    with pytest.raises(WeightsError, match=r"lm_head.weight of .* is not the embedding"):
        load(tmp_path, shape)


def test_the_whole_file_wins_over_another_layout_of_the_same_weights(tmp_path):
    model, shape = save("llama", tmp_path)
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "consolidated.safetensors")
    torch.testing.assert_close(logits(tmp_path, shape), truth(model), rtol=1e-5, atol=1e-5)


def test_progress_ends_with_all_bytes_of_the_file(tmp_path):
    _, shape = save("llama", tmp_path)
    seen = []
    load_decoder(tmp_path, shape, "float32", "cpu", lambda done, total: seen.append((done, total)))
    parameters = sum(t.numel() for t in load_file(tmp_path / "model.safetensors").values())
    assert seen[0] == (0, parameters * 4)
    assert seen[-1] == (parameters * 4, parameters * 4)
    assert seen == sorted(seen)


def test_missing_tensors_are_counted_and_the_first_are_named(tmp_path):
    _, shape = save("llama", tmp_path)
    gone = "model.layers.1."
    edit(tmp_path, lambda tensors: {k: t for k, t in tensors.items() if not k.startswith(gone)})
    expected = r"9 tensors missing layers\.1\.self_attn\.q_proj\.weight, .* and 4 more"
    with pytest.raises(WeightsError, match=expected):
        load(tmp_path, shape)


def test_a_tensor_of_another_model_is_named(tmp_path):
    _, shape = save("llama", tmp_path)
    edit(tmp_path, lambda tensors: tensors | {"model.layers.7.mlp.up_proj.weight": torch.ones(1)})
    with pytest.raises(
        WeightsError, match=r"tensor unknown model\.layers\.7\.mlp\.up_proj\.weight"
    ):
        load(tmp_path, shape)


def test_a_mis_shaped_tensor_is_named_with_both_shapes(tmp_path):
    _, shape = save("llama", tmp_path)
    edit(tmp_path, lambda tensors: tensors | {"model.norm.weight": torch.ones(31)})
    with pytest.raises(WeightsError, match=r"model\.norm\.weight \[31\] .* says \[32\]"):
        load(tmp_path, shape)


def test_an_unsupported_dtype_is_named_with_those_supported(tmp_path):
    _, shape = save("llama", tmp_path)
    eights = torch.ones(32).to(torch.float8_e4m3fn)
    edit(tmp_path, lambda tensors: tensors | {"model.norm.weight": eights})
    with pytest.raises(WeightsError, match=r"\(F32, F16, BF16.*model\.norm\.weight \(F8_E4M3\)"):
        load(tmp_path, shape)


def test_a_truncated_file_names_the_tensors_it_does_not_reach(tmp_path):
    _, shape = save("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsError, match=r"model\.safetensors is truncated: .* model\.norm"):
        load(tmp_path, shape)


def test_a_header_that_contradicts_itself_is_refused(tmp_path):
    _, shape = save("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    header = b'"model.norm.weight":{"dtype":"F32","shape":[32]'
    assert header in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(header, header.replace(b"32]", b"31]")))
    with pytest.raises(WeightsError, match=r"128 bytes for model\.norm\.weight, \[31\] in F32"):
        load(tmp_path, shape)


def test_a_file_cut_inside_its_header_is_refused(tmp_path):
    _, shape = save("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(WeightsError, match=r"\(500 bytes\) is not a whole safetensors file"):
        load(tmp_path, shape)


def test_a_shard_that_is_not_there_is_named(tmp_path):
    _, shape = save("llama", tmp_path, max_shard_size="20KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(WeightsError, match=f"{gone.name} are not there"):
        load(tmp_path, shape)


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(WeightsError, match=r"no \*.safetensors file; there is pytorch_model.bin"):
        load(tmp_path, tiny_shape())


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    _, shape = save("llama", tmp_path)
    with pytest.raises(WeightsError, match="is not there; weights are a"):
        load(tmp_path / "absent.gguf", shape)


def test_every_contradiction_of_config_json_is_listed(tmp_path):
    _, shape = save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rms_norm_eps"] = 1e-6
    (tmp_path / "config.json").write_text(json.dumps(config))
    wrong = shape.model_copy(update={"rope": DefaultRope(kind="default", theta=5e5)})
    with pytest.raises(WeightsError) as error:
        load(tmp_path, wrong)
    assert "rope.theta is 500000 in the configuration and 10000 in the file" in error.value.message
    assert "rms_norm_eps is 1e-05 in the configuration and 1e-06 in" in error.value.message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "zamba2"}, "'zamba2' has attention and a state in the same layer"),
        ({"model_type": "newborn"}, "'newborn' is read as a plain decoder"),
        ({"embedding_multiplier": 12.0}, "embeddings that are multiplied"),
        ({"quantization_config": {"quant_method": "awq"}}, "weights quantized to int4_g128"),
    ],
)
def test_a_folder_of_a_model_that_computes_otherwise_is_refused(tmp_path, changes, says):
    _, shape = save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(WeightsError, match=says):
        load(tmp_path, shape)


PEAK = """
import sys
from pathlib import Path
from servekit.model.weights import load_decoder
from tests.model.test_weights import big_shape

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

before = status("VmRSS")
decoder = load_decoder(Path(sys.argv[1]), big_shape(), "bfloat16", "cpu", lambda *_: None)
print((status("VmHWM") - before) / decoder.weight_bytes)
"""


def big_shape() -> Shape:
    return tiny_shape(
        layers=2,
        hidden_size=1024,
        heads=16,
        kv_heads=4,
        head_dim=64,
        intermediate_size=4096,
        vocab_size=70_000,
        tie_word_embeddings=True,
    )


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's memory counts")
def test_loading_200_mb_never_takes_a_third_more(tmp_path):
    places = Decoder(big_shape(), "bfloat16", "cpu").places()
    tensors = {name: torch.zeros(view.shape, dtype=torch.float32) for name, view in places.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert 0.95 < float(run.stdout) < 1.3
