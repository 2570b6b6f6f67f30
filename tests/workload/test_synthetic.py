"""The traces that come with servekit have the moments that were published of real ones."""

from collections.abc import Sequence

import pytest

from servekit.config.compose import load
from servekit.workload.moments import moments
from servekit.workload.source import source
from servekit.workload.synthetic import SYNTHETIC, synthetic
from tests.conftest import tiny_config

PUBLISHED = {
    # requests, seconds, arrival cv; mean and p50, p90, p99 of prompts and of answers; blocks seen
    "azure_conv": (19_366, 3502, 1.09, (1155, 1020, 2735, 4142), (211, 129, 424, 601), 0),
    "azure_code": (8_819, 3432, 13.2, (2048, 1469, 5194, 7436), (28, 13, 55, 252), 0),
    "mooncake_conv": (12_031, 3600, 1.0, (12_035, 6909, None, 85_401), (343,), 0.366),
    "mooncake_toolagent": (23_608, 3600, 1.0, (8596,), (182,), 0.59),
}


def mean_and_quantiles(values: Sequence[int]) -> list[float]:
    ordered = sorted(values)
    at = [ordered[int(len(ordered) * share)] for share in (0.5, 0.9, 0.99)]
    return [sum(values) / len(values), *at]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_trace_has_the_published_moments(name: str) -> None:
    requests, seconds, arrival_cv, prompts, outputs, _ = PUBLISHED[name]
    trace = synthetic(name)
    found = moments(tiny_config(workload={"trace": name}).workload)
    assert len(trace) == requests
    assert trace.at[-1] == pytest.approx(seconds)
    assert found.arrival_cv == pytest.approx(arrival_cv, rel=0.04)
    for lengths, published in ((trace.prompt_tokens, prompts), (trace.output_tokens, outputs)):
        for value, expected in zip(mean_and_quantiles(lengths), published, strict=False):
            assert expected is None or value == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_many_blocks_are_seen_again_as_were_published(name: str) -> None:
    trace, share = synthetic(name), PUBLISHED[name][-1]
    seen: set[int] = set()
    hits = total = 0
    for blocks in trace.blocks:
        known = next((n for n, block in enumerate(blocks) if block not in seen), len(blocks))
        hits += known
        total += len(blocks)
        assert known == sum(block in seen for block in blocks), "a hit behind a miss"
        seen.update(blocks)
    assert hits / max(1, total) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_trace_is_in_order_and_is_the_same_whenever_it_is_made(name: str) -> None:
    trace = synthetic(name)
    again = synthetic.__wrapped__(name)
    assert again == trace
    assert [*trace.at] == sorted(trace.at)
    assert min(trace.prompt_tokens) >= 1
    assert min(trace.output_tokens) >= 1
    for prompt, blocks in zip(trace.prompt_tokens, trace.blocks, strict=False):
        assert len(blocks) == -(-prompt // trace.block_size)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_workload_of_that_name_replays_it_and_declares_its_moments(name: str) -> None:
    work = load([f"workload={name}"]).config.workload
    assert work.trace == name
    requests = source(work, max_model_len=131_072, seed=1).first(10**6)
    assert len(requests) == len(synthetic(name))
    found = moments(work)
    for declared, measured in (
        (work.request_rate, found.rate),
        (work.arrival_cv, found.arrival_cv),
        (work.prompt_tokens, found.prompt),
        (work.prompt_cv, found.prompt_cv),
        (work.output_tokens, found.output),
        (work.output_cv, found.output_cv),
    ):
        assert declared == pytest.approx(measured, rel=0.04)
