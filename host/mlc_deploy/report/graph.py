"""The fused graph as a picture, and the text that a click on a kernel shows."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from mlc_targets.text import shown

from .costs import CLASSES, Costs, costs_of, percent
from .layout import Layout, laid_out
from .markup import Html, h, join
from .record import Call, Details, Run, count, duration, shape_text, size
from .svg import cut

NODE_WIDTH, NODE_HEIGHT = 210.0, 46.0  # pixels
COLUMN, ROW = 232.0, 74.0  # pixels from one column or row to the next
MOST_FACT = 1000  # characters
WANTED = "mlc-deploy MODEL --report report.html"


def graph(run: Run, pictured: bool) -> Html:
    if run.details is None:
        return h("p", "The JSON file does not contain the graph.", class_="missing")
    costs = next(iter(costs_of(run)), None)
    return join(
        h("p", "Each box is a kernel: the operators that became one. A click shows its loops and "
          "its assembly. The bar at its lower edge is its share of the cost."
          if pictured else
          f"The model has {len(run.layers)} layers: too many for a picture in a page of this size. "
          "A click on a layer above shows its kernel.", class_="note"),
        h("div",
          h("div", _picture(run, run.details, costs), class_="canvas", tabindex="0",
            aria_label="the graph") if pictured else None,
          h("div", h("p", "No kernel is selected.", class_="missing"), id="kernel",
            aria_live="polite"),
          class_="split" if pictured else None),
        h("noscript", h("p", "Clicks need JavaScript.", class_="missing")),
    )  # fmt: skip


# ------------------------------------------------------------------------------------ the picture


def _picture(run: Run, details: Details, costs: Costs | None) -> Html:
    """The nodes are the model's inputs, then the calls, then the outputs."""
    inputs = [n for n, t in enumerate(details.tensors) if t.begin < 0 and t.end >= 0]
    first = len(inputs)
    made = {t: n for n, call in enumerate(details.calls) for t in call.writes}
    outputs = [
        t for t, tensor in enumerate(details.tensors) if tensor.space == "output" and t in made
    ]
    nodes = first + len(run.layers) + len(outputs)
    number = {t: n for n, t in enumerate(inputs)}
    edges: set[tuple[int, int]] = set()
    for n, call in enumerate(details.calls):
        for t in call.reads:
            source = number.get(t, first + made[t] if t in made else -1)
            if source >= 0:
                edges.add((source, first + n))
    for n, t in enumerate(outputs):
        edges.add((first + made[t], first + len(run.layers) + n))
    layout = laid_out(nodes, edges)
    width, height = layout.width * COLUMN, layout.rows * ROW
    boxes = [
        *(_end(layout.at[n], details.tensors[t].name, "input") for n, t in enumerate(inputs)),
        *(_node(layout.at[first + n], run, details.calls[n], costs, n)
          for n in range(len(run.layers))),
        *(_end(layout.at[first + len(run.layers) + n], details.tensors[t].name, "output")
          for n, t in enumerate(outputs)),
    ]  # fmt: skip
    return h(
        "svg",
        h("defs", h("rect", width=NODE_WIDTH, height=NODE_HEIGHT, rx=6, id="box")),
        h("g", (_edge(layout, a, b) for a, b in sorted(edges)), class_="edges"),
        *boxes,
        width=width, height=height, viewBox=f"0 0 {width:.0f} {height:.0f}", id="picture",
        role="group", aria_label="the fused graph",
    )  # fmt: skip


def _edge(layout: Layout, a: int, b: int) -> Html:
    """A curve from a box's lower edge to another's upper edge, through its places in the rows
    between."""
    (x, y), through, (to_x, to_y) = layout.at[a], layout.through.get((a, b), ()), layout.at[b]
    points = [
        (x * COLUMN, y * ROW + (ROW + NODE_HEIGHT) / 2),
        *((px * COLUMN, py * ROW + ROW / 2) for px, py in through),
        (to_x * COLUMN, to_y * ROW + (ROW - NODE_HEIGHT) / 2),
    ]
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path += f"C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"
    return h("path", d=path)


def _node(at: tuple[float, int], run: Run, call: Call, costs: Costs | None, number: int) -> Html:
    layer = run.layers[number]
    share = costs.share(costs.values[number]) if costs else 0.0
    x, y = _corner(at)
    operators = " + ".join(call.operators) or layer.kernel
    says = percent(share) if costs else ""
    return h(
        "g",
        h("title", f"{layer.name}: {operators}, {shape_text(layer.shape, layer.dtype)}"),
        h("use", href="#box"),
        h("rect", y=NODE_HEIGHT - 5, width=NODE_WIDTH * share, height=5),
        h("text", cut(operators, NODE_WIDTH - 66, 6.9), x=9, y=18),
        h("text", says, x=NODE_WIDTH - 8, y=18, class_="end-text"),
        h("text", cut(layer.name, NODE_WIDTH - 18, 6.3), x=9, y=34, class_="of"),
        class_="node", data_call=str(number), tabindex="0", role="button",
        transform=f"translate({x:.0f} {y:.0f})",
        data_costliest=costs is not None and costs.values[number] == max(costs.values),
    )  # fmt: skip


def _end(at: tuple[float, int], name: str, kind: str) -> Html:
    x, y = _corner(at)
    return h(
        "g",
        h("title", f"{kind} {name}"),
        h("rect", x=x + 20, y=y + 8, width=NODE_WIDTH - 40, height=NODE_HEIGHT - 16, rx=15),
        h("text", cut(f"{kind} {name}", NODE_WIDTH - 60, 6.9), x=x + NODE_WIDTH / 2,
          y=y + NODE_HEIGHT / 2 + 4, text_anchor="middle"),
        class_="end",
    )  # fmt: skip


def _corner(at: tuple[float, int]) -> tuple[float, float]:
    return at[0] * COLUMN - NODE_WIDTH / 2, at[1] * ROW + (ROW - NODE_HEIGHT) / 2


# ------------------------------------------------------------------------------------- the kernels


def _facts(
    run: Run, details: Details, call: Call, number: int, costs: Costs | None
) -> Iterator[tuple[str, str]]:
    layer, tensors = run.layers[number], details.tensors
    yield "kernel", layer.kernel
    if call.operators:
        yield "operators", " + ".join(call.operators)
    if call.implementation:
        yield "computed by", call.implementation
    yield "output", shape_text(layer.shape, layer.dtype)
    if costs:
        value = costs.values[number]
        yield costs.title, f"{costs.text(value)}, {percent(costs.share(value))}"
    if run.timed and layer.median_us and call.multiply_accumulates:
        rate = call.multiply_accumulates / layer.median_us * 1e6
        yield "speed", f"{count(rate)} multiply-accumulates per second"
    if layer.by_class and layer.instructions:
        parts = (f"{name} {count(layer.by_class.get(name, 0))}" for name in CLASSES)
        yield "by class", ", ".join(parts)
    if layer.median_us is not None and run.emulated:
        yield "emulated time", f"{duration(layer.median_us)}, which is not a board's time"
    if call.multiply_accumulates:
        yield "multiply-accumulates", f"{call.multiply_accumulates:,}"
    yield "moves", f"{size(call.traffic_bytes)}, of which {size(call.weights_bytes)} are weights"
    if call.reads:
        yield "reads", ", ".join(_tensor(tensors[t].name, tensors[t].bytes) for t in call.reads)
    yield "writes", ", ".join(_tensor(tensors[t].name, tensors[t].bytes) for t in call.writes)


def _tensor(name: str, bytes_: int) -> str:
    return f"{name} ({size(bytes_)})"


def texts(run: Run, room: int) -> tuple[Html, list[str]]:
    """The texts that a click shows: facts of each call, and the kernels' loops and assembly. They
    are deflated for the page's script, in `room` bytes if possible. Also returns the kernels that
    were left out, the cheapest ones."""
    details = run.details
    if details is None:
        return Html(), []
    costs = next(iter(costs_of(run)), None)
    weight: dict[str, float] = {}
    for number, layer in enumerate(run.layers):
        weight[layer.kernel] = weight.get(layer.kernel, 0.0) + (
            costs.values[number] if costs else 1
        )
    ranked = sorted(details.kernels, key=lambda name: -weight.get(name, 0.0))
    numbers = {kernel: n for n, kernel in enumerate(details.kernels)}
    calls = [
        {
            "name": shown(layer.name),
            "kernel": numbers.get(layer.kernel),
            "facts": [[label, shown(text, MOST_FACT)]
                      for label, text in _facts(run, details, call, number, costs)],
        }
        for number, (layer, call) in enumerate(zip(run.layers, details.calls, strict=True))
    ]  # fmt: skip
    count_of = len(ranked)
    while True:
        kept = {*ranked[:count_of]}
        kernels = {n: [loops, _legible(assembly)]
                   for n, (k, (loops, assembly)) in enumerate(details.kernels.items()) if k in kept
                   }  # fmt: skip
        packed = _packed({"calls": calls, "kernels": kernels})
        if len(packed) <= room or not count_of:
            break
        count_of = max(min(int(count_of * room / len(packed)), count_of - 1), 0)
    holder = h("script", Html(packed), type="application/octet-stream", id="texts")
    return holder, ranked[count_of:]


def _packed(found: Mapping[str, Any]) -> str:
    """JSON, deflated, in base64, which needs no escapes in HTML."""
    deflate = zlib.compressobj(9, wbits=-15)
    data = deflate.compress(json.dumps(found).encode()) + deflate.flush()
    return base64.b64encode(data).decode()


def _legible(assembly: str) -> str:
    """The labels and instructions of an assembly, without directives and comments."""
    kept = []
    for line in assembly.splitlines():
        word = line.strip()
        directive = word.startswith((".", "//", "@", "#")) and not word.endswith(":")
        if word and not directive:
            kept.append(line.replace("\t", "    ", 1).replace("\t", " "))
    return "\n".join(kept)
