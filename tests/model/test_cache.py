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
    layer = cache.layer(1)
    layer.keys[2, 3] = 7
    layer.values[2, 3] = 8
    assert layer.keys.shape == (5, 4, 2, 8)
    assert torch.all(cache.data[1, 0, 2, 3] == 7)
    assert torch.all(cache.data[1, 1, 2, 3] == 8)


def test_the_null_block_is_zero():
    cache = KvCache(tiny_shape(), num_blocks=2, block_size=4, dtype="float32", device="cpu")
    assert not cache.data[:, :, 0].any()


def filled(num_blocks: int) -> KvCache:
    """Every number of a block is the block's."""
    cache = KvCache(tiny_shape(), num_blocks, 4, "float32", "cpu")
    cache.data[:] = torch.arange(num_blocks)[None, None, :, None, None, None]
    return cache


def blocks(cache: KvCache) -> list[float]:
    """What each holds, if it holds the same in every layer."""
    flat = cache.data.transpose(0, 2).flatten(1)
    assert bool((flat == flat[:, :1]).all())
    return flat[:, 0].tolist()


def test_blocks_are_all_read_before_any_is_written() -> None:
    cache = filled(5)
    cache.copy_within([(1, 2), (2, 3), (3, 1)])
    assert blocks(cache) == [0, 3, 1, 2, 4]


def test_blocks_go_to_another_memory_and_come_back_however_many() -> None:
    cache, host = filled(200), KvCache(tiny_shape(), 150, 4, "float32", "cpu")
    host.copy_from(cache, [(block, block - 50) for block in range(50, 200)])
    assert blocks(host) == list(range(50, 200))
    cache.copy_from(host, [(block, 199 - block) for block in range(150)])
    assert blocks(cache)[50:] == list(range(199, 49, -1))


def test_groups_of_layers_share_the_memory_of_their_blocks() -> None:
    shape = tiny_shape(layers=3)
    cache = KvCache(shape, 5, 4, "float32", "cpu", groups=[(2,), (0, 1)])
    assert [cache.group_of(layer) for layer in range(3)] == [1, 1, 0]
    assert cache.data.shape[0] == 2, "layers of the largest group"
    cache.layer(2).keys[3] = 7
    assert torch.all(cache.layer(0).keys[3] == 7), "a block is of one group at a time"
    assert not cache.layer(1).keys.any()
