"""The costs of layers, by the best figure in a record: measured time, else predicted time, else
executed instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .record import Run, duration

CLASSES = ("mac", "vector", "load", "store", "branch", "scalar")  # device_runtime/qemu_plugin


@dataclass(frozen=True, slots=True)
class Costs:
    """A figure of every layer. `title` names it; `share` gives a value's part of the total."""

    title: str
    values: Sequence[float]
    text: Callable[[float], str]
    predicted: bool = False

    @property
    def total(self) -> float:
        return sum(self.values)

    def share(self, value: float) -> float:
        return value / self.total if self.total else 0.0


def costs_of(run: Run) -> list[Costs]:
    """Every figure that is known of all layers, the best first."""
    found = []
    times = [layer.median_us for layer in run.layers]
    if run.timed and None not in times:
        found.append(Costs("time", [t or 0.0 for t in times], duration))
    expected = [layer.predicted_ms for layer in run.layers]
    if run.layers and None not in expected:
        micro = [(ms or 0.0) * 1e3 for ms in expected]
        found.append(Costs("predicted time", micro, duration, predicted=True))
    counts = [layer.instructions for layer in run.layers]
    if run.counted and None not in counts:
        found.append(Costs("executed instructions", [float(n or 0) for n in counts], grouped))
    return found


def grouped(n: float) -> str:
    return f"{n:,.0f}"


def percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")
