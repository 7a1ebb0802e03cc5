"""Spaces: the schedules that a task may have.

A space is a program that schedules, and asks a chooser wherever there is more than one way. A point
of it is the list of what was chosen: run again with the same choices the program gives the same
schedule, with one of them changed a neighbour of it. The trace is what came of that, and replays
without the space.

    ScheduleFn       a function of the user's, that samples
    Default          how the task is scheduled untuned, with other numbers where it offers a choice
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
    """One choice of a point: the option that was taken, of those there were."""

    taken: Decision
    options: tuple[Decision, ...]


class Decider(Chooser):
    """Takes what is given, in order, as far as it is an option (else the nearest one); after that,
    by chance, or what a scheduling function would take by itself where `by_default`."""

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
        """The number of the option nearest to what is given for this choice; None where nothing of
        the kind is."""
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
        """The last choice that has another option takes it; those after it begin anew."""
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
        """A schedule of the task's function. Called where a chooser is in force, which decides.
        Raises ScheduleError where what was chosen is not possible."""


@dataclass(frozen=True, eq=False)
class Point(Candidate):
    """A candidate that knows how it came about."""

    choices: tuple[Choice, ...] = ()
    space: int = 0

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(c.taken for c in self.choices)


def point(
    space: DesignSpace, task: Task, chooser: Decider, number: int = 0, origin: str = ""
) -> Point:
    """What a space gives for these choices. Raises ScheduleError."""
    with deciding(chooser):
        sch = space.schedule(task)
    chooser.schedules.clear()
    return Point(sch.trace.simplified(), sch.func, origin, tuple(chooser.choices), number)


def every_point(space: DesignSpace, task: Task) -> Iterator[Odometer]:
    """A chooser for each point of a space, to be used before the next one is asked for."""
    odometer = Odometer()
    yield odometer
    while odometer.advance():
        yield odometer


def decisions_of(trace: Trace) -> tuple[Decision, ...]:
    """What was chosen on the way to a trace."""
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
    """A function that schedules, and samples; another schedule may be returned for the given."""

    function: Callable[[Schedule], Schedule | None]

    def schedule(self, task: Task) -> Schedule:
        sch = Schedule(task.func)
        return self.function(sch) or sch


@dataclass(frozen=True)
class Default:
    """How the task is scheduled untuned; the numbers of it that Schedule.choice offers vary."""

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
    """Rules in order, each applied to every block that there is, producers before consumers.

    A rule returns the schedule with the block scheduled, or as it was. Where there is more than one
    way it samples.
    """

    rules: Sequence[Rule] = DEFAULT_RULES

    def schedule(self, task: Task) -> Schedule:
        sch = Schedule(task.func)
        for rule in self.rules:
            for block in sch.get_blocks():
                if block in sch.get_blocks():  # not taken away by the rule meanwhile
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
    """The spaces that a space is the union of."""
    if isinstance(space, Union):
        return tuple(m for s in space.spaces for m in members(s))
    return (space,)


def default_space() -> DesignSpace:
    """What is searched where nothing is said: the default's neighbours, and all that rules make."""
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
