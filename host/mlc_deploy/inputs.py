"""Inputs for a model that was given none: drawn from a seed, as its dtypes and uses ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .graph import Call, Function, TensorType, Var
from .ops.shape import VIEWS

Array = NDArray[Any]

SEED = 0
SMALL = 16  # integers that are no indices lie within [-SMALL, SMALL), unsigned ones from 0
INDEX_KEEPING = {*VIEWS, "cast", "copy"}  # what gives indices when it gets them


def draw(function: Function, name: str, seed: int = SEED) -> Array:
    """An input of the function by name: floats in [-1, 1), small integers, indices in range.

    The same for a seed, a name and a type whatever other inputs there are.
    """
    param = next(p for p in function.params if p.name == name)
    rng = np.random.default_rng([seed, *name.encode()])
    shape, dtype = _shape(param.type), np.dtype(param.type.dtype)
    if dtype.kind == "f":
        return rng.uniform(-1, 1, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    extent = index_extent(function, param)
    low = -SMALL if dtype.kind == "i" and extent is None else 0
    return rng.integers(low, extent or SMALL, shape).astype(dtype)


def index_extent(function: Function, param: Var) -> int | None:
    """How many entries the parameter may index, where it is an index; None where it is none."""
    carried: set[object] = {param}
    extents: list[int] = []
    for binding in function.bindings:
        match binding.call:
            case Call("gather", (data, indices), attrs) if indices in carried:
                extents.append(int(_shape(data.type)[attrs["axis"]]))
            case Call(op, (source, *_)) if op in INDEX_KEEPING and source in carried:
                carried.update(binding.outputs)
    return min(extents, default=None)


def _shape(t: TensorType) -> tuple[int, ...]:
    """Of a model, which is static."""
    assert all(isinstance(extent, int) for extent in t.shape)
    return tuple(extent for extent in t.shape if isinstance(extent, int))
