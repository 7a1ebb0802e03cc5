"""What a graph holds: multiply-accumulates, parameters, operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ..ops import Attrs, TensorType
from ..ops.layout import layout
from ..ops.winograd import KERNEL
from .nodes import Binding, Call, CallFused, CallPacked, CallTIR, Constant, Function

# Operators that are sums of products, as layers' weights and data make them.
LAYERS = ("conv2d", "conv_nd", "dense", "matmul", "winograd_conv2d")


def multiply_accumulates(binding: Binding) -> int:
    """How many a call takes: of convolutions and matrix products; other arithmetic counts none.

    Borders of zeros count as data, Winograd's filtering as the convolution that it computes.
    TypeError where a shape is symbolic.
    """
    match binding.call:
        case Call(op, args, attrs) if op in LAYERS:
            types = [a.type for a in args]
            return _of_layer(op, types, attrs, binding.outputs[0].type)
        case CallFused(function):
            return sum(map(multiply_accumulates, function.bindings))
    return 0


def _of_layer(op: str, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> int:
    x, w = types[0], types[1]
    if op in ("dense", "matmul"):
        return out.elements * x.sizes[-1]
    sizes = _by_axis(w, attrs.get("kernel_layout", ""), "OI")
    window = math.prod(size for axis, size in sizes.items() if axis not in "OI")
    if op == "winograd_conv2d":
        window = KERNEL * KERNEL
    data = _by_axis(x, attrs.get("data_layout", ""), "NC")
    outputs = _by_axis(out, attrs.get("out_layout", attrs.get("data_layout", "")), "NC")
    channels = attrs.get("channels", outputs["C"])
    places = math.prod(size for axis, size in outputs.items() if axis != "C")
    per_output: int = window * (data["C"] // attrs.get("groups", 1))
    return int(places * channels) * per_output


def _by_axis(t: TensorType, name: str, first: str) -> dict[str, int]:
    """A tensor's size along each axis of its layout; without one, `first` and then the others."""
    shape = t.sizes
    order = layout(name).order if name else (*first, *(f"{k}" for k in range(len(shape) - 2)))
    sizes: dict[str, int] = {}
    for axis, extent in zip(order, shape, strict=True):
        sizes[axis] = sizes.get(axis, 1) * extent
    return sizes


def operators(function: Function) -> Counter[str]:
    """How often each operator or function is called, within kernels too."""
    return Counter(_names(function))


def _names(function: Function) -> Iterator[str]:
    for binding in function.bindings:
        match binding.call:
            case Call(op):
                yield op
            case CallTIR(func) | CallPacked(func):
                yield func
            case CallFused(inner):
                yield from _names(inner)


def constants(function: Function) -> list[Constant]:
    """The constants that a function reads, each once."""
    found = {a: None for b in function.bindings for a in b.call.args if isinstance(a, Constant)}
    found |= {v: None for v in function.outputs if isinstance(v, Constant)}
    return list(found)


def parameters(function: Function) -> int:
    """How many numbers the constants hold."""
    return sum(c.value.size for c in constants(function))
