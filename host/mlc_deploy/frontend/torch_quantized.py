"""Converters of quantized programs. torch's pt2e makes pairs of quantize and dequantize."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from ..ir import value_range
from .node import shape_of
from .torch_node import Converter, TorchNode


def _parameters(
    n: TorchNode, x: Value, scale: Any, zero: Any, stored: str, axis: int | None
) -> tuple[Value, Value]:
    """Scale and zero point in shapes that broadcast to x."""
    along = () if axis is None else (-1,) + (1,) * (len(shape_of(x)) - axis % len(shape_of(x)) - 1)
    values = []
    for given, dtype in ((scale, "float32"), (zero, stored)):
        if isinstance(given, Value) and not isinstance(given, Constant):
            raise n.refuse("a scale that is computed when the model runs is not supported")
        array = given.value if isinstance(given, Constant) else given
        values.append(n.constant(np.asarray(array).reshape(along), dtype))
    return values[0], values[1]


def _quantized(
    n: TorchNode, x: Value, scale: Any, zero: Any, axis: int | None, low: int, high: int
) -> Any:
    own = value_range(n.dtype)
    q = n.emit("quantize", x, *_parameters(n, x, scale, zero, n.dtype, axis))
    if (low, high) == own:
        return q
    return n.emit("clip", q, min=max(low, int(own[0])), max=min(high, int(own[1])))


def _dequantized(n: TorchNode, q: Value, scale: Any, zero: Any, axis: int | None) -> Any:
    """Constants stay quantized: integer operators take them as they are."""
    parameters = _parameters(n, q, scale, zero, q.type.dtype, axis)
    return n.tensor(n.call("dequantize", q, *parameters), n.dtype)


def _quantize_per_tensor(
    n: TorchNode, x: Any, scale: Any, zero: Any, low: int, high: int, *_: Any
) -> Any:
    return _quantized(n, x, scale, zero, None, low, high)


def _quantize_per_channel(
    n: TorchNode, x: Any, scales: Any, zeros: Any, axis: int, low: int, high: int, *_: Any
) -> Any:
    return _quantized(n, x, scales, zeros, axis, low, high)


def _dequantize_per_tensor(n: TorchNode, q: Any, scale: Any, zero: Any, *_: Any) -> Any:
    return _dequantized(n, q, scale, zero, None)


def _dequantize_per_channel(
    n: TorchNode, q: Any, scales: Any, zeros: Any, axis: int, *_: Any
) -> Any:
    zeros = np.zeros(shape_of(scales)) if zeros is None else zeros
    return _dequantized(n, q, scales, zeros, axis)


QUANTIZED: dict[str, Converter] = {
    f"quantized_decomposed.{converter.__name__[1:]}": converter
    for converter in (
        _quantize_per_tensor,
        _quantize_per_channel,
        _dequantize_per_tensor,
        _dequantize_per_channel,
    )
}
