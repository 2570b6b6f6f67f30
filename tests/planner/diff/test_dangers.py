"""What a reviewer should not miss is said in a sentence, and nothing is said without need."""

import pytest

from servekit.planner.diff.dangers import notes
from tests.planner.diff_pairs import BASE, sides

PLANS = "this release plans and does not run"
TLS = f"{BASE} server.tls_cert=/c server.tls_key=/k"
SLO = f"{BASE} slo.ttft_ms=500 slo.tpot_ms=50 slo.goodput_per_s=1"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (BASE, "model.max_model_len=4096", "requests of more than 4096 tokens"),
        (BASE, "kv.dtype=fp8", "kv.dtype bfloat16 -> fp8: keys and values are stored with fewer"),
        (BASE, "quantization.weights=fp8", "quantization.weights none -> fp8: weights are held"),
        (BASE, "model.source=hf:other/weights", "other weights are served"),
        (BASE, "model.name=other", "clients that ask for the model by its old name get 404"),
        (BASE, "model.dtype=float16", "the model is computed in float16"),
        (BASE, "kv.prefix_caching=false", "computed anew"),
        (BASE, "scheduler.policy=static", "the whole batch"),
        (BASE, "scheduler.max_num_waiting=1", "more requests get 429"),
        (BASE, "workload.request_rate=0.5", "planned for different traffic"),
        (BASE, "hardware.usd_per_hour=1", "the same device at another price"),
        (BASE, "server.drain_s=0", "cut when it is stopped"),
        (BASE, "server.port=9001", "clients and probes must follow"),
        (BASE, "telemetry.exporter=none", "dashboards and alerts no longer see it"),
        (f"{BASE} server=local", "server.host=0.0.0.0", "listens beyond this machine"),
        (f"{BASE} server.api_keys=env:K", "server.api_keys=null", "nobody is asked for a key"),
        (f"{BASE} server=local", "server.api_keys=/keys", "clients without a key get 401"),
        (f"{BASE} server.api_keys=/a", "server.api_keys=/b", "only in the old list get 401"),
        (f"{BASE} server=local", "server.allow_anyone=true", "whoever reaches its address"),
        (BASE, "server.read_timeout_s=5", "come more slowly get 408"),
        (BASE, "server.hang_s=5", "given up sooner"),
        (BASE, "server.keepalive_s=90", "proxies may close streams that wait"),
        (BASE, "server.unknown_fields=refuse", "unknown fields get 400"),
        (f"{BASE} telemetry=otlp", "telemetry.otlp_endpoint=null", "no longer sent there"),
        (f"{BASE} telemetry.vllm_names=true", "telemetry.vllm_names=false", "finds nothing"),
        (BASE, "telemetry.log_prompts=true", "prompts of users are written to the log"),
        (f"{BASE} telemetry.ledger=/l", "telemetry.ledger=null", "no longer written down"),
        (TLS, "server.tls_cert=null server.tls_key=null", "travel unencrypted"),
        (BASE, "server.tls_cert=/c server.tls_key=/k", "must follow to https"),
        (SLO, "slo.ttft_ms=900", "slo.ttft_ms 500.0 -> 900.0: the promise to users is loosened"),
        (SLO, "slo.tpot_ms=null", "slo.tpot_ms 50.0 -> null: the promise to users is loosened"),
        (SLO, "slo.goodput_per_s=0.5", "the promise to users is loosened"),
        (SLO, "slo.percentile=50", "the promise holds for fewer requests"),
        (SLO, "slo.enforce=warn", "a plan that misses its targets is launched"),
    ],
)
def test_a_dangerous_change_is_said(before: str, after: str, said: str) -> None:
    (note,) = (
        note for note in notes(*sides(before, f"{before} {after}")) if not note.startswith(PLANS)
    )
    assert said in note


@pytest.mark.parametrize("word", ["kv.dtype=int4", "quantization=fp8", "parallelism=tp2"])
def test_a_change_that_would_not_be_launched_is_said_first(word: str) -> None:
    first, *_ = notes(*sides(BASE, f"{BASE} {word}"))
    assert first.startswith(PLANS)


def test_what_was_only_planned_before_is_not_said_again() -> None:
    before = f"{BASE} kv.dtype=int4"
    assert not [n for n in notes(*sides(before, f"{before} server.port=9001")) if PLANS in n]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BASE, "model.max_model_len=32768"),
        (f"{BASE} kv.dtype=fp8", "kv.dtype=bfloat16"),
        (SLO, "slo.ttft_ms=100"),
        (f"{BASE} kv.prefix_caching=false", "kv.prefix_caching=true"),
        (BASE, "scheduler.max_num_waiting=5000000"),
        (BASE, "hardware=l4"),
    ],
)
def test_the_harmless_direction_is_not(before: str, after: str) -> None:
    assert list(notes(*sides(before, f"{before} {after}"))) == []
