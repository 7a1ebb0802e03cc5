"""The part of a page about layers: a bar for each, as long as its cost."""

from __future__ import annotations

from .costs import CLASSES, Costs, costs_of, percent
from .markup import Html, h, join
from .record import Layer, Run, count, shape_text

MEANING = {
    "mac": "vector multiply-accumulate",
    "vector": "other vector and floating point",
    "load": "load",
    "store": "store",
    "branch": "branch",
    "scalar": "scalar",
}


def layers(run: Run) -> Html:
    """A chart for each known figure; without any, a list."""
    every = costs_of(run)
    if not every:
        return join(
            h("p", "Nothing ran on a board, so layers have no costs. These are their outputs."),
            h("ol", (_row(n, layer, None, 1.0) for n, layer in enumerate(run.layers)),
              class_="bars"),
        )  # fmt: skip
    return join(_chart(run, costs) for costs in every)


def _chart(run: Run, costs: Costs) -> Html:
    longest = max(costs.values, default=0.0) or 1.0
    rows = (_row(n, layer, costs, longest) for n, layer in enumerate(run.layers))
    split = costs.text(1234.0) == "1,234" and all(layer.by_class for layer in run.layers)
    marked = " (predicted, not measured)" if costs.predicted else ""
    return h(
        "div",
        h("div",
          h("h3", f"{costs.title[:1].upper()}{costs.title[1:]} of each layer{marked}"),
          h("button", "Costliest first", type="button", class_="order", aria_pressed="false"),
          class_="heading"),
        _legend(run) if split else None,
        h("ol", rows, class_="bars"),
        h("p", "All layers together: ", h("b", costs.text(costs.total)),
          _sum_note(run, costs), class_="note"),
        class_="chart",
    )  # fmt: skip


def _sum_note(run: Run, costs: Costs) -> str:
    if costs.title != "time" or run.latency is None:
        return "."
    whole = run.latency.median_ms * 1e3
    return (
        f"; the whole model took {costs.text(whole)} (median). Layers are timed in runs of their "
        "own, and what other programs take from these differs."
    )


def _row(number: int, layer: Layer, costs: Costs | None, longest: float) -> Html:
    """A bar, as long as the layer's share of the costliest one."""
    value = costs.values[number] if costs else 0.0
    instructions = costs is not None and costs.title == "executed instructions"
    turns = f" · {layer.turns} iterations" if layer.turns != 1 else ""
    return h(
        "li",
        h("a",
          h("span", h("b", layer.name), h("small", f"{layer.kernel} · "
            f"{shape_text(layer.shape, layer.dtype)}{turns}"), class_="name"),
          h("span", _parts(layer) if instructions and layer.by_class else h("i", class_="whole"),
            class_="bar", style=f"width:{100 * value / longest:.2f}%") if costs else None,
          h("span", costs.text(value), class_="value") if costs else None,
          h("span", percent(costs.share(value)), class_="share") if costs else None,
          href="#graph", data_call=str(number), class_="row"),
        style=f"--rank:{-value:.0f}",
    )  # fmt: skip


def _parts(layer: Layer) -> list[Html]:
    """A bar's instructions by class."""
    by_class = layer.by_class or {}
    whole = sum(by_class.values()) or 1
    return [
        h("i", class_=f"of-{name}", style=f"width:{100 * n / whole:.2f}%",
          title=f"{name}: {n:,}, {percent(n / whole)}")
        for name in CLASSES
        if (n := by_class.get(name, 0))
    ]  # fmt: skip


def _legend(run: Run) -> Html:
    sums = {name: sum((layer.by_class or {}).get(name, 0) for layer in run.layers)
            for name in CLASSES}  # fmt: skip
    whole = sum(sums.values()) or 1
    return h(
        "ul",
        (
            h("li", h("i", class_=f"of-{name}"), h("b", name), f" {MEANING[name]}: ",
              f"{count(n)}, {percent(n / whole)}")
            for name, n in sums.items()
        ),
        class_="legend",
    )  # fmt: skip
