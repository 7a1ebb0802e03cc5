"""Templates in AutoTVM's manner: named splits and knobs, on the same sampling primitives.

    @template
    def matmul(cfg: Config, sch: Schedule) -> None:
        i, j, k = sch.get_loops("C")
        cfg.define_split("tile_j", j, num_outputs=2)
        cfg.define_knob("unroll", [1, 2, 4])
        j0, j1 = cfg["tile_j"].apply(j)
        ...

A template is a space like any other.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import TuneError
from ..schedule import LoopRV, SampledInt, Schedule
from .space import ScheduleFn


@dataclass(frozen=True, slots=True)
class Split:
    """A loop's sizes, outermost first."""

    sch: Schedule
    size: Sequence[SampledInt]

    def apply(self, loop: str) -> list[LoopRV]:
        """Splits a loop by these sizes."""
        return self.sch.split(loop, self.size)


@dataclass(frozen=True, slots=True)
class Knob:
    """One of several numbers."""

    val: SampledInt


E = TypeVar("E", Split, Knob)


class Config:
    """The splits and knobs of a template so far, by name."""

    def __init__(self, sch: Schedule) -> None:
        self._sch = sch
        self._entities: dict[str, Split | Knob] = {}

    def define_split(
        self, name: str, loop: str, num_outputs: int = 2, max_factor: int | None = None
    ) -> Split:
        """Sizes whose product is the loop's extent, the innermost at most max_factor."""
        extent = int(self._sch.loop(loop).extent)  # type: ignore[call-overload]
        sizes = self._sch.sample_perfect_tile(loop, num_outputs, max_factor or extent)
        return self._defined(name, Split(self._sch, sizes))

    def define_knob(self, name: str, candidates: Sequence[int]) -> Knob:
        """One of the candidates, all equally likely."""
        value = self._sch.sample_categorical(list(candidates), [1.0] * len(candidates))
        return self._defined(name, Knob(value))

    def _defined(self, name: str, entity: E) -> E:
        if name in self._entities:
            raise TuneError(f"the template defines '{name}' twice", mend="a name for each")
        self._entities[name] = entity
        return entity

    def __getitem__(self, name: str) -> Any:
        """The split or knob of that name; TuneError naming the nearest ones."""
        found = self._entities.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self._entities, 3) or sorted(self._entities)
            raise TuneError(
                f"the template has not defined '{name}'", mend=f"one of {', '.join(near)}"
            )
        return found


def template(function: Callable[[Config, Schedule], None]) -> ScheduleFn:
    """The space of a function that defines splits and knobs, and schedules by them."""

    def schedule(sch: Schedule) -> None:
        function(Config(sch), sch)

    return ScheduleFn(schedule)
