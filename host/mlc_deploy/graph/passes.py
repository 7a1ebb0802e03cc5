"""Graph passes: each one function from a graph to a graph; PASSES is the order they run in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..ops import Array, frozen_attrs, infer_types
from ..ops import evaluate as evaluate_op
from ..ops.nn import wide
from ..pass_context import optional, run_passes
from .nodes import Binding, Call, Constant, Function, TensorType, Value, Var, substitute, uses
from .verify import verify

Pass = Callable[[Function], Function]

# Folding a constant larger than this would rather grow the weights than save time.
FOLD_LIMIT = 1 << 30


@optional(level=1)
def simplify_inference(function: Function) -> Function:
    """batch_norm(x, scale, shift, mean, variance)   =>   x * factor + offset, of constants."""
    bindings: list[Binding] = []
    for binding in function.bindings:
        bindings.extend(_without_batch_norm(binding))
    same = len(bindings) == len(function.bindings)
    return function if same else replace(function, bindings=tuple(bindings))


def _without_batch_norm(binding: Binding) -> Sequence[Binding]:
    match binding.call:
        case Call("batch_norm", (x, *parameters), attrs) if _constant(*parameters):
            scale, shift, mean, variance = (
                wide(p.value).reshape((-1,) + (1,) * (len(x.type.shape) - 2))
                for p in parameters
                if isinstance(p, Constant)
            )
            dtype = x.type.dtype
            with np.errstate(all="ignore"):
                factor = scale / np.sqrt(variance + variance.dtype.type(attrs["epsilon"]))
                offset = shift - mean * factor
            (out,) = binding.outputs
            scaled = Var(f"{out.name}.scaled", out.type)
            multiply = Call("multiply", (x, Constant(factor.astype(dtype))), {})
            add = Call("add", (scaled, Constant(offset.astype(dtype))), {})
            return (
                Binding((scaled,), multiply, binding.source),
                Binding((out,), add, binding.source),
            )
    return (binding,)


@optional(level=1)
def fold_constants(function: Function) -> Function:
    """A call of constants   =>   its value, unless that is larger than FOLD_LIMIT bytes."""

    def rewrite(binding: Binding, args: tuple[Value, ...]) -> dict[Var, Value] | None:
        if not isinstance(binding.call, Call):
            return None
        folded = fold_call(binding.call.op, args, binding.call.attrs)
        return None if folded is None else dict(zip(binding.outputs, folded, strict=True))

    return substitute(function, rewrite)


def fold_call(op: str, args: Sequence[Value], attrs: Any) -> tuple[Constant, ...] | None:
    """The outputs of an operator on constants; None where an argument is none or they are large."""
    if not _constant(*args):
        return None
    if sum(t.bytes for t in infer_types(op, [a.type for a in args], attrs)) > FOLD_LIMIT:
        return None
    arrays = [a.value for a in args if isinstance(a, Constant)]
    return tuple(Constant(array) for array in evaluate_op(op, arrays, frozen_attrs(attrs)))


def _constant(*values: Value) -> bool:
    return all(isinstance(v, Constant) for v in values)


@optional(level=2)
def fold_scale(function: Function) -> Function:
    """(conv(x, w) + b) * s + t   =>   conv(x, w * s) + (b * s + t), for constants per channel.

    Only where nothing else reads what lies between. dense likewise.
    """
    reads = uses(function)
    made: dict[Value, Binding] = {}

    def rewrite(binding: Binding, args: tuple[Value, ...]) -> Binding | None:
        found = _scaled(binding, args, made, reads)
        kept = found or binding
        if found is None and args != binding.call.args:
            kept = replace(binding, call=replace(binding.call, args=args))
        for before, after in zip(binding.outputs, kept.outputs, strict=True):
            made[after], reads[after] = kept, reads[before]
        return kept

    return eliminate_dead_code(substitute(function, rewrite))


def _scaled(
    binding: Binding, args: tuple[Value, ...], made: dict[Value, Binding], reads: Any
) -> Binding | None:
    """What a multiplication or addition becomes on top of a layer; None where it stays."""
    if not isinstance(binding.call, Call) or binding.call.op not in ("multiply", "add"):
        return None
    x, constant = _with_constant(args)
    layer = made.get(x)
    if layer is None or constant is None or reads[x] > 1 or not isinstance(layer.call, Call):
        return None
    (out,) = binding.outputs
    if x.type != out.type:
        return None
    match binding.call.op, layer.call:
        case "multiply", Call("conv2d" | "dense" as op, (data, Constant() as w), attrs):
            axis = 0 if op == "conv2d" or attrs["transpose_b"] else 1
            factor = _per_channel(constant, out.type)
            if factor is None:
                return None
            along = [1] * w.value.ndim
            along[axis] = -1
            weights = _same_dtype(wide(w.value) * wide(factor).reshape(along), w.value)
            call = Call(op, (data, Constant(weights, w.name)), attrs)
            # The layer it replaces is dead by then, so its name is free.
            scaled = Var(layer.outputs[0].name, out.type)
            return Binding((scaled,), call, layer.source)
        case "add", Call("add", below):
            under, bias = _with_constant(below)
            if bias is None or under.type != out.type:
                return None
            total = _same_dtype(wide(bias.value) + wide(constant.value), bias.value)
            return Binding(
                (out,), Call("add", (under, Constant(total, bias.name)), {}), layer.source
            )
    return None


@optional(level=2)
def push_scale_through_bias(function: Function) -> Function:
    """(y + b) * s   =>   y * s + b * s, so that s reaches the weights of the layer that gives y."""
    reads = uses(function)
    made = {v: b for b in function.bindings for v in b.outputs}
    bindings: list[Binding] = []
    for binding in function.bindings:
        bindings.extend(_scale_first(binding, made, reads))
    same = len(bindings) == len(function.bindings)
    return function if same else eliminate_dead_code(replace(function, bindings=tuple(bindings)))


def _scale_first(binding: Binding, made: dict[Var, Binding], reads: Any) -> Sequence[Binding]:
    match binding.call:
        case Call("multiply", args):
            x, scale = _with_constant(args)
            biased = made.get(x) if isinstance(x, Var) else None
            if scale is None or biased is None or reads[x] > 1:
                return (binding,)
            match biased.call:
                case Call("add", below):
                    y, bias = _with_constant(below)
                    layer = made.get(y) if isinstance(y, Var) else None
                    (out,) = binding.outputs
                    if bias is None or layer is None or reads[y] > 1 or y.type != out.type:
                        return (binding,)
                    if not isinstance(layer.call, Call) or layer.call.op not in ("conv2d", "dense"):
                        return (binding,)
                    if _per_channel(scale, out.type) is None:
                        return (binding,)
                    shift = _same_dtype(wide(bias.value) * wide(scale.value), bias.value)
                    scaled = Var(f"{out.name}.scaled", out.type)
                    return (
                        Binding((scaled,), Call("multiply", (y, scale), {}), binding.source),
                        Binding((out,), Call("add", (scaled, Constant(shift)), {}), biased.source),
                    )
    return (binding,)


def _same_dtype(value: Array, like: Array) -> Array:
    return np.asarray(value).astype(like.dtype, copy=False)


def _with_constant(args: tuple[Value, ...]) -> tuple[Value, Constant | None]:
    """The argument that is no constant, and the one that is."""
    match args:
        case (x, Constant() as c) | (Constant() as c, x) if not isinstance(x, Constant):
            return x, c
    return args[0], None


def _per_channel(constant: Constant, out: TensorType) -> Array | None:
    """The constant as one number per channel of out: axis 1 of four, the last of two."""
    rank = len(out.shape)
    axis = rank - 1 if rank == 2 else 1
    channels = out.shape[axis]
    shape = (1,) * (rank - constant.value.ndim) + constant.value.shape
    if len(shape) != rank or any(n != 1 for k, n in enumerate(shape) if k != axis):
        return None
    return np.broadcast_to(constant.value.reshape(-1), (int(channels),))  # type: ignore[arg-type]


@optional(level=2)
def eliminate_common_subexpressions(function: Function) -> Function:
    """Two calls of one operator on the same values   =>   the first of them."""
    seen: dict[tuple[Any, ...], Binding] = {}
    constants: dict[tuple[Any, ...], Constant] = {}

    def one_of_equals(value: Value) -> Value:
        if not isinstance(value, Constant) or value.value.nbytes > 64:
            return value
        key = (value.type, value.value.tobytes())
        return constants.setdefault(key, value)

    def rewrite(binding: Binding, args: tuple[Value, ...]) -> dict[Var, Value] | None:
        if not isinstance(binding.call, Call):
            return None
        key = (binding.call.op, tuple(map(one_of_equals, args)), *binding.call.attrs.items())
        first = seen.setdefault(key, binding)
        return None if first is binding else dict(zip(binding.outputs, first.outputs, strict=True))

    return substitute(function, rewrite)


@optional(level=1)
def eliminate_dead_code(function: Function) -> Function:
    """Bindings that no output needs are left out."""
    needed: set[Value] = set(function.outputs)
    kept: list[Binding] = []
    for binding in reversed(function.bindings):
        if needed.intersection(binding.outputs):
            kept.append(binding)
            needed.update(binding.call.args)
    if len(kept) == len(function.bindings):
        return function
    return replace(function, bindings=tuple(reversed(kept)))


PASSES: tuple[Pass, ...] = (
    eliminate_dead_code,
    simplify_inference,
    fold_constants,
    push_scale_through_bias,  # before fold_scale, which needs the scale beside its layer
    fold_scale,
    eliminate_common_subexpressions,
    eliminate_dead_code,
)


def optimize(
    function: Function,
    passes: Sequence[Pass | str] = PASSES,
    watch: Callable[[str, Function, bool], None] | None = None,
) -> Function:
    """Runs the passes that the PassContext lets run, verifying the graph after each;
    watch(name, function, changed) sees it."""
    return run_passes("graph", function, passes, lambda made, _: verify(made), watch)
