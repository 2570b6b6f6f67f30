"""Changes that a reviewer should not miss, whatever the numbers say: a table of rules."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from servekit.config.origins import leaves
from servekit.planner.capability import cannot_run
from servekit.planner.diff.sides import Side

BITS = {
    "float32": 32.0,
    "bfloat16": 16.0,
    "float16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "nvfp4": 4.5,
    "int4": 4.0,
}
"""Of a number in the KV cache."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")

Test = Callable[[Any, Any], bool]


def _differs(before: Any, after: Any) -> bool:
    return bool(before != after)


def _lower(before: Any, after: Any) -> bool:
    return bool(after < before)


def _higher(before: Any, after: Any) -> bool:
    return bool(after > before)


def _higher_or_gone(before: Any, after: Any) -> bool:
    """A ceiling is loosened."""
    return before is not None and (after is None or after > before)


def _lower_or_gone(before: Any, after: Any) -> bool:
    """A floor is loosened."""
    return before is not None and (after is None or after < before)


def _becomes(value: Any) -> Test:
    return lambda before, after: before != after and after == value


def _replaced(before: Any, after: Any) -> bool:
    return before is not None and after is not None and before != after


def _gone(before: Any, after: Any) -> bool:
    return before is not None and after is None


def _comes(before: Any, after: Any) -> bool:
    return before is None and after is not None


def _opened(before: Any, after: Any) -> bool:
    return before in LOOPBACK and after not in LOOPBACK


@dataclass(frozen=True, slots=True)
class Danger:
    """`key` is a leaf, or a group with a dot behind it: one sentence for all of it.

    `unless` is a key whose change says it all.
    """

    key: str
    test: Test
    sentence: str
    unless: str | None = None


OTHER_ANSWERS = "answers will differ: check their quality"

RULES = (
    Danger("model.source", _differs, f"other weights are served, {OTHER_ANSWERS}"),
    Danger("model.name", _differs, "clients that ask for the model by its old name get 404"),
    Danger("model.dtype", _differs, f"the model is computed in {{after}}, {OTHER_ANSWERS}"),
    Danger("model.chat_template", _differs, f"prompts are written differently, {OTHER_ANSWERS}"),
    Danger(
        "model.max_model_len",
        _lower,
        "requests of more than {after} tokens, accepted until now, are refused",
    ),
    Danger("quantization.weights", _differs, f"weights are held otherwise, {OTHER_ANSWERS}"),
    Danger(
        "kv.dtype",
        lambda before, after: BITS[after] < BITS[before],
        f"keys and values are stored with fewer bits, {OTHER_ANSWERS}",
    ),
    Danger(
        "kv.prefix_caching",
        _becomes(False),
        "prompts that start alike are computed anew for every request",
    ),
    Danger(
        "scheduler.policy",
        _becomes("static"),
        "a request waits until the whole batch before it has finished",
    ),
    Danger("scheduler.max_num_waiting", _lower, "a shorter queue: more requests get 429"),
    Danger("slo.ttft_ms", _higher_or_gone, "the promise to users is loosened"),
    Danger("slo.tpot_ms", _higher_or_gone, "the promise to users is loosened"),
    Danger("slo.percentile", _lower, "the promise holds for fewer requests"),
    Danger("slo.goodput_per_s", _lower_or_gone, "the promise to users is loosened"),
    Danger("slo.usd_per_million_output_tokens", _higher_or_gone, "the ceiling of cost is raised"),
    Danger("slo.enforce", _becomes("warn"), "a plan that misses its targets is launched"),
    Danger("workload.", _differs, "before and after are planned for different traffic"),
    Danger("calibration.", _differs, "before and after rest on different measurements"),
    Danger(
        "hardware.usd_per_hour",
        _differs,
        "the same device at another price",
        unless="hardware.name",
    ),
    Danger("server.host", _opened, "it listens beyond this machine"),
    Danger("server.api_keys", _gone, "nobody is asked for a key any more"),
    Danger("server.api_keys", _comes, "clients without a key get 401"),
    Danger("server.api_keys", _replaced, "keys that are only in the old list get 401"),
    Danger("server.allow_anyone", _becomes(True), "whoever reaches its address may use it"),
    Danger("server.tls_cert", _gone, "prompts and keys travel unencrypted; clients must follow"),
    Danger("server.tls_cert", _comes, "clients and probes must follow to https"),
    Danger("server.port", _differs, "clients and probes must follow"),
    Danger("server.admin_port", _differs, "whoever asks for health or metrics must follow"),
    Danger("server.propagation_s", _lower, "new requests may come after they are refused"),
    Danger("server.drain_s", _lower, "long requests are cut when it is stopped"),
    Danger("server.max_body_mib", _lower, "larger bodies, accepted until now, get 413"),
    Danger("server.max_connections", _lower, "more connections are turned away"),
    Danger("server.read_timeout_s", _lower, "requests that come more slowly get 408"),
    Danger("server.hang_s", _lower, "an engine that is only slow is given up sooner"),
    Danger("server.keepalive_s", _higher, "proxies may close streams that wait"),
    Danger("server.unknown_fields", _becomes("refuse"), "requests with unknown fields get 400"),
    Danger("telemetry.log_prompts", _becomes(True), "prompts of users are written to the log"),
    Danger("telemetry.ledger", _gone, "what tenants use is no longer written down"),
    Danger("telemetry.otlp_endpoint", _gone, "traces and metrics are no longer sent there"),
    Danger("telemetry.vllm_names", _becomes(False), "whoever asks by names of vLLM finds nothing"),
    Danger("telemetry.exporter", _becomes("none"), "dashboards and alerts no longer see it"),
)


def notes(before: Side | None, after: Side | None) -> Iterator[str]:
    """What only `after` would not launch for, then a line for each rule that applies between two
    valid configurations, in the table's order."""
    if not (before and before.composed and after and after.composed):
        return
    old = dict(leaves(before.composed.config.model_dump(mode="json")))
    new = dict(leaves(after.composed.config.model_dump(mode="json")))
    changed = {key for key in {**old, **new} if old.get(key) != new.get(key)}
    if lacking := cannot_run(after.composed.config):
        runs_now = set(cannot_run(before.composed.config))
        if fresh := [phrase for phrase in lacking if phrase not in runs_now]:
            yield f"this release plans and does not run: {'; '.join(fresh)}"
    for rule in RULES:
        if rule.unless in changed:
            continue
        if rule.key.endswith("."):
            if any(key.startswith(rule.key) for key in changed):
                yield f"{rule.key[:-1]}: {rule.sentence}"
        elif rule.test(old.get(rule.key), new.get(rule.key)):
            said = {"before": _said(old.get(rule.key)), "after": _said(new.get(rule.key))}
            moved = f"{said['before']} -> {said['after']}"
            yield f"{rule.key} {moved}: {rule.sentence.format(**said)}"


def _said(value: Any) -> str:
    """Long texts, such as templates, are not repeated in a note."""
    text = "null" if value is None else str(value).lower() if value in (True, False) else str(value)
    return text if len(text) <= 48 else f"{text[:45]}..."
