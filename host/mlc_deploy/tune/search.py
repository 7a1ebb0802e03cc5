"""Which schedules to measure next.

    evolutionary   neighbours of the best ones so far, and some by chance, the most promising by a
                   cost model; begins with the default schedule and with what is known of the task
    random         by chance alone; begins with the default schedule, too
    grid           every point of the space, in order
    replay         the known traces, in their order

No candidate is proposed twice, whatever way led to it: programs are compared, not traces. A search
is deterministic: what it proposes follows from its seed and from what it was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from random import Random
from typing import Any

from ..errors import MlcError, TuneError
from ..schedule import Schedule
from ..schedule.trace import Trace
from .cost_model import CostModel, TreeModel
from .features import Vector, features
from .mutate import crossed, mutated
from .postproc import why_not
from .records import KNOWN, Candidate, Search, Task
from .space import (
    Decider,
    Decision,
    Default,
    DesignSpace,
    Point,
    ScheduleFn,
    decisions_of,
    default_candidate,
    default_space,
    every_point,
    members,
    point,
)

KINDS = ("evolutionary", "random", "grid", "replay")
NEW = 1.75  # schedules that are made for each one that is proposed
WAITING = 64  # made and not proposed: later they may be the best
PARENTS = 24  # so many of the best have children
GREEDY_EARLY = 0.5  # the same, before there is much to learn from
GREEDY = 0.85  # share of a batch that the model picks; the rest is left to chance
GENERATIONS = 2
FRESH = 0.25  # share of random points among those that are made; the rest are children
CROSSED = 0.1  # share of children with two parents
DECAY = 0.9  # how much less likely a parent is than the next better one
REMEMBERED = 512  # children that need not be scheduled again
IN_VAIN = 24  # tries after which a space counts as exhausted
RANDOM_FIRST = 16  # results before which all is random, if the model is untrained
MOST_KNOWN = 8  # known traces that are measured again


class _Base:
    """Points that are possible and were not proposed before."""

    def __init__(self, task: Task, space: DesignSpace, seed: int) -> None:
        self.task = task
        self.random = Random(seed)
        self.seen: set[str] = set()
        self.spaces: list[DesignSpace] = []
        self.untuned: Point | None = None  # the default schedule, where the space holds it
        self.refused: MlcError | None = None  # the error of the last impossible point
        for member in members(space):
            if isinstance(member, Default):
                self.untuned = default_candidate(task, len(self.spaces))
                if self.untuned is None:
                    continue
            self.spaces.append(member)

    def made(self, number: int, chooser: Decider, origin: str) -> Point | None:
        """A point of space `number`, if it is possible and has not been seen."""
        try:
            found = point(self.spaces[number], self.task, chooser, number, origin)
        except MlcError as error:
            self.refused = error
            return None
        if why_not(found.func, self.task.target) is not None:
            return None
        return self.unseen(found)

    def unseen(self, found: Point) -> Point | None:
        """The point, which then counts as seen; None where its program was seen before."""
        if found.program in self.seen:
            return None
        self.seen.add(found.program)
        return found

    def by_chance(self) -> Point | None:
        if not self.spaces:
            return None
        number = self.random.randrange(len(self.spaces))
        return self.made(number, Decider(Random(self.random.getrandbits(64))), "random")

    def any_of(self, found: Sequence[Candidate]) -> list[Candidate]:
        """The candidates. Raises TuneError where a user's space has not given any yet."""
        own = self.spaces and all(isinstance(s, ScheduleFn) for s in self.spaces)
        if own and not self.seen and self.refused is not None:
            raise TuneError(
                "no schedule of the space is possible",
                where=f"task '{self.task.name}': {self.refused.what}",
                mend="the space's function on a Schedule of the task's function, by itself",
            )
        return list(found)

    def first(self) -> list[Point]:
        """The default schedule, whatever the checks say of it."""
        if self.untuned is None or self.untuned.program in self.seen:
            return []
        self.seen.add(self.untuned.program)
        return [self.untuned]


def _several(n: int, make: Callable[[], Point | None]) -> list[Point]:
    """n results of make; fewer where it fails too often in a row."""
    found: list[Point] = []
    failed = 0
    while len(found) < n and failed < IN_VAIN:
        if (candidate := make()) is not None:
            found.append(candidate)
            failed = 0
        else:
            failed += 1
    return found


class RandomSearch(_Base):
    """Points by chance; the default first."""

    def __init__(self, task: Task, space: DesignSpace, seed: int) -> None:
        super().__init__(task, space, seed)
        self._begun = False

    def propose(self, n: int) -> list[Candidate]:
        found = [] if self._begun else self.first()
        self._begun = True
        return self.any_of([*found, *_several(n - len(found), self.by_chance)])

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        pass


class GridSearch(_Base):
    """All points of a space, one after the other."""

    def __init__(self, task: Task, space: DesignSpace, seed: int) -> None:
        super().__init__(task, space, seed)
        self._points = self._all()

    def propose(self, n: int) -> list[Candidate]:
        return self.any_of([found for _, found in zip(range(n), self._points, strict=False)])

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        pass

    def _all(self) -> Iterator[Candidate]:
        for number in range(len(self.spaces)):
            for chooser in every_point():
                if (found := self.made(number, chooser, "grid")) is not None:
                    yield found


class ReplaySearch:
    """The known traces of a task, in their order; nothing else."""

    def __init__(self, task: Task, known: Sequence[Trace]) -> None:
        self._left = iter(_replayed(task, known, "replay"))

    def propose(self, n: int) -> list[Candidate]:
        return [found for _, found in zip(range(n), self._left, strict=False)]

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        pass


def _replayed(task: Task, known: Sequence[Trace], origin: str) -> Iterator[Candidate]:
    """Candidates of traces that still apply, each program once."""
    seen: set[str] = set()
    for trace in known:
        sch = Schedule(task.func)
        try:
            trace.apply(sch)
        except MlcError:
            continue
        found = Candidate(sch.trace, sch.func, origin)
        if found.program not in seen:
            seen.add(found.program)
            yield found


@dataclass(frozen=True, slots=True)
class Member:
    """A measured point and what it cost."""

    point: Point
    cost: float


class EvolutionarySearch(_Base):
    """Evolution over choices: parents are the best measured points, children have one choice or two
    changed, and the cost model chooses which children are measured."""

    def __init__(
        self,
        task: Task,
        space: DesignSpace,
        seed: int,
        known: Sequence[Trace],
        model: CostModel,
    ) -> None:
        super().__init__(task, space, seed)
        self.model = model
        self.best: list[Member] = []
        self._told = 0
        self._known = known
        self._begun = False
        self._given: list[Point] = []  # proposed before all others
        self._pool: list[tuple[float, Point]] = []  # points not proposed, with scores
        self._vectors: dict[str, Vector] = {}  # of the pool, by program
        # programs of children; None for impossible ones, and for ones seen before
        self._tried: dict[tuple[int, tuple[Decision, ...]], str | None] = {}

    def propose(self, n: int) -> list[Candidate]:
        if not self._begun:
            self._begun = True
            self._given = self._first()
        first, self._given = self._given[:n], self._given[n:]
        return self.any_of([*first, *self._promising(n - len(first))])

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        self.model.learn(self.task.workload, [(self._vector(c), cost) for c, cost in results])
        for candidate, _ in results:
            self._vectors.pop(candidate.program)
        self._told += len(results)
        new = [Member(c, cost) for c, cost in results if isinstance(c, Point) and isfinite(cost)]
        self.best = sorted([*self.best, *new], key=lambda m: m.cost)[:PARENTS]

    def _first(self) -> list[Point]:
        """The default, then the best of the known traces that still apply."""
        found = self.first()
        for candidate in _replayed(self.task, self._known, KNOWN):
            if len(found) > MOST_KNOWN:
                break
            if candidate.program not in self.seen:
                self.seen.add(candidate.program)
                found.append(self._point_of(candidate))
        return found

    def _point_of(self, candidate: Candidate) -> Point:
        """A known trace as a point of the space that gives it, so that it can have neighbours."""
        decisions = decisions_of(candidate.trace)
        for number, space in enumerate(self.spaces):
            try:
                found = point(space, self.task, Decider(given=decisions), number, KNOWN)
            except MlcError:
                continue
            if found.program == candidate.program:
                return found
        return Point(candidate.trace, candidate.func, candidate.origin)

    def _child(self, parents: Sequence[Point]) -> Point | None:
        """A child of a parent; earlier parents are more likely."""
        if not parents:
            return self.by_chance()
        weights = [DECAY**rank for rank in range(len(parents))]
        parent = self.random.choices(parents, weights)[0]
        others = [p for p in parents if p.space == parent.space and p is not parent]
        decisions: tuple[Decision, ...] | None
        if others and self.random.random() < CROSSED:
            decisions = crossed(parent.choices, self.random.choice(others).choices, self.random)
            origin = "crossed"
        else:
            decisions = mutated(parent.choices, self.random)
            origin = "mutated"
        if decisions is None:
            return None
        key = (parent.space, decisions)
        if key in self._tried:  # scheduling takes longest here
            program = self._tried[key]
            if program is None or program in self.seen:
                return None
        chooser = Decider(Random(self.random.getrandbits(64)), decisions)
        found = self.made(parent.space, chooser, origin)
        self._tried[key] = None if found is None else found.program
        if len(self._tried) > REMEMBERED:
            del self._tried[next(iter(self._tried))]
        return found

    def _promising(self, n: int) -> list[Candidate]:
        """The best of the pool by the model, and a few others. Before that, the pool grows by
        random points and by generations of children: at first of the best measured points, then of
        the best of the pool."""
        early = self._told < RANDOM_FIRST and not self.model.trained
        size = round(NEW * n)
        made = self._think(size if early else round(size * FRESH), self.by_chance)
        parents = [m.point for m in self.best if m.point.choices]
        for generation in range(1, GENERATIONS + 1):
            wanted = size * generation // GENERATIONS - made
            made += self._think(wanted, partial(self._child, parents))
            parents = [p for _, p in self._pool[:PARENTS]]
        count = round(n * (GREEDY_EARLY if early else GREEDY))
        greedy = _distinct(self._pool)[:count]
        rest = [member for member in self._pool if member not in greedy]
        picked = [*greedy, *self.random.sample(rest, min(n - len(greedy), len(rest)))]
        left = [member for member in rest if member not in picked]
        self._pool = left[:WAITING]
        for _, dropped in left[WAITING:]:  # they may come again
            self.seen.discard(dropped.program)
            del self._vectors[dropped.program]
        return [p for _, p in picked]

    def _think(self, n: int, make: Callable[[], Point | None]) -> int:
        """Adds up to n points to the pool, scores all of it again, and gives the number of added
        points."""
        new = _several(n, make)
        points = [*(p for _, p in self._pool), *new]
        scores = self.model.scores([self._vector(p) for p in points])
        pool = [(float(score), p) for score, p in zip(scores, points, strict=True)]
        self._pool = sorted(pool, key=lambda member: -member[0])
        return len(new)

    def _vector(self, candidate: Candidate) -> Vector:
        if candidate.program not in self._vectors:
            self._vectors[candidate.program] = features(candidate.func, self.task.target)
        return self._vectors[candidate.program]


def _distinct(pool: Sequence[tuple[float, Point]]) -> list[tuple[float, Point]]:
    """Members in their order, but members with the score of an earlier one come last."""
    firsts: dict[float, Point] = {}
    for score, p in pool:
        firsts.setdefault(score, p)
    apart = [(score, p) for score, p in pool if firsts[score] is p]
    return [*apart, *((score, p) for score, p in pool if firsts[score] is not p)]


def make_search(
    kind: str,
    task: Task,
    space: DesignSpace | Callable[[Schedule], Schedule | None] | None = None,
    seed: int = 0,
    known: Sequence[Trace] = (),
    prior: Any = None,
) -> Search:
    """A search by its name.

    space: also a function that schedules and samples (default: the default's neighbours and all
    that rules make). known: traces of earlier runs, the best first; the evolutionary search
    measures the first of them again and goes on from them. prior: trees that its cost model begins
    with. Raises TuneError for another name, and where lightgbm is missing.
    """
    within: DesignSpace
    match space:
        case None:
            within = default_space()
        case _ if hasattr(space, "schedule"):
            within = space
        case _:
            within = ScheduleFn(space)
    match kind:
        case "evolutionary":
            return EvolutionarySearch(task, within, seed, known, TreeModel(seed, prior))
        case "random":
            return RandomSearch(task, within, seed)
        case "grid":
            return GridSearch(task, within, seed)
        case "replay":
            return ReplaySearch(task, known)
    raise TuneError(f"no search '{kind}'", mend=f"one of {', '.join(KINDS)}")
