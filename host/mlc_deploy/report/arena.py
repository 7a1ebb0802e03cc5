"""The arena over time: the place and lifetime of each tensor."""

from __future__ import annotations

from collections.abc import Sequence

from .costs import percent
from .markup import Html, h, join
from .record import Details, Run, Tensor, count, size
from .svg import Frame, Scale, axes, both, cut, drawing, steps, text

MOST_LISTED = 12  # tensors that are alive at the peak


def arena(run: Run) -> Html:
    details = run.details
    if details is None:
        return h("p", "The JSON file does not say where tensors are.", class_="missing")
    tensors = [t for t in details.tensors if t.space == "arena" and t.bytes]
    if not tensors:
        return h("p", "The model keeps nothing in the arena: it has only inputs and outputs.",
                 class_="missing")  # fmt: skip
    alive = _alive(tensors, len(run.layers))
    peak = max(range(len(alive)), key=alive.__getitem__)
    return join(
        h("p", _note(run, details, alive), class_="note"),
        both(lambda width: _drawn(width, run, details, tensors, alive)),
        _at_the_peak(run, tensors, peak, alive[peak]),
        h("p", "The model has loops or branches: lifetimes are those of one iteration, and both "
          "sides of a branch are shown.", class_="note") if details.loops else None,
    )  # fmt: skip


def _alive(tensors: Sequence[Tensor], calls: int) -> list[int]:
    """Bytes of tensors that are needed during each call."""
    found = [0] * max(calls, 1)
    for t in tensors:
        for time in range(max(t.begin, 0), min(t.end, calls - 1) + 1):
            found[time] += t.bytes
    return found


def _note(run: Run, details: Details, alive: Sequence[int]) -> str:
    workspace = run.arena_bytes - details.arena_bytes
    parts = [f"The arena has {size(details.arena_bytes)}; at most {size(max(alive))} of tensors "
             "are needed at the same time."]  # fmt: skip
    if details.least_bytes and details.arena_bytes > details.least_bytes:
        more = details.arena_bytes / details.least_bytes - 1
        parts.append(f"That is {percent(more)} more than any plan needs.")
    if workspace > 0:
        parts.append(f"Kernels need another {size(workspace)} of workspace.")
    return " ".join(parts)


def _drawn(
    width: float, run: Run, details: Details, tensors: Sequence[Tensor], alive: Sequence[int]
) -> Html:
    frame = Frame(width, 430 if width > 600 else 340, left=70)
    calls = len(run.layers)
    x, y = frame.x(0, calls), frame.y(0, max(details.arena_bytes, 1))
    curve = steps([(x(n), y(a)) for n, a in enumerate(alive)], x(calls))
    return drawing(
        frame,
        "the arena: a box for each tensor, across by calls, upwards by its place in memory",
        axes(frame, x, y, "layer, in the order of execution", "place in the arena",
             lambda v: f"{v:.0f}", lambda v: size(v)),
        h("g", (_box(t, x, y, n) for n, t in enumerate(tensors)), class_="tensors"),
        h("path", d=curve, class_="alive"),
        text(x(calls) - 4, frame.top + 12, "line: bytes needed", text_anchor="end",
             class_="alive-text"),
    )  # fmt: skip


def _box(t: Tensor, x: Scale, y: Scale, number: int) -> Html:
    left, right = x(max(t.begin, 0)), x(t.end + 1)
    top, bottom = y(t.offset + t.bytes), y(t.offset)
    height = max(bottom - top, 1.0)
    label = f"{t.name}: {size(t.bytes)} at {count(t.offset)}B, layers {t.begin} to {t.end}"
    room = right - left
    name = (
        text(left + 4, top + min(height / 2 + 4, 15), cut(t.name, room - 8, 6.4))
        if room > 44 and height > 14
        else None
    )
    return h(
        "g", h("title", label),
        h("rect", x=left, y=top, width=max(room, 1.0), height=height),
        name, data_call=str(max(t.begin, 0)), class_=f"tensor tone-{number % 3}",
    )  # fmt: skip


def _at_the_peak(run: Run, tensors: Sequence[Tensor], peak: int, alive: int) -> Html:
    there = sorted((t for t in tensors if t.begin <= peak <= t.end), key=lambda t: -t.bytes)
    rest = there[MOST_LISTED:]
    return join(
        h("h3", f"What lives at the peak: {size(alive)}, in layer {peak}, ",
          h("a", run.layers[peak].name, href="#graph", data_call=str(peak))),
        h("ul",
          (h("li", h("b", t.name), f" {size(t.bytes)}, layers {t.begin} to {t.end}")
           for t in there[:MOST_LISTED]),
          h("li", f"and {len(rest)} smaller ones: {size(sum(t.bytes for t in rest))}")
          if rest else None,
          class_="plain"),
    )  # fmt: skip
