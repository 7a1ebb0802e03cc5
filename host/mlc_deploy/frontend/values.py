"""Inputs whose values are known when a model is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ShapeError
from ..graph.bind import bind_params
from ..graph.nodes import Function
from .refusals import refuse_unknown_inputs

Array = NDArray[Any]


def with_values(function: Function, values: Mapping[str, Any], where: str) -> Function:
    """function with some inputs replaced by constants. Raises ShapeError."""
    types = {p.name: p.type for p in function.params}
    refuse_unknown_inputs(values, types, "model", where)
    known = {
        name: fitted(name, value, types[name].dtype, types[name].shape, where)
        for name, value in values.items()
    }
    return bind_params(function, known) if known else function


def fitted(name: str, value: Any, dtype: str, shape: Sequence[object] | None, where: str) -> Array:
    """The value of an input in its dtype. One number fills a known shape. Raises ShapeError if the
    dtype cannot hold the value, or the shape differs."""
    array = np.asarray(value)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    exact = np.dtype(dtype).kind == "f" and array.dtype.kind in "fiub"
    if not exact and not np.array_equal(cast, array):
        raise ShapeError(f"input '{name}' is {dtype}, which cannot hold {array}", where=where)
    extents = None if shape is None else [d for d in shape if isinstance(d, int)]
    if extents is None or shape is None or len(extents) != len(shape):
        return cast
    if cast.size == 1 and cast.shape != tuple(extents):
        return np.full(extents, cast.reshape(()))
    if cast.shape != tuple(extents):
        raise ShapeError(
            f"input '{name}' is {dtype}{extents}, and the value given has the shape "
            f"{list(cast.shape)}",
            where=where,
            mend="one number for all elements, or an array of that shape",
        )
    return cast
