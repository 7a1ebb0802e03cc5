"""Spaces: the schedules that a task may have.

A space is a scheduling program that asks a chooser wherever there is more than one way. A point is
the list of choices: the same choices give the same schedule again, and one changed choice gives a
neighbour. The resulting trace replays without the space.

    ScheduleFn       a user's function that samples
    Default          the task's untuned schedule, with other numbers where it offers a choice
    PostOrderApply   rules, applied to every block: no template is needed
    Union            several of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Protocol

from ..errors import MlcError, TuneError
from ..ir import PrimFunc, structural_hash
from ..schedule import Schedule
from ..schedule.sampling import Chooser, deciding, in_force
from ..schedule.trace import Trace, sampling_instructions
from .records import Candidate, Task
from .rules import DEFAULT_RULES, Rule

Decision = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a point: the option that was taken, and all options."""

    taken: Decision
    options: tuple[Decision, ...]


class Decider(Chooser):
    """Takes the given decisions in order, or the options nearest to them. After these it takes
    options by chance, or with by_default a scheduling function's own choices."""

    searches = True

    def __init__(
        self,
        random: Random | None = None,
        given: Sequence[Decision] = (),
        *,
        by_default: bool = False,
    ) -> None:
        super().__init__(random or Random(0))
        self._given = given
        self._by_default = by_default
        self.choices: list[Choice] = []
        self.schedules: list[Schedule] = []

    def choose(self, options: Sequence[Any], weights: Sequence[float] | None = None) -> int:
        near = self._nearest(options)
        return self._taken(options, super().choose(options, weights) if near is None else near)

    def prefer(self, options: Sequence[Any], default: int) -> int:
        near = self._nearest(options)
        if near is None:
            near = default if self._by_default else super().choose(options)
        return self._taken(options, near)

    def note(self, sch: Schedule) -> None:
        self.schedules.append(sch)

    def maker(self, func: PrimFunc) -> Schedule | None:
        return next((s for s in reversed(self.schedules) if s.func.body is func.body), None)

    def copy(self) -> Chooser:
        return self

    def _nearest(self, options: Sequence[Any]) -> int | None:
        """The number of the option nearest to the given decision; None where none of this kind is
        given."""
        if len(self.choices) >= len(self._given):
            return None
        wanted = _numbers(self._given[len(self.choices)])
        if len(_numbers(options[0])) != len(wanted):
            return None
        return min(
            range(len(options)),
            key=lambda n: sum(
                abs(a - b) for a, b in zip(_numbers(options[n]), wanted, strict=True)
            ),
        )

    def _taken(self, options: Sequence[Any], number: int) -> int:
        self.choices.append(Choice(options[number], tuple(options)))
        return number


class Odometer(Decider):
    """Goes through every point of a space, one per run: `advance` says whether there is another."""

    def __init__(self) -> None:
        super().__init__()
        self._digits: list[int] = []

    def choose(self, options: Sequence[Any], weights: Sequence[float] | None = None) -> int:
        place = len(self.choices)
        if place == len(self._digits):
            self._digits.append(0)
        return self._taken(options, self._digits[place])

    def prefer(self, options: Sequence[Any], default: int) -> int:
        return self.choose(options)

    def advance(self) -> bool:
        """The last choice that has another option takes it; later choices start over."""
        del self._digits[len(self.choices) :]
        while self._digits:
            last = len(self._digits) - 1
            if self._digits[last] + 1 < len(self.choices[last].options):
                self._digits[last] += 1
                break
            self._digits.pop()
        self.choices.clear()
        self.schedules.clear()
        return bool(self._digits)


def _numbers(decision: Decision) -> tuple[int, ...]:
    return decision if isinstance(decision, tuple) else (decision,)


class DesignSpace(Protocol):
    """A program that schedules a task."""

    def schedule(self, task: Task) -> Schedule:
        """A schedule of the task's function. Called while a chooser is in force. Raises
        ScheduleError for impossible choices."""


@dataclass(frozen=True, eq=False)
class Point(Candidate):
    """A candidate with the choices that made it."""

    choices: tuple[Choice, ...] = ()
    space: int = 0

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(c.taken for c in self.choices)


def point(
    space: DesignSpace, task: Task, chooser: Decider, number: int = 0, origin: str = ""
) -> Point:
    """The point of a space for these choices. Raises ScheduleError."""
    with deciding(chooser):
        sch = space.schedule(task)
    chooser.schedules.clear()
    return Point(sch.trace.simplified(), sch.func, origin, tuple(chooser.choices), number)


def every_point() -> Iterator[Odometer]:
    """A chooser for each point of a space, which must use it before it takes the next one."""
    odometer = Odometer()
    yield odometer
    while odometer.advance():
        yield odometer


def decisions_of(trace: Trace) -> tuple[Decision, ...]:
    """The decisions of a trace."""
    found: list[Decision] = []
    for _, i in sampling_instructions(trace):
        match i.name:
            case "sample_categorical":
                found.append(i.arguments["candidates"][i.decision])
            case "sample_perfect_tile":
                found.append(tuple(i.decision))
            case _:
                found.append(i.decision)
    return tuple(found)


@dataclass(frozen=True)
class ScheduleFn:
    """A function that schedules and samples. It may return another schedule than the given one."""

    function: Callable[[Schedule], Schedule | None]

    def schedule(self, task: Task) -> Schedule:
        sch = Schedule(task.func)
        return self.function(sch) or sch


@dataclass(frozen=True)
class Default:
    """The task's untuned schedule, with variations of the numbers that Schedule.choice offers."""

    def schedule(self, task: Task) -> Schedule:
        chooser = in_force()
        assert isinstance(chooser, Decider), "a space is used where a chooser is in force"
        made = chooser.maker(task.default(task.func))
        if made is None:
            raise TuneError(
                f"the default schedule of task '{task.name}' has no trace",
                mend="a default that works on a Schedule of the task's function",
            )
        return made


@dataclass(frozen=True)
class PostOrderApply:
    """Rules in order, each applied to every block, producers before consumers.

    A rule returns the schedule with the block scheduled, or as it was. Where there is more than one
    way it samples.
    """

    rules: Sequence[Rule] = DEFAULT_RULES

    def schedule(self, task: Task) -> Schedule:
        sch = Schedule(task.func)
        for rule in self.rules:
            for block in sch.get_blocks():
                if block in sch.get_blocks():  # the rule may have removed it meanwhile
                    sch = rule(sch, block, task.target)
        return sch


@dataclass(frozen=True)
class Union:
    """All points of several spaces."""

    spaces: tuple[DesignSpace, ...]

    def schedule(self, task: Task) -> Schedule:
        chooser = in_force()
        assert chooser is not None, "a space is used where a chooser is in force"
        return self.spaces[chooser.choose(range(len(self.spaces)))].schedule(task)


def members(space: DesignSpace) -> tuple[DesignSpace, ...]:
    """The spaces of a union; another space alone."""
    if isinstance(space, Union):
        return tuple(m for s in space.spaces for m in members(s))
    return (space,)


def default_space() -> DesignSpace:
    """The space where none is given: the default's neighbours, and all that rules make."""
    return Union((Default(), PostOrderApply()))


def default_candidate(task: Task, number: int = 0) -> Point | None:
    """The default schedule as a point of Default; None where no trace on the task's function gives
    it. number: of that space among others."""
    try:
        found = point(Default(), task, Decider(by_default=True), number, "default")
        replayed = Schedule(task.func)
        found.trace.apply(replayed)
    except MlcError:
        return None
    return found if structural_hash(replayed.func) == found.program else None
