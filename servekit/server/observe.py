"""What a deployment measures, beside what was planned of it."""

from servekit.config.schema import Config
from servekit.engine.messages import Ready
from servekit.planner.plan import Plan
from servekit.telemetry.exporters import NoExporter
from servekit.telemetry.metrics import Metrics, Snapshot
from servekit.telemetry.service_level import Targets, promised


def metrics_of(config: Config, plan: Plan, exporter: NoExporter, snapshot: Snapshot) -> Metrics:
    """They know the plan before anything is loaded."""
    metrics = Metrics(exporter.meter, config.model.name, snapshot, promised(config.slo))
    metrics.sizes(
        "planned", weights_bytes=plan.ledger.weights.bytes, kv_tokens=plan.kv.capacity_tokens
    )
    if plan.prediction is not None:
        late = plan.prediction.at_slo
        metrics.plan(Targets.of_ms(late.ttft_ms, late.tpot_ms, config.slo.percentile))
    return metrics


def loaded(metrics: Metrics, config: Config, info: Ready) -> None:
    """The engine has measured what was planned."""
    kv = config.kv
    metrics.sizes("measured", weights_bytes=info.weights_bytes, kv_tokens=info.capacity_tokens)
    metrics.cache(
        block_size=kv.block_size,
        tokens=info.capacity_tokens,
        dtype=kv.dtype,
        prefix_caching=kv.prefix_caching,
    )
