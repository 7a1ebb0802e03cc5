"""The samples of a run: their times, and the clock and temperature meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from .markup import Html, h, join
from .record import Latency, Run, duration
from .svg import Frame, Scale, axes, both, drawing, path, text

# Facts of the conditions (mlc_rpc/wire.py): title, unit, and the size of the unit.
FACTS = {
    "clock_khz": ("clock", "GHz", 1e6),
    "clock_limit_khz": ("clock limit", "GHz", 1e6),
    **{f"zone{n}_mc": (f"temperature {n}", "°C", 1e3) for n in range(8)},
}


@dataclass(frozen=True, slots=True)
class Series:
    """A fact after samples: (number of the sample, value)."""

    title: str
    unit: str
    points: Sequence[tuple[float, float]]


def samples(run: Run) -> Html:
    found = run.latency
    if found is None or not found.samples:
        return h("p", "Nothing ran, so there are no samples.", class_="missing")
    if run.emulated:
        return h("p", "An emulator ran the model once, in "
                 f"{duration(found.samples[0] * 1e3)}, which is not a board's time. See "
                 "executed instructions.", class_="missing")  # fmt: skip
    series = list(_series(found))
    runs = max(found.number, default=1)
    note = (
        f"Each sample is the mean of runs that take long enough together to be timed well, here of "
        f"up to {runs:,}; percentiles are of samples."
        if runs > 1
        else "Each sample is one run."
    )
    return join(
        _percentiles(found),
        both(lambda width: _drawn(width, found)),
        h("p", note, class_="note"),
        [both(partial(_line, of=s, count=len(found.samples))) for s in series]
        if series
        else h("p", "The board reports neither its clock nor a temperature.", class_="missing"),
    )


def _percentiles(found: Latency) -> Html:
    rows = [(name, found.percentiles[name] * 1e3) for name in ("p50", "p90", "p99")
            if name in found.percentiles]  # fmt: skip
    rows += [("deviation", found.mad_ms * 1e3)]
    if found.first_ms is not None:
        rows.append(("first", found.first_ms * 1e3))
    return h(
        "dl",
        (h("div", h("dt", name), h("dd", duration(us))) for name, us in rows),
        class_="figures",
    )


def _series(found: Latency) -> list[Series]:
    made = []
    for fact, (title, unit, scale) in FACTS.items():
        after = found.conditions.get(fact, ((), ()))[1]
        last = len(found.samples)
        points = [
            (float(min((n + 1) * found.each, last)), value / scale)
            for n, value in enumerate(after)
            if value is not None
        ]
        if points:
            made.append(Series(title, unit, points))
    return made


def _drawn(width: float, found: Latency) -> Html:
    frame = Frame(width, 300 if width > 600 else 260, left=70, right=64)
    low, high = min(found.samples), max(found.samples)
    room = (high - low) * 0.12 or high * 0.05 or 1.0
    x = frame.x(0.5, len(found.samples) + 0.5)
    y = frame.y(max(low - room, 0.0), high + room)
    return drawing(
        frame,
        "samples: a mark for each, upwards by its time",
        axes(frame, x, y, "sample", "time of a run", _whole, lambda v: duration(v * 1e3)),
        h("g", _levels(frame, y, found), class_="levels"),
        h("g", (_mark(x(n + 1), y(s), n in found.outliers, n, s)
                for n, s in enumerate(found.samples)), class_="samples"),
    )  # fmt: skip


def _levels(frame: Frame, y: Scale, found: Latency) -> list[Html]:
    """Lines of the percentiles; of overlapping labels only the first."""
    right = frame.width - frame.right
    parts: list[Html] = []
    used: list[float] = []
    for name in ("p50", "p99", "p90"):
        if name not in found.percentiles:
            continue
        at = y(found.percentiles[name])
        parts.append(h("line", x1=frame.left, x2=right, y1=at, y2=at))
        if all(abs(at - other) >= 12 for other in used):
            parts.append(text(right + 6, at + 4, name))
            used.append(at)
    return parts


def _mark(x: float, y: float, outlier: bool, number: int, ms: float) -> Html:
    label = f"sample {number + 1}: {duration(ms * 1e3)}" + (", an outlier" if outlier else "")
    if outlier:
        d = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        return h("g", h("title", label), h("path", d=d), class_="outlier")
    return h("g", h("title", label), h("circle", cx=x, cy=y, r=4))


def _line(width: float, of: Series, count: int) -> Html:
    frame = Frame(width, 170, left=70, right=64)
    values = [value for _, value in of.points]
    low, high = min(values), max(values)
    room = (high - low) * 0.15 or abs(high) * 0.05 or 1.0
    x, y = frame.x(0.5, count + 0.5), frame.y(low - room, high + room)
    points = [(x(n), y(value)) for n, value in of.points]
    digits: Callable[[float], str] = lambda v: f"{v:.2f}" if of.unit == "GHz" else f"{v:.3g}"  # noqa: E731
    return drawing(
        frame,
        f"{of.title} after each sample",
        axes(frame, x, y, "sample", f"{of.title}, {of.unit}", _whole, digits),
        h("path", d=path(points), class_="curve"),
        h("g", (h("circle", cx=px, cy=py, r=2.5) for px, py in points), class_="samples"),
    )


def _whole(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else ""
