"""What a task's outputs are to be: computed by numpy from what the task is stated as, so that no
kernel, the default one included, says of itself that it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Function, evaluate
from ..ir import Block, Const, PrimFunc, statements, walk
from ..ir.dtypes import numpy_dtype
from ..ir.interp import run
from .records import Task

Array = NDArray[Any]
MOST_INTERPRETED = 1 << 16  # turns of blocks; the interpreter takes about a second for them


@dataclass(frozen=True, slots=True)
class Reference:
    """A graph function of operators, or a function of loops, that computes outputs of inputs."""

    computes: Function | PrimFunc

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        match self.computes:
            case Function() as function:
                return list(evaluate(function, inputs).values())
            case func:
                return _interpreted(func, inputs)


def reference_of(task: Task) -> Reference | None:
    """The reference of a task; None where it would take too long."""
    if task.source is not None and isinstance(task.source.computes, Function):
        return Reference(task.source.computes)
    blocks = (s for s in statements(task.func.body) if isinstance(s, Block))
    turns = sum(prod(_extent(i.extent) for i in b.iters) for b in blocks)
    return Reference(task.func) if turns <= MOST_INTERPRETED else None


def written(func: PrimFunc) -> set[Any]:
    """The buffers that a function writes."""
    return {r.buffer for n in walk(func.body) if isinstance(n, Block) for r in n.writes}


def _interpreted(func: PrimFunc, inputs: Sequence[Array]) -> list[Array]:
    given, outputs, made = iter(inputs), written(func), []
    arrays = []
    for buffer in func.buffers:
        if buffer in outputs:
            shape = [_extent(n) for n in buffer.shape]
            made.append(np.zeros(shape, numpy_dtype(buffer.dtype)))
        arrays.append(made[-1] if buffer in outputs else next(given))
    run(func, *arrays)
    return made


def _extent(extent: Any) -> int:
    return int(extent.value if isinstance(extent, Const) else extent)
