"""Layers that read the same value become one layer, and slices of its result replace theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..ops import Array, infer_types, operator
from ..passes.context import optional
from .constants import is_static, shape_of, with_constant
from .eliminate import eliminate_dead_code
from .nodes import Binding, Call, Constant, Function, TensorType, Value, Var, taken_names, uses
from .views import Memory, is_view, slice_offset


@optional(level=3)
def combine_parallel_layers(function: Function) -> Function:
    """relu(layer(x, v) + a), relu(layer(x, w) + b)   =>   parts of relu(layer(x, [v, w]) + [a, b])

    for layers with constant weights that differ only in the number of outputs. Each output must be
    contiguous in the combined one and must not leave the function: then nothing is copied. Outputs
    that are written into another value stay apart.
    """
    branches: dict[Hashable, list[_Branch]] = {}
    memory = Memory(function)
    for branch in _branches(function):
        if memory.region(branch.out)[0] is branch.out:
            branches.setdefault(branch.key, []).append(branch)
    combined = [group for group in branches.values() if _worth_it(group)]
    for group in combined:
        function = _combine(function, group)
    return eliminate_dead_code(function) if combined else function


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """A layer with constant weights, and the bias and activation that alone read it."""

    layer: Binding
    biased: Binding | None
    active: Binding | None

    @property
    def last(self) -> Binding:
        return self.active or self.biased or self.layer

    @property
    def out(self) -> Var:
        return self.last.outputs[0]

    @property
    def call(self) -> Call:
        return _call(self.layer)

    @property
    def weights(self) -> Array:
        return _array(self.call.args[1])

    @property
    def bias(self) -> Array | None:
        """One number per output."""
        if self.biased is None:
            return None
        constant = with_constant(_call(self.biased).args)[1]
        assert constant is not None
        return constant.value.reshape(-1)

    @property
    def axes(self) -> tuple[int, int]:
        """The axis of the outputs in the weights, and in the result."""
        axes = operator(self.call.op).output_axes
        assert axes is not None
        return axes(self.call.attrs, self.weights.ndim, len(self.out.type.shape))

    @property
    def axis(self) -> int:
        return self.axes[1]

    @property
    def weights_axis(self) -> int:
        return self.axes[0]

    @property
    def outputs(self) -> int:
        return int(self.weights.shape[self.weights_axis])

    @property
    def key(self) -> Hashable:
        """Equal for branches that may be combined."""
        kept = tuple(n for k, n in enumerate(self.weights.shape) if k != self.weights_axis)
        after = None if self.active is None else _how(_call(self.active))
        biased = self.biased is not None
        return self.call.args[0], _how(self.call), kept, str(self.weights.dtype), biased, after


def _call(binding: Binding) -> Call:
    assert isinstance(binding.call, Call)
    return binding.call


def _array(value: Value) -> Array:
    assert isinstance(value, Constant)
    return value.value


def _how(call: Call) -> Hashable:
    return call.op, tuple(sorted(call.attrs.items()))


def _branches(function: Function) -> list[_Branch]:
    counts, given = uses(function), _given(function)
    readers = {arg: b for b in function.bindings for arg in b.call.args}
    found: list[_Branch] = []
    for binding in function.bindings:
        match binding.call:
            case Call(op, (_, Constant()), attrs) if operator(op).output_axes is not None:
                (out,) = binding.outputs
                if attrs.get("groups", 1) != 1 or "kernel_layout" in attrs or not is_static(out):
                    continue
                branch = _Branch(binding, None, None)
                after = _only(readers, counts, out)
                if after is not None and _is_bias(after, branch):
                    branch = _Branch(binding, after, None)
                    after = _only(readers, counts, branch.out)
                if after is not None and _is_activation(after):
                    branch = _Branch(binding, branch.biased, after)
                if branch.out not in given:
                    found.append(branch)
    return found


def _given(function: Function) -> set[Value]:
    """The outputs of the function, and values in the same memory."""
    found = set(function.outputs)
    for binding in reversed(function.bindings):
        if is_view(binding) and not found.isdisjoint(binding.outputs):
            found.update(binding.call.args)
    return found


def _only(readers: Mapping[Value, Binding], counts: Counter[Value], value: Value) -> Binding | None:
    """The only call that reads the value."""
    return readers.get(value) if counts[value] == 1 else None


def _is_bias(binding: Binding, branch: _Branch) -> bool:
    match binding:
        case Binding((out,), Call("add", args)) if out.type == branch.out.type:
            constant = with_constant(args)[1]
            rank = len(out.type.shape)
            wanted = [1] * rank
            wanted[branch.axis] = branch.outputs
            full = () if constant is None else constant.value.shape
            return constant is not None and [1] * (rank - len(full)) + list(full) == wanted
    return False


def _is_activation(binding: Binding) -> bool:
    match binding:
        case Binding((out,), Call(op, (x,))):
            return operator(op).pattern == "elementwise" and x.type == out.type
    return False


def _worth_it(group: Sequence[_Branch]) -> bool:
    if len(group) < 2:
        return False
    whole = _combined_type(group)
    parts = [slice_offset(whole, a["begin"], a["step"], a["shape"]) for a in _parts(group)]
    return None not in parts


def _combined_type(group: Sequence[_Branch]) -> TensorType:
    first = group[0]
    shape = list(shape_of(first.out))
    shape[first.axis] = sum(b.outputs for b in group)
    return TensorType(tuple(shape), first.out.type.dtype)


def _parts(group: Sequence[_Branch]) -> Iterator[dict[str, tuple[int, ...]]]:
    """For each branch, the attributes of the slice that gives its result."""
    begin = 0
    for branch in group:
        shape = shape_of(branch.out)
        at = tuple(begin if axis == branch.axis else 0 for axis in range(len(shape)))
        yield {"begin": at, "shape": shape, "step": (1,) * len(shape)}
        begin += branch.outputs


def _combine(function: Function, group: Sequence[_Branch]) -> Function:
    first = group[0]
    names = taken_names(function)
    whole = _combined_type(group)
    made: list[Binding] = []

    def emit(call: Call) -> Var:
        (type_,) = infer_types(call.op, [a.type for a in call.args], call.attrs)
        out = Var(names.fresh(f"{first.layer.outputs[0].name}.combined"), type_)
        made.append(Binding((out,), call, first.layer.source))
        return out

    weights = Constant(np.concatenate([b.weights for b in group], first.weights_axis))
    result = emit(replace(first.call, args=(first.call.args[0], weights)))
    biases = [b.bias for b in group if b.bias is not None]
    if biases:
        after = (1,) * (len(whole.shape) - first.axis - 1)
        bias = Constant(np.concatenate(biases).reshape(-1, *after))
        result = emit(Call("add", (result, bias), {}))
    if first.active is not None:
        result = emit(replace(_call(first.active), args=(result,)))
    parts = [
        Binding(branch.last.outputs, Call("slice", (result,), attrs), branch.layer.source)
        for branch, attrs in zip(group, _parts(group), strict=True)
    ]
    replaced = {branch.last for branch in group}
    bindings: list[Binding] = []
    for binding in function.bindings:
        # All layers read the same value, so it exists before the first of them.
        if binding is first.layer:
            bindings += [*made, *parts]
        if binding not in replaced:
            bindings.append(binding)
    return replace(function, bindings=tuple(bindings))
