"""Folding: the compiler computes calls of constants, and moves scales and biases into weights."""

from __future__ import annotations

import numpy as np

from ..ops import Array, operator
from ..passes.context import optional
from .constants import (
    along_channels,
    channel_axis,
    is_float,
    per_channel,
    same_dtype,
    with_constant,
)
from .nodes import Binding, Call, Constant, Function, Value, Var, substitute
from .rewrite import Rewriting, known_call, rewrite, two_constants


@optional(level=1)
def fold_constants(function: Function) -> Function:
    """A call of constants   =>   its value, unless it is larger than FOLD_LIMIT bytes."""

    def folded(binding: Binding, args: tuple[Value, ...]) -> dict[Var, Value] | None:
        if not isinstance(binding.call, Call):
            return None
        values = known_call(binding.call.op, args, binding.call.attrs)
        return None if values is None else dict(zip(binding.outputs, values, strict=True))

    return substitute(function, folded)


# ----------------------------------------------------------------------- normalization, dropout


@optional(level=1)
def simplify_inference(function: Function) -> Function:
    """batch_norm(x, scale, shift, mean, variance)   =>   x * factor + offset, both constants;
    copy(x)   =>   x: dropout and identity are copies outside of training."""
    return rewrite(function, (_batch_norm, _copy))


def _batch_norm(graph: Rewriting, out: Var, call: Call) -> Value | None:
    match call:
        case Call("batch_norm", (x, *parameters), attrs):
            known = [wide(p.value) for p in parameters if isinstance(p, Constant)]
            if len(known) < len(parameters):
                return None
            scale, shift, mean, variance = (
                p.reshape((-1,) + (1,) * (len(x.type.shape) - 2)) for p in known
            )
            with np.errstate(all="ignore"):
                factor = scale / np.sqrt(variance + variance.dtype.type(attrs["epsilon"]))
                offset = shift - mean * factor
            dtype = x.type.dtype
            scaled = graph.emit("multiply", x, Constant(factor.astype(dtype)))
            return graph.emit("add", scaled, Constant(offset.astype(dtype)))
    return None


def _copy(graph: Rewriting, out: Var, call: Call) -> Value | None:
    return call.args[0] if call.op == "copy" else None


# ---------------------------------------------------------------------------- scales and biases


@optional(level=2)
def fold_scale(function: Function) -> Function:
    """layer((x + a) * s) * t + b   =>   layer', with s and t in its weights and a in its bias.

    s and a are constants per input channel, t per output channel, or scalars. Nothing else may read
    the values in between.
    """
    return rewrite(
        function,
        (_scale_of_layer, _scale_of_bias, _bias_of_bias, _layer_of_scale, _layer_of_bias),
    )


def _layer(graph: Rewriting, value: Value) -> Call | None:
    """The layer with constant weights that computes the value, if it has only one reader."""
    call = graph.call_of(value, "products")
    if call is None or not graph.once(value) or not is_float(value):
        return None
    return call if _plain_weights(call) else None


def _scaled(call: Call) -> tuple[Value, Array] | None:
    """(x, s) of x * s or x / (1 / s), where s is constant."""
    match call:
        case Call("multiply", args):
            x, constant = with_constant(args)
            return None if constant is None else (x, wide(constant.value))
        case Call("divide", (x, Constant(divisor))) if is_float(x) and divisor.all():
            return x, 1 / wide(divisor)
    return None


def _weighed(w: Constant, factor: Array, axis: int) -> Constant:
    """Weights times one factor per element of an axis."""
    along = [1] * w.value.ndim
    along[axis] = -1
    return Constant(same_dtype(wide(w.value) * wide(factor).reshape(along), w.value), w.name)


def wide(x: Array) -> Array:
    """float16 as float32, so that a product of constants is rounded once."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _outputs_axis(layer: Call) -> int:
    """The axis of the outputs in the weights."""
    axes = operator(layer.op).output_axes
    assert axes is not None
    return axes(layer.attrs, len(layer.args[1].type.shape), len(layer.args[0].type.shape))[0]


def _scale_of_layer(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """layer(x, w) * s   =>   layer(x, w * s)"""
    found = _scaled(call)
    layer = _layer(graph, found[0]) if found else None
    if found is None or layer is None or found[0].type != out.type:
        return None
    factor = per_channel(Constant(found[1]), out.type)
    if factor is None:
        return None
    x, w = layer.args
    assert isinstance(w, Constant)
    weights = _weighed(w, factor, _outputs_axis(layer))
    return graph.emit(layer.op, x, weights, instead=found[0], **layer.attrs)


def _scale_of_bias(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """(layer(x, w) + b) * s   =>   layer(x, w) * s + b * s"""
    found = _scaled(call)
    biased = graph.call(found[0], "add") if found else None
    if found is None or biased is None or not graph.once(found[0]):
        return None
    y, bias = with_constant(biased.args)
    if bias is None or _layer(graph, y) is None or y.type != out.type:
        return None
    scale = Constant(same_dtype(found[1], bias.value))
    if per_channel(scale, out.type) is None:
        return None
    shift = same_dtype(wide(bias.value) * wide(found[1]), bias.value)
    scaled = graph.emit("multiply", y, scale)
    return graph.emit("add", scaled, Constant(shift, bias.name), instead=found[0])


def _bias_of_bias(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """(x + a) + b   =>   x + (a + b), for constants a and b"""
    found = two_constants(graph, out, call) if call.op == "add" else None
    if found is None:
        return None
    x, first, second, y = found
    total = same_dtype(wide(first.value) + wide(second.value), first.value)
    return graph.emit("add", x, Constant(total, first.name or second.name), instead=y)


def _layer_of_scale(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """layer(x * s, w)   =>   layer(x, s * w): zero padding stays zero."""
    if _plain_weights(call) is None:
        return None
    made = graph.call(call.args[0], "multiply", "divide")
    found = _scaled(made) if made and graph.once(call.args[0]) else None
    if found is None or found[0].type != call.args[0].type:
        return None
    x, factor = found
    channels = per_channel(Constant(factor), x.type)
    if channels is None:
        return None
    return graph.emit(call.op, x, _by_inputs(call, channels), **call.attrs)


def _by_inputs(layer: Call, factor: Array) -> Constant:
    """The layer's weights times one factor per input channel."""
    w = _plain_weights(layer)
    assert w is not None
    groups = layer.attrs.get("groups")
    if groups is None:  # a matrix
        return _weighed(w, factor, 1 - _outputs_axis(layer))
    outputs, inputs = w.value.shape[:2]
    of_output = np.repeat(wide(factor).reshape(groups, inputs), outputs // groups, axis=0)
    window = (1,) * (w.value.ndim - 2)
    scaled = wide(w.value) * of_output.reshape(outputs, inputs, *window)
    return Constant(same_dtype(scaled, w.value), w.name)


def _plain_weights(layer: Call) -> Constant | None:
    """The weights of a layer whose outputs are channels; None for other calls and weights."""
    axes = operator(layer.op).output_axes
    if axes is None or "kernel_layout" in layer.attrs:
        return None
    x, w = layer.args[:2]
    rank = len(x.type.shape)
    along = axes(layer.attrs, len(w.type.shape), rank)[1]
    plain = along == channel_axis(rank) and is_float(w)
    return w if plain and isinstance(w, Constant) else None


def _layer_of_bias(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """layer(x + a, w)   =>   layer(x, w) + sum(a * w), where the layer adds no zero padding"""
    if _plain_weights(call) is None or any(call.attrs.get("pads", ())):
        return None
    made = graph.call(call.args[0], "add")
    if made is None or not graph.once(call.args[0]):
        return None
    x, constant = with_constant(made.args)
    if constant is None or x.type != call.args[0].type:
        return None
    shift = per_channel(constant, x.type)
    if shift is None:
        return None
    weights = wide(_by_inputs(call, shift).value)
    kept = _outputs_axis(call)
    bias = weights.sum(tuple(axis for axis in range(weights.ndim) if axis != kept))
    rank = len(out.type.shape)
    constant = Constant(along_channels(bias, rank).astype(x.type.dtype))
    return graph.emit("add", graph.emit(call.op, x, call.args[1], **call.attrs), constant)
