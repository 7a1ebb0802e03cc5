"""What came of measuring a candidate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import inf
from typing import Literal

Objective = Literal["seconds", "predicted", "instructions"]  # in the order that results count in

# ok            it ran, and where its outputs were held against the reference they were right
# build_error   no object came of it: refused by a pass, or LLVM ended its process
# build_timeout no object came of it in the time that a build may take
# timeout       it ran for longer than it may
# crash         it ended its worker on the board, or the board, twice
# wrong         its outputs are not the reference's
# refused       the board does not take the object
Verdict = Literal["ok", "build_error", "build_timeout", "timeout", "crash", "wrong", "refused"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a candidate.

    seconds: of one call, a sample per repeat, or what is predicted; instructions: executed by one
    call. Which of them the search minimises is the run's objective. `timing` is the verdict on the
    samples: ok, noisy, throttled, migrated, emulated or predicted. `message` says why there are
    none.
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
