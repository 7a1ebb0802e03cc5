"""Dynamic extents: derived from the inputs' shapes, then applied to the outputs.

On the board a tensor has room for its largest shape. The elements of its true shape come first,
densely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.tensor import RemoteTensor
from mlc_targets.object_format import Model, Param

Array = NDArray[Any]
NONE: Mapping[str, Sequence[int]] = MappingProxyType({})


def extents_of(model: Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """The extents that are inputs of the model, by name, read from the shapes of its other inputs.
    Raises ValueError for inputs that contradict each other or are too large."""
    found: dict[str, int] = {}
    for param in model.inputs:
        if not param.open:
            continue
        shape = shapes[param.name]
        what = f"input '{param.name}' is {list(shape)}, the model takes {param}"
        if len(shape) != len(param.shape):
            raise ValueError(what)
        for size, most, name in zip(shape, param.shape, param.open, strict=True):
            if name and size > int(most):
                raise ValueError(f"{what}, with {name} <= {most}")
            if found.setdefault(name, size) != size and name:
                raise ValueError(f"{what}, with {name} = {found[name]} by another input")
    wanted = [p.name for p in model.inputs if p.name in model.extents]
    return {name: np.array(found[name], np.int64) for name in wanted}


def stored(
    model: Model, inputs: Mapping[str, Array], staying: Mapping[str, Sequence[int]] = NONE
) -> dict[str, Array]:
    """The arrays to write to the board: inputs padded to their largest shape, and the extents.
    `staying`: shapes of the inputs that are not written again. Raises ValueError as extents_of."""
    shapes = {**staying, **{name: np.shape(array) for name, array in inputs.items()}}
    given = {**inputs, **extents_of(model, shapes)}
    return {
        p.name: _filled_up(p, np.asarray(given[p.name])) for p in model.inputs if p.name in given
    }


def _filled_up(param: Param, array: Array) -> Array:
    shape = tuple(map(int, param.shape))
    if not param.open or array.shape == shape or not fits(param, array.shape):
        return array  # a wrong shape is refused later, by `write`
    whole = np.zeros(math.prod(shape), array.dtype)
    whole[: array.size] = array.reshape(-1)
    return whole.reshape(shape)


def fits(param: Param, shape: Sequence[int]) -> bool:
    """Whether an input or output may have this shape."""
    if len(shape) != len(param.shape):
        return False
    names = param.open or ("",) * len(shape)
    sizes = zip(shape, param.shape, names, strict=True)
    return all(size <= int(most) if name else size == most for size, most, name in sizes)


def results_of(
    model: Model,
    tensors: Mapping[str, RemoteTensor],
    read: Callable[[RemoteTensor, Sequence[int]], Array] = RemoteTensor.numpy,
) -> dict[str, Array]:
    """The outputs of a run in their true shapes. `tensors`: the inputs and outputs on the board, by
    name. `read` gives a tensor's first elements in a shape. Raises ProtocolError for an extent out
    of range."""
    sizes: dict[str, int] = {}
    for name in model.extents:
        if name in tensors:
            sizes[name] = size = int(read(tensors[name], ()))
            if not 0 <= size <= model.extents[name]:
                raise tensors[name].link.broken(f"extent '{name}' is {size}", "tensor.read")
    return {
        name: read(tensors[name], true_shape(p, sizes))
        for name, p in model.results.items()
        if name in tensors
    }


def true_shape(param: Param, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an output, given the extents by name."""
    if not param.open:
        return tuple(map(int, param.shape))
    pairs = zip(param.shape, param.open, strict=True)
    return tuple(sizes[name] if name else int(most) for most, name in pairs)
