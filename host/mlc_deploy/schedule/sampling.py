"""A tuner's choices: tile sizes, categories, places to compute at. Random by a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any

from ..errors import ScheduleError
from ..ir import Const, For, PrimFunc
from .tree import find_loop, loop_at, refuse

if TYPE_CHECKING:
    from .schedule import Schedule


LONGEST = 1 << 31  # iterations of a loop to tile: divisors are tried up to the root


class Chooser:
    """Decides at the sampling primitives: here by chance, from a seed.

    Subclasses decide in other ways. One that `searches` also decides in Schedule.choice.
    """

    searches = False

    def __init__(self, random: Random | None = None) -> None:
        self.random = random or Random()

    def choose(self, options: Sequence[Any], weights: Sequence[float] | None = None) -> int:
        """The number of the chosen option, by weights (None: all equal)."""
        if weights is None:
            return self.random.randrange(len(options))
        return self.random.choices(range(len(options)), weights)[0]

    def prefer(self, options: Sequence[Any], default: int) -> int:
        """As choose, where a scheduling function would take option number `default`."""
        return default

    def note(self, sch: Schedule) -> None:
        """Called with each schedule that asks this chooser."""

    def maker(self, func: PrimFunc) -> Schedule | None:
        """The schedule that made the function, where the chooser knows one."""
        return None

    def copy(self) -> Chooser:
        """A chooser with the same choices to come."""
        other = Chooser()
        other.random.setstate(self.random.getstate())
        return other


_IN_FORCE: ContextVar[Chooser | None] = ContextVar("chooser", default=None)


@contextmanager
def deciding(chooser: Chooser) -> Iterator[None]:
    """Schedules that are made without a seed meanwhile ask this chooser."""
    token = _IN_FORCE.set(chooser)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def in_force() -> Chooser | None:
    """The chooser of `deciding`; None outside of it."""
    return _IN_FORCE.get()


@lru_cache(maxsize=1024)
def factorizations(extent: int, n: int, max_innermost: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write extent as a product of n factors, the last at most max_innermost."""
    if n == 1:
        return ((extent,),) if extent <= max_innermost else ()
    found: list[tuple[int, ...]] = []
    for last in _divisors(extent):
        if last <= max_innermost:
            found.extend((*rest, last) for rest in factorizations(extent // last, n - 1, extent))
    return tuple(found)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def perfect_tile(
    func: PrimFunc,
    chooser: Chooser,
    loop: str,
    n: int,
    max_innermost_factor: int,
    decision: Sequence[int] | None,
) -> list[int]:
    """n factors whose product is the loop's extent; all factorizations are equally likely."""
    primitive = "sample_perfect_tile"
    target = loop_at(find_loop(func, loop, primitive))
    if not isinstance(target.extent, Const):
        refuse(primitive, f"loop '{loop}' has extent {target.extent}, no constant", target)
    extent = int(target.extent)
    if extent > LONGEST:
        refuse(
            primitive,
            f"loop '{loop}' has {extent} iterations, too many to choose factors of",
            target,
        )
    if n < 1:
        refuse(primitive, f"{n} factors of loop '{loop}'", target)
    if decision is not None:
        return _decided(target, extent, n, decision)
    choices = factorizations(extent, n, max_innermost_factor)
    if not choices:  # only when n is 1 and the loop is longer than the factor may be
        return [extent]
    return list(choices[chooser.choose(choices)])


def _decided(target: For, extent: int, n: int, decision: Sequence[int]) -> list[int]:
    """A given decision. If it was made for another extent, its inner factors are kept as far as
    they divide."""
    if len(decision) != n:
        refuse(
            "sample_perfect_tile",
            f"decision {list(decision)} has {len(decision)} factors, {n} are asked for",
            target,
        )
    inner: list[int] = []
    left = extent
    for wanted in reversed(decision[1:]):
        factor = max(d for d in _divisors(left) if d <= max(int(wanted), 1))
        inner.insert(0, factor)
        left //= factor
    return [left, *inner]


def categorical(
    chooser: Chooser, candidates: Sequence[int], probs: Sequence[float], decision: int | None
) -> int:
    """The number of the chosen candidate."""
    primitive = "sample_categorical"
    if not candidates or len(candidates) != len(probs):
        refuse(primitive, f"{len(candidates)} candidates with {len(probs)} probabilities")
    if decision is not None:
        if not 0 <= decision < len(candidates):
            refuse(primitive, f"decision {decision} of {len(candidates)} candidates")
        return decision
    return chooser.choose(candidates, probs)


def compute_location(
    sch: Schedule, block: str, chooser: Chooser, decision: int | None
) -> tuple[int, str | None]:
    """(number, loop) of the place to compute a block at: one of its first consumer's loops that
    compute_at accepts, -1 for where it stands, -2 for inlined."""
    trial = sch.copy()
    consumers = trial.get_consumers(block)
    loops = trial.get_loops(consumers[0]) if consumers else []
    options = [-2, -1, *range(len(loops))]

    def allowed(n: int) -> bool:
        if n == -2:
            return _succeeds(sch.copy().compute_inline, block)
        return n == -1 or _succeeds(sch.copy().compute_at, block, loops[n])

    if decision is None:  # a place is tried only once it is chosen, since trying takes long
        while True:
            choice = options[chooser.choose(options)]
            if allowed(choice):
                break
            options.remove(choice)
    else:  # a decision made for another program: the nearest that is possible here
        near = sorted(options, key=lambda n: (abs(n - decision), n))
        choice = next(n for n in near if allowed(n))
    return choice, loops[choice] if choice >= 0 else None


def _succeeds(primitive: Callable[..., object], *args: str) -> bool:
    try:
        primitive(*args)
    except ScheduleError:
        return False
    return True
