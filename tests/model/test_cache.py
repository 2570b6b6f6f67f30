import torch

from servekit.model.cache import KvCache
from tests.conftest import tiny_shape


def test_bytes_are_those_of_keys_and_values_of_every_layer():
    cache = KvCache(tiny_shape(), num_blocks=5, block_size=4, dtype="bfloat16", device="cpu")
    layers, sides, kv_heads, head_dim = 3, 2, 2, 8
    assert cache.bytes == layers * sides * 5 * 4 * kv_heads * head_dim * 2


def test_requests_may_own_all_but_the_null_block():
    cache = KvCache(tiny_shape(), num_blocks=5, block_size=4, dtype="bfloat16", device="cpu")
    assert 5 * cache.bytes_to_own == 4 * cache.bytes


def test_a_layer_is_a_view_of_its_keys_and_values():
    cache = KvCache(tiny_shape(), num_blocks=5, block_size=4, dtype="float32", device="cpu")
    keys, values = cache.layer(1)
    keys[2, 3] = 7
    values[2, 3] = 8
    assert keys.shape == (5, 4, 2, 8)
    assert torch.all(cache.data[1, 0, 2, 3] == 7)
    assert torch.all(cache.data[1, 1, 2, 3] == 8)


def test_the_null_block_is_zero():
    cache = KvCache(tiny_shape(), num_blocks=2, block_size=4, dtype="float32", device="cpu")
    assert not cache.data[:, :, 0].any()
