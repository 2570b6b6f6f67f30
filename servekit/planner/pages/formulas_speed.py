"""A step, the times users see, and what it costs, as formulas."""

from collections.abc import Iterator

from servekit.planner.pages.formula import Formula, short
from servekit.planner.plan import Plan
from servekit.planner.prediction.predict import ttft
from servekit.planner.prediction.prediction import Prediction
from servekit.planner.prediction.steady import Replica, State, replica
from servekit.spec.latency import SHARPNESS, TERMS, StepModel, roofline

STEP, SERVED, COST = "One decode step", "What users see", "Cost"


def speed_formulas(made: Plan, prediction: Prediction) -> Iterator[Formula]:
    """At the declared rate; where that is too much, with every seat taken."""
    engine = replica(made.config, made.kv)
    state = engine.steady(engine.traffic.rate) or engine.full()
    yield from step_formulas(made, engine, state)
    yield from served_formulas(made, prediction, engine, state)


def step_formulas(made: Plan, engine: Replica, state: State) -> Iterator[Formula]:
    config, step = made.config, engine.step
    decodes, context = max(1.0, state.seen / step.pipeline), engine.traffic.context
    parts = step.parts(decodes, context)
    ideal = roofline(config).parts(decodes, context)
    batch = f"{short(decodes)} requests decode"
    if config.model.shape.moe is not None:
        yield distinct_experts(made, decodes)
    yield from against_peak(made, "weights", parts, ideal, f"bytes that a step reads; {batch}")
    yield from against_peak(made, "compute", parts, ideal, f"operations; {batch}")
    yield together(
        "linear", ("weights", "compute"), parts, step, "reading and computing, smooth maximum"
    )
    length = f"keys and values of {short(context)} tokens each"
    yield from against_peak(made, "kv", parts, ideal, length)
    yield from against_peak(made, "scores", parts, ideal, f"scores of {batch}")
    yield together("attention", ("kv", "scores"), parts, step, "the same, layer by layer")
    for name, words in OTHER_TERMS.items():
        if parts[name]:
            yield milliseconds(STEP, name, words, short(parts[name] * 1000), parts[name], step)
    terms = [(name, parts[name] * 1000) for name in TERMS if parts[name]]
    numbers = " + ".join(f"{short(value)} {name.replace('_', ' ')}" for name, value in terms)
    total = sum(value for _, value in terms) / 1000
    yield milliseconds(STEP, "a step", "all terms", numbers, total, step)
    if config.speculative.tokens:
        held, count = config.speculative.acceptance, config.speculative.tokens
        powers = " + ".join(f"{held}^{power}" for power in range(1, count + 1))
        words = "1 + acceptance + acceptance^2 ..., up to the guesses"
        value, numbers = step.tokens_per_step, f"1 + {powers}"
        yield Formula(STEP, "tokens of a step", words, numbers, value, "tokens", "modelled")


OTHER_TERMS = {
    "communication": "all-reduces, exchanges of experts and hops between stages, by their bytes",
    "draft": "guessing tokens, one after the other",
    "host": "scheduling, sampling and launches that nothing hides",
}


def distinct_experts(made: Plan, decodes: float) -> Formula:
    moe = made.config.model.shape.moe
    assert moe is not None
    spread = made.config.parallelism
    tokens = decodes * (1 + made.config.speculative.tokens)
    tokens *= spread.expert_group / spread.tensor
    share = moe.experts_per_token / moe.experts
    value = moe.experts * (1 - (1 - share) ** max(1.0, tokens))
    return Formula(
        STEP,
        "experts that a layer reads",
        "E x (1 - (1 - k / E)^tokens), chosen evenly",
        f"{moe.experts} x (1 - (1 - {moe.experts_per_token} / {moe.experts})^"
        f"{short(max(1.0, tokens))})",
        value,
        "experts",
        "modelled",
    )


def against_peak(
    made: Plan, name: str, parts: dict[str, float], ideal: dict[str, float], words: str
) -> Iterator[Formula]:
    """Bytes over bandwidth, operations over the peak rate; and how much of it kernels reach."""
    if not parts[name] or not ideal[name]:
        return
    hardware, share = made.config.hardware, ideal[name] / parts[name]
    if name in ("weights", "kv"):
        amount = short(ideal[name] * hardware.bandwidth_gb_s)
        numbers = f"{amount} GB / ({short(hardware.bandwidth_gb_s)} GB/s x {short(share)}) x 1000"
        rule = "bytes / (bandwidth x efficiency)"
    else:
        numbers = f"{short(ideal[name] * 1000)} ms at peak / {short(share)}"
        rule = "operations / (peak rate x efficiency)"
    engine = made.prediction.standing if made.prediction else "modelled"
    yield Formula(STEP, name, f"{rule}: {words}", numbers, parts[name] * 1000, "ms", engine)


def together(
    name: str, of: tuple[str, str], parts: dict[str, float], step: StepModel, words: str
) -> Formula:
    """Each product is smoothed by itself, so that the whole is a little more than these two."""
    first, second = (parts[part] * 1000 for part in of)
    power = short(SHARPNESS)
    smooth = (first**SHARPNESS + second**SHARPNESS) ** (1 / SHARPNESS)
    rest = parts[name] * 1000 - smooth
    numbers = f"({short(first)}^{power} + {short(second)}^{power})^(1 / {power})"
    numbers += f" {'+' if rest >= 0 else '-'} {short(abs(rest))} for each product by itself"
    return milliseconds(STEP, name, words, numbers, parts[name], step)


def milliseconds(
    section: str, name: str, words: str, numbers: str, seconds: float, step: StepModel
) -> Formula:
    return Formula(section, name, words, numbers, seconds * 1000, "ms", step.standing)


def served_formulas(
    made: Plan, prediction: Prediction, engine: Replica, state: State
) -> Iterator[Formula]:
    """TTFT and TPOT from steps, the batch from Little's law, throughput at full load."""
    step, curves, rate = engine.step, engine.curves, short(state.rate)
    decode = curves.at(curves.decode, state.seen)
    added = engine.added(state)
    left, words = 1 - state.rate * added, "1 - requests/s x what one prompt adds to steps"
    numbers = f"1 - {rate} x {short(added)} s"
    yield served("time without prompts", words, numbers, left, "of each second", step)
    name = "time a seat is held for a token" if engine.static else "time per output token, mean"
    words = "a step / tokens of a step / time without prompts"
    numbers = f"{short(decode * 1000)} / {short(step.tokens_per_step)} / {short(left)}"
    yield served(name, words, numbers, state.tpot * 1000, "ms", step)
    held = engine.held(state.seen)
    words = "Little's law: requests/s x tokens after the first x time of each; of one copy"
    numbers = f"{rate} x {short(held)} x {short(state.tpot)} s"
    running = state.rate * held * state.tpot
    yield served("requests that decode", words, numbers, running, "requests", step)
    if prediction.stable:
        yield first_token(engine, state)
    data = made.config.parallelism.data
    copies = f" x {data} copies" if data > 1 else ""
    words = "requests/s with every seat taken x tokens of an answer"
    each = prediction.capacity_per_s / data
    numbers = f"{short(each)} x {short(engine.traffic.output)}{copies}"
    output = prediction.output_tokens_per_s
    yield served("output at full load", words, numbers, output, "tokens/s", step)


def served(
    name: str, words: str, numbers: str, value: float, unit: str, step: StepModel
) -> Formula:
    return Formula(SERVED, name, words, numbers, value, unit, step.standing)


def first_token(engine: Replica, state: State) -> Formula:
    """At p95, in closed form, which a simulated run may have replaced: steps of the prompt itself,
    and waiting before them.
    """
    whole = ttft(engine, state, 0.95) * 1000
    own = engine.prompt_seconds(state.running, 0.95) * 1000
    own *= max(1.0, state.running) if engine.static else 1.0
    return Formula(
        SERVED,
        "time to first token, p95",
        "closed form: steps that carry a p95 prompt + waits: for the running step, for prompts "
        "before it (GI/M/1, Kingman), for a seat (Allen and Cunneen)",
        f"{short(own)} + {short(whole - own)}",
        whole,
        "ms",
        engine.step.standing,
    )


def cost_formulas(made: Plan) -> Iterator[Formula]:
    price, devices = made.config.hardware.usd_per_hour, made.config.parallelism.devices
    cost, prediction = made.cost, made.prediction
    if price is None or cost.usd_per_hour is None:
        return
    yield Formula(
        COST,
        "price",
        "devices x hardware.usd_per_hour",
        f"{devices} x {price}",
        cost.usd_per_hour,
        "USD/h",
        "exact",
    )
    if prediction is None or cost.usd_per_million_output_tokens is None:
        return
    yield Formula(
        COST,
        "a million output tokens",
        "price / (tokens/s at full load x 3600) x 10^6",
        f"{short(cost.usd_per_hour)} / ({short(prediction.output_tokens_per_s)} x 3600) x 10^6",
        cost.usd_per_million_output_tokens,
        "USD",
        prediction.standing,
    )
