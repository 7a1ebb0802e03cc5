"""Reads the results of one call of a model, after a run that stopped there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.errors import Refused
from mlc_rpc.tensor import RemoteTensor, carrier
from mlc_targets.object_format import SPACES, Arg, Call, Kernel, Model

Tensors = Mapping[tuple[str, int], RemoteTensor]  # the model's, by space and index


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that stopped after iteration `turn` of a layer. `results`: the kernel's outputs of that
    iteration, by parameter name, in the kernel's own shapes and layouts."""

    layer: str
    kernel: str
    turn: int
    results: dict[str, NDArray[Any]]


def call_of(model: Model, layer: str, board: str) -> int:
    """The number of a layer's call. Raises Refused, with the nearest names."""
    names = [call.layer for call in model.calls]
    if layer in names:
        return names.index(layer)
    near = get_close_matches(layer, names, 5, 0.4) or names[:5]
    raise Refused(f"the model has no layer '{layer}'", board=board, attempt=", ".join(near))


def never(layer: str, turn: int, turns: int, board: str) -> Refused:
    """The error for an iteration that did not come; the layer ran `turns` times."""
    if turns == 0:
        return Refused(
            f"layer '{layer}' did not run: its loop had no iteration, or another branch was taken",
            board=board,
            attempt="other inputs, or a layer that these inputs reach",
        )
    often, last = (
        ("once", "0") if turns == 1 else (f"{turns} times", f"iterations 0 to {turns - 1}")
    )
    return Refused(
        f"layer '{layer}' ran {often}, so its iteration {turn} never came",
        board=board,
        attempt=last if turns > 1 else "iteration 0",
    )


def results_at(
    kernel: Kernel, call: Call, places: Sequence[int], tensors: Tensors
) -> dict[str, NDArray[Any]]:
    """The kernel's outputs by name. places: the offset of each operand in its memory. Raises
    ProtocolError for a place outside."""
    sizes = dict(zip(kernel.scalars, kernel.most, strict=False))
    scalars = len(kernel.params)
    for name, arg, at in zip(kernel.scalars, call.args[scalars:], places[scalars:], strict=True):
        if SPACES[arg.space] != "weights":  # a constant scalar has its largest value
            sizes[name] = int(_read(tensors, arg, at, 8).view("<i8")[0])
    found: dict[str, NDArray[Any]] = {}
    for param, arg, at in zip(kernel.params, call.args, places, strict=False):
        if not param.output:
            continue
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in param.shape)
        own = carrier(param.dtype)
        data = _read(tensors, arg, at, math.prod(shape) * own.itemsize)
        found[param.name] = data.view(own).reshape(shape)
    return found


def _read(tensors: Tensors, arg: Arg, offset: int, size: int) -> NDArray[np.uint8]:
    tensor = tensors[SPACES[arg.space], arg.index]
    if not 0 <= size <= arg.size or offset + size > tensor.nbytes:
        raise tensor.link.broken(f"a result of {size} bytes lies at {offset}, outside", "run")
    return tensor.read_bytes(offset, size)
