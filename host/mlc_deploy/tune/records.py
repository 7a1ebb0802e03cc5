"""What passes between searching and measuring: tasks, candidates, and what came of them.

    search   candidates = search.propose(n)
    measure  each is built, run and checked, several at once, in any order
    search   search.tell([(candidate, measured), ...])   in the order they were proposed in

A search knows nothing of boards and a measurer nothing of spaces. What a search proposes depends on
its seed and on what it was told alone, so a run that was killed is gone through again over what the
database holds of it, and goes on where it was.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Literal, Protocol

from mlc_targets import Target

from ..ir import PrimFunc, structural_hash
from ..schedule.trace import Trace

if TYPE_CHECKING:
    from ..graph.lower import KernelSource

Objective = Literal["seconds", "instructions"]

# ok            it ran, and where its outputs were held against the reference they were right
# build_error   no object came of it: refused by a pass, or LLVM ended its process
# build_timeout no object came of it in the time that a build may take
# timeout       it ran for longer than it may
# crash         it ended its worker on the board, or the board, twice
# wrong         its outputs are not the reference's
# refused       the board does not take the object
Verdict = Literal["ok", "build_error", "build_timeout", "timeout", "crash", "wrong", "refused"]


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


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a candidate.

    seconds: of one call, a sample per repeat; instructions: executed by one call. Which of them the
    search minimises is the run's objective. `timing` is the verdict on the samples: ok, noisy,
    throttled, migrated or emulated. `message` says why there are none.
    """

    verdict: Verdict
    seconds: tuple[float, ...] = ()
    instructions: int | None = None
    timing: str = ""
    message: str = ""

    def cost(self, objective: Objective) -> float:
        """What is to be as small as possible; inf where the candidate is no good."""
        if self.verdict != "ok":
            return inf
        if objective == "instructions":
            return inf if self.instructions is None else float(self.instructions)
        return statistics.median(self.seconds) if self.seconds else inf


class Search(Protocol):
    """How candidates are found."""

    def propose(self, n: int) -> Sequence[Candidate]:
        """At most n candidates that were not proposed before; none when the space is exhausted."""

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """The costs of candidates, in the order they were proposed in; inf where one failed."""
