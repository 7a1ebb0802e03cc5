"""The roofline: how much each layer computes per byte that it moves, and how fast.

A layer is a point. Across: its multiply-accumulates per byte of its inputs, weights and outputs,
each counted once, as a cache of any size must move them. Upwards: its multiply-accumulates per
second, or per executed instruction if nothing was timed. Samuel Williams et al., "Roofline", CACM
52(4), 2009, doi 10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .costs import Costs, costs_of, percent
from .markup import Html, h, join
from .record import Call, Limits, Run, count, shape_text
from .svg import Frame, Scale, axes, both, drawing, text

SHAPES = 4  # kinds of marks, by the operator that a kernel is built around


@dataclass(frozen=True, slots=True)
class Point:
    """A layer: `across` MACs per byte, `up` MACs per second or per instruction."""

    number: int
    name: str
    kind: str
    across: float
    up: float
    share: float


def roofline(run: Run) -> Html:
    if run.details is None:
        return h("p", "The record has no details of the layers' work.", class_="missing")
    every = costs_of(run)
    if not every:
        return h("p", "Nothing ran on a board, so the speed is unknown.", class_="missing")
    costs = every[0]
    points = _points(run, run.details.calls, costs)
    if not points:
        return h("p", "No layer has multiply-accumulates, or their number is unknown, as for a "
                 "saved model.", class_="missing")  # fmt: skip
    limits = run.limits or Limits(None, None, None, "", {})
    timed = costs.title != "executed instructions"
    kinds = list(dict.fromkeys(p.kind for p in sorted(points, key=lambda p: -p.share)))
    return join(
        _legend(kinds),
        both(lambda width: _drawn(width, points, kinds, limits, _peaks(run, timed), timed)),
        h("p", _reading(limits, timed, costs), class_="note"),
        _silent(run, costs, points),
    )


def _points(run: Run, calls: tuple[Call, ...], costs: Costs) -> list[Point]:
    found = []
    for number, (layer, call, cost) in enumerate(zip(run.layers, calls, costs.values, strict=True)):
        macs, traffic = call.multiply_accumulates, call.traffic_bytes
        if macs and traffic and cost:
            seconds = cost if costs.title == "executed instructions" else cost / 1e6
            name = f"{layer.name} ({shape_text(layer.shape, layer.dtype)})"
            kind = call.operators[0] if call.operators else "other"
            point = macs / traffic, macs / seconds
            found.append(Point(number, name, _kind(call, kind), *point, costs.share(cost)))
    return found


def _kind(call: Call, first: str) -> str:
    """The operator that a kernel is built around, or the first."""
    for name in call.operators:
        if any(word in name for word in ("conv", "dense", "matmul", "attention", "gru", "lstm")):
            return name
    return first


def _peaks(run: Run, timed: bool) -> list[tuple[str, float]]:
    """The peaks of the cores and their labels: in the model's precision, and in int8 if layers use
    integers."""
    limits = run.limits
    if limits is None:
        return []
    if not timed:
        most = limits.macs_per_instruction
        return [(f"at most {most:g} per instruction", most)] if most else []
    found = [] if limits.macs_per_s is None else [(run.precision, limits.macs_per_s)]
    if "int8" in limits.by_dtype and any(x.dtype in ("int8", "uint8") for x in run.layers):
        found.append(("int8", limits.by_dtype["int8"]))
    return [(f"at most {count(rate)}MAC/s in {dtype}", rate) for dtype, rate in found if rate]


def _legend(kinds: list[str]) -> Html:
    return h(
        "ul",
        (
            h("li", h("svg", _mark(8, 8, 6, min(n, SHAPES - 1), None), viewBox="0 0 16 16",
              class_="key", aria_hidden="true"), h("b", kind))
            for n, kind in enumerate(kinds[:SHAPES])
        ),
        h("li", "and others, like the last") if len(kinds) > SHAPES else None,
        h("li", "A mark's area is the layer's share of the cost."),
        class_="legend",
    )  # fmt: skip


def _drawn(
    width: float, points: list[Point], kinds: list[str], limits: Limits,
    peaks: list[tuple[str, float]], timed: bool,
) -> Html:  # fmt: skip
    frame = Frame(width, 430 if width > 600 else 360, left=70, top=26)
    across = [p.across for p in points]
    ups = [p.up for p in points] + [rate for _, rate in peaks]
    x = frame.x(min(across) / 1.6, max(across) * 1.6, log=True)
    y = frame.y(min(ups) / 1.6, max(ups) * 1.6, log=True)
    up_text: Callable[[float], str] = (lambda v: count(v)) if timed else (lambda v: f"{v:.3g}")
    title = "multiply-accumulates per second" if timed else "multiply-accumulates per instruction"
    return drawing(
        frame,
        "roofline: a mark for each layer with multiply-accumulates",
        axes(frame, x, y, "multiply-accumulates per byte moved", title,
             lambda v: f"{v:.3g}", up_text),
        _roof(frame, x, y, peaks, limits.bytes_per_s if timed else None),
        h("g", (_point(p, x, y, kinds) for p in sorted(points, key=lambda p: -p.share)),
          class_="points"),
    )  # fmt: skip


def _roof(
    frame: Frame, x: Scale, y: Scale, peaks: list[tuple[str, float]], bandwidth: float | None
) -> Html | None:
    """The known limits as lines: flat for the cores' peaks, rising to the highest of these for
    memory."""
    if not peaks:
        return None
    right = frame.width - frame.right
    parts = []
    for label, rate in peaks:
        ridge = rate / bandwidth if bandwidth else 0.0
        begin = x(max(min(ridge, x.high), x.low)) if bandwidth else frame.left
        parts.append(h("line", x1=begin, x2=right, y1=y(rate), y2=y(rate), class_="roof"))
        parts.append(text(right, y(rate) - 7, label, text_anchor="end", class_="roof-text"))
    if bandwidth:
        highest = max(rate for _, rate in peaks)
        low = max(x.low, y.low / bandwidth)
        top = min(max(highest / bandwidth, x.low), x.high)
        if low < top:
            parts.append(h("line", x1=x(low), y1=y(low * bandwidth), x2=x(top),
                           y2=y(top * bandwidth), class_="roof"))  # fmt: skip
            middle = (low * top) ** 0.5
            label = f"{count(bandwidth)}B/s from memory"
            parts.append(text(x(middle) + 8, y(middle * bandwidth) + 12, label, class_="roof-text"))
    return h("g", parts)


def _point(p: Point, x: Scale, y: Scale, kinds: list[str]) -> Html:
    radius = 3.0 + 14.0 * p.share**0.5
    label = f"{p.name}: {p.across:.3g} per byte, {count(p.up)} up, {percent(p.share)} of the cost"
    kind = min(kinds.index(p.kind), SHAPES - 1)
    return h("g", _mark(x(p.across), y(p.up), radius, kind, label), data_call=str(p.number),
             class_="point")  # fmt: skip


def _mark(x: float, y: float, r: float, kind: int, label: str | None) -> Html:
    title = h("title", label) if label else None
    match kind:
        case 0:
            return h("g", h("circle", cx=x, cy=y, r=r), title, class_="kind-0")
        case 1:
            return h("g", h("rect", x=x - r * 0.88, y=y - r * 0.88, width=r * 1.76,
                            height=r * 1.76), title, class_="kind-1")  # fmt: skip
        case 2:
            d = f"M{x:.1f} {y - r * 1.2:.1f}L{x + r * 1.1:.1f} {y + r * 0.8:.1f}H{x - r * 1.1:.1f}Z"
            return h("g", h("path", d=d), title, class_="kind-2")
    d = f"M{x:.1f} {y - r * 1.2:.1f}l{r * 1.2:.1f} {r * 1.2:.1f}l{-r * 1.2:.1f} {r * 1.2:.1f}"
    d += f"l{-r * 1.2:.1f} {-r * 1.2:.1f}Z"
    return h("g", h("path", d=d), title, class_="kind-3")


def _reading(limits: Limits, timed: bool, costs: Costs) -> str:
    parts = []
    if costs.predicted:
        parts.append("Speeds are of predicted times, not of measured ones.")
    if timed:
        if limits.macs_per_s and limits.bytes_per_s:
            parts.append(
                f"The lines are the limits of {limits.source}. A layer whose data are in "
                "a cache may be above the rising line."
            )
        else:
            parts.append(
                "The cores' limits (multiply-accumulates per second, bytes per second) are "
                "unknown, so there is no line. Layers on the left are likely limited by memory."
            )
    else:
        parts.append(
            "Nothing was timed: the height is multiply-accumulates per executed instruction, "
            "which does not show waiting for memory."
        )
        if limits.macs_per_instruction:
            parts.append(f"The line is what one instruction does at most: {limits.source}.")
    parts.append(
        "Winograd convolutions count as ordinary convolutions, so they may be above a line."
    )
    return " ".join(parts)


def _silent(run: Run, costs: Costs, points: list[Point]) -> Html | None:
    shown = {p.number for p in points}
    rest = sum(v for n, v in enumerate(costs.values) if n not in shown)
    count_of = len(run.layers) - len(shown)
    if not count_of:
        return None
    layers = "1 layer" if count_of == 1 else f"{count_of} layers"
    return h("p", f"Layers without multiply-accumulates have no mark: {layers}, "
             f"{percent(costs.share(rest))} of the cost.", class_="note")  # fmt: skip
