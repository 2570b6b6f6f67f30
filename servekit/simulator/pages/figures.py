"""Figures of simulated runs, as plain data for plotly.js: latencies, curves over time, goodput.

Names of configurations come from outside and plotly reads tags in what it writes, so `safe` is
called on each.
"""

import html
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from servekit.simulator.measure import is_good
from servekit.simulator.pages.metrics import BY_KEY, half
from servekit.simulator.pages.timeline import Figure
from servekit.simulator.record import Report, Run

Shown = Sequence[tuple[str, Run, Report]]
"""Name, run of the first seed and report of each configuration on a page."""

PALETTE = ("#3465c9", "#d9812b", "#2f9e6e", "#b0417e", "#7a4fa3", "#5f6b7a", "#a58a1c", "#178ca4")
EXTRA = "<extra>%{fullData.name}</extra>"
POINTS = 200
"""Of a curve: a quantile each half percent."""
DISTRIBUTIONS = (
    ("ttft", "time to first token"),
    ("tpot", "per output token"),
    ("itl", "between tokens"),
    ("e2e", "whole answer"),
)
OVER_TIME = (
    ("waiting", "waiting", 1),
    ("running", "running", 1),
    ("kv_share", "KV held, %", 100),
    ("batch_tokens", "tokens of a step", 1),
    ("output_tokens_per_s", "output tokens/s", 1),
    ("goodput_per_s", "goodput, 1/s", 1),
)
ENDS = (
    ("in time", "#2f9e6e"),
    ("late", "#f0b23e"),
    ("refused", "#8a94a3"),
    ("left", "#b0417e"),
    ("unfinished", "#cfd6df"),
)


def safe(name: str) -> str:
    return html.escape(name)


def colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


def values(run: Run, report: Report, name: str) -> list[tuple[float, int]]:
    """Milliseconds and how often each was seen, in order: what came, and pauses that ended, from
    the warm-up to the last arrival. Where all come at once, everything.
    """
    start, end = report.warm_up_s, max((each.at for each in run.served), default=0.0)
    end = end if end > min((each.at for each in run.served), default=0.0) else math.inf
    if name == "itl":
        found = [
            (1000 * seconds, count)
            for copy in run.copies
            for at, seconds, count in zip(
                copy.gaps.at, copy.gaps.seconds, copy.gaps.count, strict=True
            )
            if start <= at < end
        ]
    else:
        times = (getattr(each, f"{name}_s") for each in run.served if each.at >= start)
        found = [(1000 * time, 1) for time in times if time is not None]
    return sorted(found)


def curve(found: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Values and the share that is at most so large, at `POINTS` places."""
    if not found:
        return [], []
    totals = list(accumulate(count for _, count in found))
    shares = [place / POINTS for place in range(1, POINTS)] + [0.999, 1.0]
    ranks = [min(len(found) - 1, bisect_left(totals, share * totals[-1])) for share in shares]
    return [rounded(found[rank][0]) for rank in ranks], [100 * share for share in shares]


def ticks(found: Iterable[float]) -> Figure:
    """Of a logarithmic axis: 1, 2 and 5 times each power of ten that is near a value, in full.

    By itself plotly writes the 20 between 10 and 100 as a small 2.
    """
    known = [value for value in found if value > 0]
    if not known:
        return {}
    powers = range(math.floor(math.log10(min(known))), math.ceil(math.log10(max(known))) + 1)
    places = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    if len(powers) > 4:
        places = places[::3]
    return {"tickvals": places, "ticktext": [f"{place:,.10g}" for place in places]}


def rounded(value: float) -> float:
    """Four digits, which is more than a picture shows."""
    return float(f"{value:.4g}")


def distributions(shown: Shown) -> Figure:
    """Four panels: the share of requests that waited at most so long; targets as lines."""
    data: list[Figure] = []
    layout: Figure = {"height": 620, "grid": panels(2, 2), "annotations": [], "shapes": []}
    for panel, (name, label) in enumerate(DISTRIBUTIONS, 1):
        suffix = "" if panel == 1 else str(panel)
        layout[f"xaxis{suffix}"] = {"type": "log", "title": {"text": f"{label}, ms"}}
        layout[f"yaxis{suffix}"] = {"range": [0, 101], "ticksuffix": " %"}
        seen: list[float] = []
        for place, (option, run, report) in enumerate(shown):
            x, y = curve(values(run, report, name))
            seen += x
            data.append(
                {
                    **line(option, place, x, y, panel),
                    "showlegend": panel == 1 and len(shown) > 1,
                    "hovertemplate": "%{y:.1f} % within %{x:,.4g} ms" + EXTRA,
                }
            )
        target = next((t for t in shown[0][2].targets if t.name == name), None)
        if target is not None:
            mark(layout, suffix, 1000 * target.target_s, target.percentile)
            seen.append(1000 * target.target_s)
        layout[f"xaxis{suffix}"].update(ticks(seen))
    return {"data": data, "layout": layout}


def mark(layout: Figure, suffix: str, target_ms: float, percentile: float) -> None:
    """The target: what lies to the left of the line at its height is in time."""
    axes = {"xref": f"x{suffix}", "yref": f"y{suffix}"}
    dashed = {"color": "#222", "width": 1, "dash": "dash"}
    layout["shapes"] += [
        {"type": "line", "x0": target_ms, "x1": target_ms, "y0": 0, "y1": 101, **axes},
        {"type": "line", "xref": f"x{suffix} domain", "x0": 0, "x1": 1, "y0": percentile,
         "y1": percentile, "yref": f"y{suffix}"},
    ]  # fmt: skip
    for shape in layout["shapes"][-2:]:
        shape["line"] = dashed
    layout["annotations"].append(
        {"text": f"target {target_ms:g} ms at p{percentile:g}", "x": math.log10(target_ms), "y": 4,
         "showarrow": False, "xanchor": "right", "font": {"size": 11}, **axes}
    )  # fmt: skip


def panels(rows: int, columns: int) -> Figure:
    return {"rows": rows, "columns": columns, "pattern": "independent", "ygap": 0.28}


def line(option: str, place: int, x: Iterable[Any], y: Iterable[Any], panel: int) -> Figure:
    suffix = "" if panel == 1 else str(panel)
    return {
        "type": "scatter", "mode": "lines", "name": safe(option), "legendgroup": safe(option),
        "x": list(x), "y": list(y), "xaxis": f"x{suffix}", "yaxis": f"y{suffix}",
        "line": {"color": colour(place), "width": 1.8},
    }  # fmt: skip


def over_time(shown: Shown) -> Figure:
    """One below the other on one axis of time: queue, batch, cache, rates."""
    data: list[Figure] = []
    rows = len(OVER_TIME)
    layout: Figure = {
        "height": 130 * rows,
        "xaxis": {"title": {"text": "seconds"}, "anchor": f"y{rows}"},
    }
    for row, (name, label, scale) in enumerate(OVER_TIME, 1):
        suffix = "" if row == 1 else str(row)
        top = 1 - (row - 1) / rows
        layout[f"yaxis{suffix}"] = {
            "title": {"text": label.replace(", ", ",<br>"), "font": {"size": 11}},
            "domain": [top - 1 / rows + 0.02, top],
            "rangemode": "tozero",
            "nticks": 4,
        }
        for place, (option, _, report) in enumerate(shown):
            y = [rounded(scale * value) for value in getattr(report.series, name)]
            trace = line(option, place, report.series.at, y, row)
            data.append({**trace, "xaxis": "x", "showlegend": row == 1 and len(shown) > 1})
    return {"data": data, "layout": layout}


def rates(shown: Shown) -> Figure:
    """What came, what was served and what was in time, a second, with their intervals."""
    names = [safe(option) for option, _, _ in shown]
    bars = (("offered_per_s", "offered", "#cfd6df"), ("served_per_s", "served", "#8fb0e8"))
    data = []
    for key, label, fill in (*bars, ("goodput_per_s", "in time (goodput)", "#2f9e6e")):
        found = [BY_KEY[key].of(report) for _, _, report in shown]
        data.append(
            {
                "type": "bar",
                "name": label,
                "x": names,
                "y": [None if each is None else rounded(each.value) for each in found],
                "error_y": {
                    "array": [(half(each) or 0) if each is not None else 0 for each in found],
                    "thickness": 1,
                },
                "marker": {"color": fill},
                "hovertemplate": "%{y} requests/s" + EXTRA,
            }
        )
    title = {"title": {"text": "requests a second"}, "rangemode": "tozero"}
    return {"data": data, "layout": {"height": 320, "barmode": "group", "yaxis": title}}


def endings(shown: Shown) -> Figure:
    """How the requests of the first seed ended, in percent of those that came after the warm-up."""
    counted = [ended(run, report.warm_up_s) for _, run, report in shown]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": end,
            "y": [safe(option) for option, _, _ in shown],
            "x": [rounded(100 * counts[end] / max(1, sum(counts.values()))) for counts in counted],
            "marker": {"color": fill},
            "hovertemplate": "%{x} %" + EXTRA,
        }
        for end, fill in ENDS
        if any(counts[end] for counts in counted)
    ]
    layout = {
        "height": 130 + 44 * len(shown),
        "barmode": "stack",
        "xaxis": {"ticksuffix": " %", "range": [0, 101]},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    return {"data": data, "layout": layout}


def ended(run: Run, start: float) -> dict[str, int]:
    """Of those who came from `start` on, by ENDS; `late` is what finished outside the targets."""
    counts = {end: 0 for end, _ in ENDS}
    slo = run.config.slo
    for each in run.served:
        if each.at < start:
            continue
        if each.end == "finished":
            counts["in time" if is_good(each, slo) else "late"] += 1
        else:
            counts[each.end] += 1
    return counts
