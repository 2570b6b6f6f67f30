"""The planned weights are, to the byte, those that the decoder holds."""

from typing import Any

import pytest

from servekit.model.decoder import Decoder
from servekit.spec.model import rank_weights
from tests.conftest import tiny_config, tiny_shape


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="llama"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"qkv_bias": True, "output_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"qk_norm": True}, id="qwen3"),
        pytest.param({"qk_norm": True, "norm_unit_offset": True, "post_norms": True}, id="gemma3"),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_plan_counts_every_byte_that_the_decoder_holds(
    changes: dict[str, Any], dtype: str
) -> None:
    shape = tiny_shape(**changes)
    config = tiny_config(model={"shape": shape, "dtype": dtype})
    assert rank_weights(config).bytes == Decoder(shape, dtype, "cpu").weight_bytes
