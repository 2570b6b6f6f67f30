"""Published parameter counts of the catalogue, and what a token passes through."""

import pytest

from servekit.config.folders import builtin_folder, options
from servekit.spec.model import parameters, stage_layers
from tests.conftest import tiny_shape
from tests.spec import shapes
from tests.spec.served import shape_of

PUBLISHED = {
    "codellama_7b": 6_738_546_688,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3": 671_026_419_200,
    "deepseek_v3_2": 671_877_944_064,
    "gemma2_27b": 27_227_128_320,
    "gemma2_9b": 9_241_705_984,
    "gemma3_12b": 12_187_325_040,
    "gemma3_270m": 268_098_176,
    "gemma3_27b": 27_432_406_640,
    "gemma3_4b": 4_300_079_472,
    "gemma4_31b": 31_273_086_512,
    "gpt_oss_120b": 116_829_156_672,
    "gpt_oss_20b": 20_914_757_184,
    "granite3_8b": 8_170_848_256,
    "kimi_k2": 1_026_408_232_448,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "llama3_405b": 405_853_388_800,
    "llama3_70b": 70_553_706_496,
    "llama3_8b": 8_030_261_248,
    "llama4_scout": 108_641_793_536,
    "mistral_7b": 7_248_023_552,
    "mistral_small_24b": 23_572_403_200,
    "mixtral_8x7b": 46_702_792_704,
    "phi4": 14_659_507_200,
    "qwen2_5_32b": 32_763_876_352,
    "qwen2_5_72b": 72_706_203_648,
    "qwen2_5_7b": 7_615_616_512,
    "qwen3_0_6b": 596_049_920,
    "qwen3_14b": 14_768_307_200,
    "qwen3_235b_a22b": 235_093_634_560,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_32b": 32_762_123_264,
    "qwen3_8b": 8_190_735_360,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "smollm2_135m": 134_515_008,
    "smollm2_1_7b": 1_711_376_384,
    "smollm2_360m": 361_821_120,
}
CATALOGUE = [name for name in options("model", [builtin_folder()]) if name != "from_config"]


@pytest.mark.parametrize("option", CATALOGUE)
def test_every_model_of_the_catalogue_has_its_published_parameters(option: str) -> None:
    assert parameters(shape_of(option)).total == PUBLISHED[option]


@pytest.mark.parametrize(
    ("option", "billions"),
    [
        ("deepseek_v3", 36.6),
        ("qwen3_30b_a3b", 3.04),
        ("mixtral_8x7b", 12.75),
        ("gpt_oss_20b", 3.61),
        ("gpt_oss_120b", 5.13),
        ("kimi_k2", 31.7),
    ],
)
def test_a_token_passes_through_the_experts_it_is_sent_to(option: str, billions: float) -> None:
    assert parameters(shape_of(option)).active / 1e9 == pytest.approx(billions, rel=2e-3)


def test_a_dense_model_is_active_but_for_its_embedding() -> None:
    counts = parameters(shapes.LLAMA_8B)
    assert counts.active == counts.total - counts.embedding


def test_a_tied_head_is_computed_and_counted_once() -> None:
    counts = parameters(tiny_shape(tie_word_embeddings=True))
    assert counts.head == 0
    assert counts.active == counts.total


def test_layers_that_guess_further_tokens_are_outside_the_published_count() -> None:
    counts = parameters(shape_of("deepseek_v3"))
    assert counts.mtp / 1e9 == pytest.approx(11.5, rel=0.01)
    own_tables = counts.embedding + counts.head
    assert (counts.total + counts.mtp + own_tables) / 1e9 == pytest.approx(684.5, rel=1e-4)


def test_a_layer_that_reads_another_cache_has_no_keys_and_values() -> None:
    plain, sharing = tiny_shape(qk_norm=True), tiny_shape(qk_norm=True, shared_kv_layers=(1, 2))
    assert parameters(plain).attention - parameters(sharing).attention == 2 * 2 * 32 * 2 * 8
    assert parameters(plain).norms - parameters(sharing).norms == 2 * 8


def test_a_layer_with_one_half_has_one_norm() -> None:
    shape = tiny_shape(mlp_only_layers=(0,), mixer_only_layers=(1,))
    assert parameters(shape).norms == (1 + 1 + 2 + 1) * 32


@pytest.mark.parametrize(
    ("layers", "pipeline", "sizes"),
    [
        (32, 1, [32]),
        (32, 4, [8, 8, 8, 8]),
        (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        (5, 2, [3, 2]),
    ],
)
def test_layers_left_over_go_before_the_last_stage(
    layers: int, pipeline: int, sizes: list[int]
) -> None:
    stages = stage_layers(layers, pipeline)
    assert [len(stage) for stage in stages] == sizes
    assert [layer for stage in stages for layer in stage] == [*range(layers)]
