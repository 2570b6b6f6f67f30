"""docs/metrics.md lists what is registered, and nothing else."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from servekit.telemetry.vllm import ALIASES
from tests.telemetry.test_metrics import contract, measured

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `[a-z_:]+` \| (?:gauge|counter|histogram) \| .+ \|$", re.MULTILINE)
UNITS = {"_seconds": "s", "_bytes": "bytes", "_ratio": "0 to 1", "_tokens": "tokens"}


def unit_of(name: str) -> str:
    special = {"servekit_slo_headroom_ratio": "up to 1", "servekit_long_to_short_slowdown": "ratio"}
    suffix = next((suffix for suffix in UNITS if name.endswith(suffix)), "")
    return special.get(name) or UNITS.get(suffix, "count")


def expected() -> list[str]:
    """A row a metric: name, kind, unit, labels, meaning, and what vLLM calls it."""
    about = {
        family.name: family.documentation
        for family in text_string_to_metric_families(measured().render().decode())
    }
    rows = []
    for line in contract(measured().render().decode()).splitlines():
        name, kind, *labels = line.split()
        shown = name + "_total" * (kind == "counter")
        theirs = [f"`{one.name}{'_total' * (kind == 'counter')}`" for one in ALIASES.get(name, ())]
        named = ", ".join(f"`{label}`" for label in labels)
        rows.append(
            f"| `{shown}` | {kind} | {unit_of(name)} | {named} | {about[name]} "
            f"| {', '.join(theirs)} |"
        )
    return rows


def test_every_metric_is_in_the_documentation_with_its_meaning_and_alias() -> None:
    found = [match.group(0) for match in ROW.finditer(PAGE.read_text())]
    assert found == expected()
