"""The picture of a batch: who sat where in each step, as data for a figure.

Static and continuous batching are told apart at a glance: empty seats while others wait.
"""

import math
from collections.abc import Sequence
from typing import Any

from servekit.simulator.columns import Seats, SeatState
from servekit.simulator.record import Run

Figure = dict[str, Any]
"""`data` and `layout` of plotly.js; of a timeline also `hover`, from which the page makes text."""

COLOURS = {
    SeatState.EMPTY: "#eceff3",
    SeatState.PREFILL: "#3465c9",
    SeatState.DECODE: "#63b983",
    SeatState.STALLED: "#f0b23e",
    SeatState.PREEMPTED: "#cf3f43",
}
NAMES = {
    SeatState.EMPTY: "empty",
    SeatState.PREFILL: "prompt",
    SeatState.DECODE: "answer",
    SeatState.STALLED: "stalled",
    SeatState.PREEMPTED: "preempted",
}
OTHER_ANSWER = "#93cfa9"
"""Of every second request of a seat, so that one is told from the next."""
SHADES = (*COLOURS.values(), OTHER_ANSWER)
MOST_CELLS = 48_000
"""Seats times steps of a picture: more is neither read nor quickly drawn."""
FEWEST_STEPS = 60
MANY_SEATS = 64
WAITING = "#7a4fa3"


def timeline(run: Run, *, last: float | None = None) -> Figure:
    """Seats over steps, or over time at a click; below it, how many wait.

    `last`, in seconds since the window began, is where the axis of time ends.
    """
    seats, rows = run.seats, readable(run.seats)
    height = seats_shown(seats, rows)
    steps = [float(seats.first_step + place) for place in range(rows + 1)]
    began = seats.at[0] if seats.at else 0.0
    times = [at - began for at in seats.at[:rows]]
    times += [times[-1] + seats.seconds[rows - 1]] if rows else []
    waiting = list(run.copies[0].steps.waiting[seats.first_step : seats.first_step + rows])
    requests = cells(seats.requests, rows, height, -1)
    states = cells(seats.states, rows, height, SeatState.EMPTY)
    picture = heatmap(steps, shaded(states, requests))
    queue = queue_line(steps, waiting)
    data = [picture, queue, *legend()]
    hover = {
        "names": [*NAMES.values(), NAMES[SeatState.DECODE]],
        "first_step": seats.first_step,
        "ms": [round(1000 * each, 2) for each in seats.seconds[:rows]],
        "requests": requests,
        "tokens": cells(seats.tokens, rows, height, 0),
    }
    return {"data": data, "layout": layout(steps, times, height, last), "hover": hover}


def heatmap(steps: list[float], shades: list[list[int]]) -> Figure:
    """Gaps between cells, as long as they leave something of them."""
    return {
        "type": "heatmap",
        "x": steps,
        "y": list(range(1, len(shades) + 1)),
        "z": shades,
        "hovertemplate": "seat %{y}, %{text}<extra></extra>",
        "zmin": -0.5,
        "zmax": len(SHADES) - 0.5,
        "colorscale": colour_scale(),
        "showscale": False,
        "xgap": 0.4 if len(steps) <= 200 else 0,
        "ygap": 1 if len(shades) <= MANY_SEATS else 0,
    }


def queue_line(steps: list[float], waiting: list[int]) -> Figure:
    return {
        "type": "scatter",
        "x": steps[:-1],
        "y": waiting,
        "yaxis": "y2",
        "name": "waiting",
        "line": {"shape": "hv", "width": 1, "color": WAITING},
        "fill": "tozeroy",
        "hovertemplate": "%{y} wait<extra></extra>",
        "showlegend": False,
    }


def readable(seats: Seats) -> int:
    """Steps that are shown: fewer where there are many seats."""
    widest = max((len(states) for states in seats.states), default=1)
    return min(len(seats.at), max(FEWEST_STEPS, MOST_CELLS // max(1, widest)))


def seats_shown(seats: Seats, rows: int) -> int:
    """All there are, unless they are many and most are never taken."""
    widest = max((len(states) for states in seats.states[:rows]), default=0)
    return max(widest, seats.capacity) if seats.capacity <= MANY_SEATS else widest


def cells(table: Sequence[Sequence[int]], rows: int, height: int, none: int) -> list[list[int]]:
    """[steps][seats] as [seats][steps]; a seat beyond those written down has `none`."""
    return [
        [int(row[seat]) if seat < len(row) else none for row in table[:rows]]
        for seat in range(height)
    ]


def shaded(states: list[list[int]], requests: list[list[int]]) -> list[list[int]]:
    """Places in SHADES: the state, but answers of every second request of a seat in the other."""
    found = []
    for seat, owners in zip(states, requests, strict=True):
        row, last, other = [], -1, False
        for state, owner in zip(seat, owners, strict=True):
            if owner >= 0 and owner != last:
                last, other = owner, not other
            second = state == SeatState.DECODE and not other
            row.append(len(SeatState) if second else state)
        found.append(row)
    return found


def colour_scale() -> list[list[Any]]:
    """One flat colour a shade."""
    edges = [place / len(SHADES) for place in range(len(SHADES) + 1)]
    return [
        [edge, shade]
        for place, shade in enumerate(SHADES)
        for edge in (edges[place], edges[place + 1])
    ]


def legend() -> list[Figure]:
    """Squares without points: a heatmap has no legend of its own."""
    return [
        {
            "type": "scatter",
            "x": [None],
            "y": [None],
            "mode": "markers",
            "name": NAMES[state],
            "marker": {"color": COLOURS[state], "size": 12, "symbol": "square"},
        }
        for state in SeatState
    ]


def layout(steps: list[float], times: list[float], height: int, last: float | None) -> Figure:
    by_step = {"xaxis.title.text": "step", "xaxis.range": [steps[0], steps[-1]]}
    end = last if last is not None else (times[-1] if times else 0.0)
    by_time = {"xaxis.title.text": "seconds", "xaxis.range": [0, end]}
    buttons = [
        {"label": "by step", "method": "update", "args": [{"x": [steps, steps[:-1]]}, by_step]},
        {"label": "by time", "method": "update", "args": [{"x": [times, times[:-1]]}, by_time]},
    ]
    for button in buttons:
        button["args"].append([0, 1])  # type: ignore[attr-defined]
    return {
        "height": min(720, max(300, 170 + 9 * height)),
        "xaxis": {
            "title": {"text": "step"},
            "range": [steps[0], steps[-1]],
            "anchor": "y2",
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {"title": {"text": "seat"}, "domain": [0.26, 1], "zeroline": False},
        "yaxis2": {
            "title": {"text": "waiting"},
            "domain": [0, 0.2],
            "rangemode": "tozero",
            "nticks": 2,
        },
        "legend": {"orientation": "h", "x": 0.17, "y": 1.02, "yanchor": "bottom"},
        "updatemenus": [
            {
                "type": "buttons",
                "direction": "left",
                "buttons": buttons,
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "showactive": True,
            }
        ],
    }


def together(runs: list[Run]) -> float:
    """Seconds that all windows reach: beside each other they end at the same time."""
    ends = [run.seats.at[readable(run.seats) - 1] - run.seats.at[0] for run in runs if run.seats.at]
    return min(ends, default=0.0)


def window_seats(run: Run) -> int:
    """How many the picture shows."""
    return seats_shown(run.seats, readable(run.seats))


def window_empty_share(run: Run) -> float:
    """Of the picture's seats over time, how many are empty; NaN without a step."""
    seats, rows, height = run.seats, readable(run.seats), window_seats(run)
    weights = seats.seconds[:rows]
    whole = height * sum(weights)
    if not whole:
        return math.nan
    taken = sum(
        weight * sum(state != SeatState.EMPTY for state in states)
        for weight, states in zip(weights, seats.states, strict=False)
    )
    return 1 - taken / whole
