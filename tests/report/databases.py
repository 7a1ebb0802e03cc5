"""Results of tunings that nobody measured."""

from __future__ import annotations

from mlc_deploy.tuned import Measured, Record, pack


def tuned(cost: float, number: int, board: str = "pi", final: bool = False) -> Record:
    """A trial of a kernel, in seconds; one that crashed where the cost is 0."""
    measured = Measured("ok", (cost,)) if cost else Measured("crash", message="signal 11")
    return Record("conv2d", "w", "llvm", board, "seconds", "run", f"p{number}", pack("[]"),
                  measured, final)  # fmt: skip
