"""What passes between searching and measuring: tasks and candidates.

    search   candidates = search.propose(n)
    measure  each is built, run and checked, several at once, in any order
    search   search.tell([(candidate, measured), ...])   in the order they were proposed in

A search knows nothing of boards and a measurer nothing of spaces. What a search proposes depends on
its seed and on what it was told alone, so a run that was killed is gone through again over what the
database holds of it, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from mlc_targets import Target

from ..graph.lower import KernelSource
from ..ir import PrimFunc, structural_hash
from ..schedule.trace import Trace


@dataclass(frozen=True, eq=False)
class Task:
    """A kernel to be tuned for a target.

    `func` computes it and carries no schedule; `default(func)` is how it is scheduled untuned.
    `weight` is how often the model calls it. `source` is what the graph says of it, where it comes
    from one.
    """

    name: str
    func: PrimFunc
    target: Target
    default: Callable[[PrimFunc], PrimFunc]
    weight: int = 1
    source: KernelSource | None = None
    flops: float = 0.0  # of one call; 0 where nothing is multiplied

    @cached_property
    def workload(self) -> str:
        """The same for programs that compute the same, whatever names they give to it."""
        return structural_hash(self.func)


KNOWN = "known"  # the origin of what an earlier run found


@dataclass(frozen=True, eq=False)
class Candidate:
    """One schedule of a task: `func` is what `trace`, replayed on the task's function, gives,
    without anything else being done to it. `origin` says where a search got it from, in a word."""

    trace: Trace
    func: PrimFunc
    origin: str = ""

    @property
    def is_trial(self) -> bool:
        """Whether it counts as one: what an earlier run found is measured on top of them."""
        return self.origin != KNOWN

    @cached_property
    def program(self) -> str:
        """The same for traces that lead to the same program."""
        return structural_hash(self.func)


class Search(Protocol):
    """How candidates are found."""

    def propose(self, n: int) -> Sequence[Candidate]:
        """At most n candidates that were not proposed before; none when the space is exhausted."""

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """The costs of candidates, in the order they were proposed in; inf where one failed."""
