"""Tasks and candidates, which pass between searching and measuring.

    search   candidates = search.propose(n)
    measure  each is built, run and checked, several at once, in any order
    search   search.tell([(candidate, measured), ...])   in the order they were proposed in

A search knows nothing of boards, and a measurer nothing of spaces. Proposals depend only on the
search's seed and on the results that it was told. So a killed run proposes the same again, takes
known results from the database, and goes on from there.
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

    func: the kernel without a schedule. default(func): with its untuned schedule. weight: how often
    the model calls it. source: its description in the graph, if it comes from one.
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
        """A hash, equal for programs that compute the same, whatever their names."""
        return structural_hash(self.func)


KNOWN = "known"  # the origin of candidates that an earlier run found


@dataclass(frozen=True, eq=False)
class Candidate:
    """One schedule of a task. func: the task's function after `trace`, and nothing else. origin:
    where a search got it from, in a word."""

    trace: Trace
    func: PrimFunc
    origin: str = ""

    @property
    def is_trial(self) -> bool:
        """Whether it counts as a trial: candidates of earlier runs are measured in addition."""
        return self.origin != KNOWN

    @cached_property
    def program(self) -> str:
        """A hash, equal for traces that lead to the same program."""
        return structural_hash(self.func)


class Search(Protocol):
    """How candidates are found."""

    def propose(self, n: int) -> Sequence[Candidate]:
        """At most n candidates that were not proposed before; none when the space is exhausted."""

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """The costs of candidates, in the order they were proposed in; inf where one failed."""
