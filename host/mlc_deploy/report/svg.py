"""Drawings: scales, axes, and the two sizes of each drawing.

Text in a drawing has the size of the text around it only if the drawing is not scaled. So each is
drawn twice, and the style sheet shows the one that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .markup import Content, Html, h, join

WIDE, NARROW = 1060.0, 340.0  # pixels; the style sheet switches at 760


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `begin` to `end`; log: logarithmically."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, 1e-300)) if self.log else value
        share = (at - low) / (high - low) if high > low else 0.5
        return self.begin + (self.end - self.begin) * share

    def ticks(self, most: int = 6) -> list[float]:
        """At most `most` round values within the scale."""
        if self.log:
            begin, end = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            every = [10.0**n for n in range(begin, end + 1)]
            if len(every) <= 3:
                every = [step * ten for ten in every for step in (1, 2, 5)]
            inside = [t for t in every if self.low <= t <= self.high]
            if len(inside) >= 2:
                return inside[:: -(-len(inside) // most)]
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        rough = span / most
        ten = 10.0 ** math.floor(math.log10(rough))
        step = next(ten * n for n in (1, 2, 2.5, 5, 10) if ten * n >= rough * 0.999)
        index = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - index + 1
        return [step * (index + n) for n in range(max(count, 0))]


@dataclass(frozen=True, slots=True)
class Frame:
    """A drawing's size and margins; the plot is within the margins."""

    width: float
    height: float
    left: float = 62
    right: float = 14
    top: float = 14
    bottom: float = 44

    @property
    def narrow(self) -> bool:
        return self.width < 600

    def x(self, low: float, high: float, log: bool = False) -> Scale:
        return Scale(low, high, self.left, self.width - self.right, log)

    def y(self, low: float, high: float, log: bool = False) -> Scale:
        return Scale(low, high, self.height - self.bottom, self.top, log)


def both(draw: Callable[[float], Html]) -> Html:
    """A drawing in its two sizes."""
    return join(h("div", draw(WIDE), class_="wide"), h("div", draw(NARROW), class_="narrow"))


def drawing(frame: Frame, label: str, *content: Content) -> Html:
    return h(
        "svg", *content, viewBox=f"0 0 {frame.width:g} {frame.height:g}", role="img",
        aria_label=label, class_="drawing",
    )  # fmt: skip


def text(x: float, y: float, content: str, **attributes: str | float | None) -> Html:
    return h("text", content, x=x, y=y, **attributes)


def axes(
    frame: Frame, x: Scale, y: Scale, x_title: str, y_title: str,
    x_text: Callable[[float], str], y_text: Callable[[float], str],
) -> Html:  # fmt: skip
    """The axes with values and titles. Ticks across whose text is empty are left out."""
    base, right = frame.height - frame.bottom, frame.width - frame.right
    parts = [
        join(
            h("line", x1=frame.left, x2=right, y1=y(t), y2=y(t), class_="grid"),
            text(frame.left - 7, y(t) + 4, y_text(t), text_anchor="end"),
        )
        for t in y.ticks(5)
    ]
    ticks = [t for t in x.ticks(4 if frame.narrow else 9) if x_text(t)]
    parts += [
        join(
            h("line", x1=x(t), x2=x(t), y1=base, y2=base + 4, class_="axis"),
            text(x(t), base + 18, x_text(t), text_anchor="middle"),
        )
        for t in ticks
    ]
    return h(
        "g",
        *parts,
        h("line", x1=frame.left, x2=right, y1=base, y2=base, class_="axis"),
        text((frame.left + right) / 2, frame.height - 6, x_title, text_anchor="middle",
             class_="title"),
        text(0, 0, y_title, text_anchor="middle", class_="title",
             transform=f"translate(13 {(frame.top + base) / 2:.0f}) rotate(-90)"),
        class_="axes",
    )  # fmt: skip


def steps(points: Sequence[tuple[float, float]], end: float) -> str:
    """A path that keeps each height until the next point, and the last until `end`."""
    if not points:
        return ""
    first, *rest = points
    path = f"M{first[0]:.1f} {first[1]:.1f}"
    return path + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest) + f"H{end:.1f}"


def path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def cut(content: str, pixels: float, size: float = 7.0) -> str:
    """Text that fits: letters are about `size` wide."""
    most = max(int(pixels / size), 1)
    return content if len(content) <= most else content[: max(most - 1, 1)] + "…"
