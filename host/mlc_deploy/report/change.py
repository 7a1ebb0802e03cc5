"""Before and after: two records, layer by layer. Layers pair by name, equal names in their
order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from .costs import Costs, costs_of, percent
from .markup import Html, h, join
from .record import Run

Paired = tuple[str, float | None, float | None]  # a layer's name, its cost before and after


def change(before: Run, after: Run) -> Html:
    """The part of a page that compares two runs."""
    both = _shared(before, after)
    if both is None:
        return h("p", "The results cannot be compared: one has instructions, the other times. "
                 "Run both on the same --board.", class_="missing")  # fmt: skip
    old, new = both
    rows = _pairs(before, old, after, new)
    longest = max((c or 0.0 for _, *costs in rows for c in costs), default=0.0) or 1.0
    was, now = _whole(before, old), _whole(after, new)
    return join(
        h("p", h("b", change_text(was, now, old.title)), f" Before: {old.text(was)}, after: "
          f"{new.text(now)}, of the whole model."),
        h("ul", (h("li", text) for text in _differences(before, after)), class_="plain"),
        h("table",
          h("thead", h("tr", h("th", "layer"), h("th", "before", class_="number"),
                       h("th", "after", class_="number"), h("th", "change", class_="number"),
                       h("th", "before above, after below", class_="drawn"))),
          h("tbody", (_row(row, old, longest) for row in rows)),
          class_="change"),
    )  # fmt: skip


def change_text(was: float, now: float, title: str) -> str:
    """12.3 % less time."""
    if was == now:
        return f"No change in {title}."
    if not was:
        return f"More {title} than none."
    words = ("fewer", "more") if title == "executed instructions" else ("less", "more")
    return f"{percent(abs(now - was) / was)} {words[now > was]} {title}."


def _whole(run: Run, costs: Costs) -> float:
    """The whole model's cost, as in `mlc-deploy compare`; for times, the median of whole runs."""
    if costs.title == "time" and run.latency is not None:
        return run.latency.median_ms * 1e3
    return costs.total


def _shared(before: Run, after: Run) -> tuple[Costs, Costs] | None:
    """The best figure that both have."""
    old = {costs.title: costs for costs in costs_of(before)}
    for costs in costs_of(after):
        if costs.title in old:
            return old[costs.title], costs
    return None


def _pairs(before: Run, old: Costs, after: Run, new: Costs) -> list[Paired]:
    was, now = _named(before, old), _named(after, new)
    rows = [(name, was.get((name, n)), cost) for (name, n), cost in now.items()]
    gone = [(name, cost, None) for (name, n), cost in was.items() if (name, n) not in now]
    return [*rows, *gone]


def _named(run: Run, costs: Costs) -> dict[tuple[str, int], float]:
    numbers: dict[str, Any] = {}
    return {
        (layer.name, next(numbers.setdefault(layer.name, count()))): cost
        for layer, cost in zip(run.layers, costs.values, strict=True)
    }


def _row(row: Paired, costs: Costs, longest: float) -> Html:
    name, was, now = row
    if was is None or now is None:
        moved = "gone" if now is None else "added"
    elif was == now:
        moved = "none"
    else:
        moved = f"{(now - was) / was:+.1%}".replace("%", " %") if was else "more than none"
    direction = "" if was is None or now is None or was == now else "up" if now > was else "down"
    return h(
        "tr",
        h("td", name, class_="layer"),
        *(h("td", "–" if cost is None else costs.text(cost), class_="number")
          for cost in (was, now)),
        h("td", {"up": "▲ ", "down": "▼ "}.get(direction, ""), moved,
          class_=f"number {direction}"),
        h("td", *(h("i", class_=kind, style=f"width:{100 * (cost or 0.0) / longest:.2f}%")
                  for kind, cost in (("before", was), ("after", now))), class_="drawn"),
    )  # fmt: skip


def _differences(before: Run, after: Run) -> Sequence[str]:
    found = []
    for what in ("model", "target", "precision", "threads", "url"):
        was, now = getattr(before, what), getattr(after, what)
        if was != now:
            found.append(f"{'board' if what == 'url' else what} was {was}, and is {now}")
    return found
