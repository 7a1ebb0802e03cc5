"""The result of measuring a candidate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import inf
from typing import Literal

Objective = Literal["seconds", "predicted", "instructions"]  # the most trusted first

# ok            it ran, and its outputs were right if they were compared with the reference
# build_error   it was not compiled: a pass refused it, or LLVM ended the process
# build_timeout it was not compiled within the time for a build
# timeout       its run took too long
# crash         it ended its worker on the board, or the board, twice
# wrong         its outputs differ from the reference
# refused       the board refused the object
Verdict = Literal["ok", "build_error", "build_timeout", "timeout", "crash", "wrong", "refused"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a candidate.

    seconds: of one call, a sample per repeat, or a prediction; instructions: executed by one call.
    The objective says which of them the search minimises. `timing` is the verdict on the samples:
    ok, noisy, throttled, migrated, emulated or predicted. `message` says why there are no samples.
    """

    verdict: Verdict
    seconds: tuple[float, ...] = ()
    instructions: int | None = None
    timing: str = ""
    message: str = ""

    def cost(self, objective: Objective) -> float:
        """The number to minimise; inf for a bad candidate."""
        if self.verdict != "ok":
            return inf
        if objective == "instructions":
            return inf if self.instructions is None else float(self.instructions)
        return statistics.median(self.seconds) if self.seconds else inf
