"""Inputs for a model that was given none: drawn from a seed, as its dtypes and uses ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..graph import Function, Var

Array = NDArray[Any]

SEED = 0
SMALL = 16  # integers that are no indices lie within [-SMALL, SMALL), unsigned ones from 0


def draw(
    name: str, shape: Sequence[int], dtype: str, extent: int | None = None, seed: int = SEED
) -> Array:
    """An input by name: floats in [-1, 1), small integers; indices below `extent`.

    The same for a seed, a name and a type whatever other inputs there are.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    to = np.dtype(dtype)
    if to.kind == "f":
        return rng.uniform(-1, 1, shape).astype(to)
    if to.kind == "b":
        return rng.integers(0, 2, shape).astype(to)
    low = -SMALL if to.kind == "i" and extent is None else 0
    return rng.integers(low, extent or SMALL, shape).astype(to)


def index_extents(function: Function) -> Mapping[str, int]:
    """How many entries each parameter that is an index may index, by name."""
    found = {p.name: index_extent(function, p) for p in function.params}
    return {name: extent for name, extent in found.items() if extent is not None}


def index_extent(function: Function, param: Var) -> int | None:
    """How many entries the parameter may index, where it is an index; None where it is none."""
    from ..graph import Call  # here, since saved models are drawn for without the compiler
    from ..ops.shape import VIEWS

    keeping = {*VIEWS, "cast", "copy"}  # what gives indices when it gets them
    carried: set[object] = {param}
    extents: list[int] = []
    for binding in function.bindings:
        match binding.call:
            case Call("gather", (data, indices), attrs) if indices in carried:
                extents.append(data.type.sizes[attrs["axis"]])
            case Call(op, (source, *_)) if op in keeping and source in carried:
                carried.update(binding.outputs)
    return min(extents, default=None)
