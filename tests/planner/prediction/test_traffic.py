"""What one replica gets of the declared workload."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.planner.prediction.traffic import traffic
from tests.conftest import tiny_config
from tests.planner.fakes import fake_layout, fake_traffic


def test_replicas_share_the_requests() -> None:
    config = tiny_config(parallelism={"data": 4}, workload={"request_rate": 2.0})
    assert traffic(config, fake_layout()).rate == 0.5


def test_bursts_dealt_at_random_to_four_are_a_quarter_as_far_from_poisson() -> None:
    config = tiny_config(parallelism={"data": 4}, workload={"arrival_cv": 3.0})
    assert traffic(config, fake_layout()).arrival_cv ** 2 == pytest.approx(1 + 8 / 4)


@pytest.mark.parametrize(("caching", "cached"), [(True, 32), (False, 0)])
def test_a_shared_prefix_is_found_in_full_blocks_if_prefixes_are_cached(
    caching: bool, cached: int
) -> None:
    config = tiny_config(
        kv={"prefix_caching": caching}, workload={"shared_prefix_tokens": 40, "prompt_cv": 0.0}
    )
    load = traffic(config, fake_layout(block_size=16))
    assert load.new_tokens == 100 - cached


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    load = fake_traffic(prompt=100, prefix=100)
    assert load.new_tokens == 1


def test_a_decoding_token_has_the_prompt_and_half_an_answer_behind_it() -> None:
    assert fake_traffic(prompt=100, output=50).context == 125


def test_long_answers_are_met_more_often_than_there_are_of_them() -> None:
    assert fake_traffic(prompt=100, output=50, output_cv=1.0).context == 150


def test_no_prompt_is_longer_than_what_is_served() -> None:
    load = fake_traffic(prompt=100, prompt_cv=2.0, limit=256)
    assert load.prompt_quantile(0.999) == 255


def test_a_workload_longer_than_the_model_is_cut_to_it() -> None:
    config = tiny_config(workload={"prompt_tokens": 5000, "output_tokens": 5000})
    load = traffic(config, fake_layout(num_blocks=1000, max_model_len=256))
    assert (load.prompt, load.output, load.request) == (255, 256, 256)


def test_a_request_is_no_longer_than_the_cache() -> None:
    assert traffic(tiny_config(), fake_layout(num_blocks=2)).limit == 32


def test_tokens_of_a_prompt_stand_halfway_into_it_on_average() -> None:
    assert fake_traffic(prompt=100).depth == 50
    assert fake_traffic(prompt=100, prefix=40).depth == 70


def test_the_spread_of_what_is_computed_is_wider_behind_a_shared_prefix() -> None:
    assert fake_traffic(prompt_cv=0.3, prefix=50).new_cv == pytest.approx(0.6, rel=0.1)


@given(st.floats(1, 1000))
def test_the_longest_of_a_batch_is_no_shorter_than_the_mean(requests: float) -> None:
    load = fake_traffic(output=50, output_cv=0.7)
    assert 50 <= load.longest_of(requests) <= load.longest_of(requests + 1)
