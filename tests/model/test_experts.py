"""A mixture of experts: what it is called in files, what it holds, and what it weighs."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from servekit.config.hf import read_config, read_shape
from servekit.config.shape import Shape
from servekit.engine.local import LocalEngine
from servekit.errors import NotBuilt, WeightsError
from servekit.kernels.moe import moe_reference
from servekit.kernels.moe_routing import Routes
from servekit.model.checkpoint import facts_of
from servekit.model.decoder import Decoder
from servekit.model.weights import load_decoder
from servekit.spec.activations import expert_bytes_per_token
from servekit.spec.model import rank_weights
from tests.conftest import TINY_MOE, tiny_config, tiny_shape
from tests.engine.tiny import greedy
from tests.model.families import WITH_EXPERTS, save


def load(folder: Path, shape: Shape, dtype: str = "float32") -> Decoder:
    return load_decoder(folder, shape, dtype, "cpu", lambda done, total: None)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_the_shape_of_a_family_is_that_of_its_config(name: str, tmp_path: Path) -> None:
    _, shape = save(name, tmp_path)
    read = Shape.model_validate(read_shape(read_config(str(tmp_path))))
    assert facts_of(read) == facts_of(shape)
    assert read.planned_only == ()


@pytest.mark.parametrize("name", WITH_EXPERTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_counts_the_bytes_that_are_held(name: str, dtype: str, tmp_path: Path) -> None:
    _, shape = save(name, tmp_path)
    config = tiny_config(model={"shape": shape, "dtype": dtype})
    assert load(tmp_path, shape, dtype).weight_bytes == rank_weights(config).bytes


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("mixtral", "block_sparse_moe.experts.5.w2.weight"),
        ("qwen2-moe", "mlp.experts.5.down_proj.weight"),
        ("dots1", "mlp.shared_experts.down_proj.weight"),
        ("hy-v3", "mlp.shared_mlp.down_proj.weight"),
    ],
)
def test_files_name_experts_one_by_one_in_their_family_s_way(
    name: str, stored: str, tmp_path: Path
) -> None:
    save(name, tmp_path)
    assert f"model.layers.2.{stored}" in load_file(tmp_path / "model.safetensors")


def test_an_expert_that_is_not_there_is_named(tmp_path: Path) -> None:
    _, shape = save("qwen2-moe", tmp_path)
    assert shape.moe is not None
    more = shape.model_copy(update={"moe": shape.moe.model_copy(update={"experts": 7})})
    with pytest.raises(WeightsError, match=r"moe\.experts is 7 in the configuration and 6 in the"):
        load(tmp_path, more)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"missing layers\.0\.mlp\.experts\.6\.gate_proj"):
        load(tmp_path, more)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_an_engine_says_what_transformers_does(name: str, tmp_path: Path) -> None:
    """Prompts of several lengths together, in chunks."""
    model, shape = save(name, tmp_path)
    config = tiny_config(
        model={"shape": shape, "max_model_len": 64}, scheduler={"max_num_batched_tokens": 16}
    )
    engine = LocalEngine(config, load(tmp_path, shape))
    prompts = [[5, 17, 250], list(range(100, 123)), [7]]
    said = [result.tokens for result in engine.generate(prompts, [greedy(8)] * 3)]
    for prompt, tokens in zip(prompts, said, strict=True):
        truth = model.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
        assert tokens == truth[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"router": "other"}, "experts chosen in another way"),
        ({"router_bias": True}, "a router with a bias"),
        ({"expert_bias": True}, "experts with biases"),
    ],
)
def test_experts_that_are_not_computed_are_refused(change: dict[str, Any], phrase: str) -> None:
    with pytest.raises(NotBuilt, match=phrase):
        Decoder(tiny_shape(moe={**TINY_MOE, **change}), "float32", "cpu")


def test_experts_chosen_by_groups_are_planned_only(tmp_path: Path) -> None:
    save("dots1", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    read = read_shape({**config, "n_group": 2})
    assert read["planned_only"] == ["experts chosen among the best groups of them"]


class Held(TorchDispatchMode):
    """Bytes of tensors that are made and let go under it, now and at most."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._meet(tensor.untyped_storage())
        return out

    def _meet(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize(("hidden", "width", "chosen"), [(64, 32, 2), (64, 256, 2), (128, 32, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_planned_memory_of_experts_is_that_of_the_worst_routing(
    hidden: int, width: int, chosen: int, dtype: torch.dtype
) -> None:
    """All tokens go to the same experts; on a CPU."""
    tokens, experts = 512, 8
    numbers = {"experts": experts, "experts_per_token": chosen, "intermediate_size": width}
    shape = tiny_shape(hidden_size=hidden, moe={**TINY_MOE, **numbers})
    name = str(dtype).removeprefix("torch.")
    planned = tokens * expert_bytes_per_token(tiny_config(model={"shape": shape, "dtype": name}))
    x = torch.randn(tokens, hidden, dtype=dtype)
    gate_up = torch.randn(experts, 2 * width, hidden, dtype=dtype)
    down = torch.randn(experts, hidden, width, dtype=dtype)
    routes = Routes(torch.rand(tokens, chosen), torch.arange(chosen).repeat(tokens, 1).int())
    held = Held(x, gate_up, down, *routes)
    with held:
        out = moe_reference(x, gate_up, down, routes, "silu")
    assert held.now == out.nbytes
    assert 0.95 * planned <= held.most <= planned
