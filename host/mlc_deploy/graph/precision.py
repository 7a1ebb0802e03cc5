"""Precision: a float32 model becomes one that computes in float16 where the error allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from mlc_targets import Target, TargetError

from ..errors import GraphError
from ..ir.names import Names
from ..ops import Array, frozen_attrs, has, infer_types, operator
from .nodes import Binding, Call, Constant, Function, Value, Var

PRECISIONS = ("float32", "float16")
SINGLE, HALF = PRECISIONS

LARGEST = float(np.finfo(np.float16).max)
SMALLEST = float(np.finfo(np.float16).tiny)  # the smallest number with full precision

Pass = Callable[[Function], Function]


def known_precision(precision: str, target: Target) -> str:
    """Checks the precision and returns it. Raises GraphError for an unknown one, and TargetError if
    the target has no instructions for it."""
    if precision not in PRECISIONS:
        near = get_close_matches(precision, PRECISIONS, 1, 0.4) or PRECISIONS
        raise GraphError(f"unknown precision '{precision}'", mend=" or ".join(near))
    if precision == HALF and target.float16 == "software":
        features = {"arm": "fp16", "x86_64": "f16c"}
        feature = features.get(target.arch)
        raise TargetError(
            "the target has no instructions for float16, so it would be slower than float32",
            f"-mattr=+{feature}, where the CPU has it"
            if feature and target.kind != "c"
            else "precision float32",
            where=target.short_name,
        )
    return precision


def in_precision(precision: str) -> tuple[Pass, ...]:
    """The passes that give a model a precision: none for float32, which means the model as is."""
    return (to_float16,) if precision == HALF else ()


def to_float16(function: Function) -> Function:
    """conv2d(x, w)   =>   conv2d(cast(x), half(w)), and later calls in float16 where this pays

    Parameters and outputs stay as they are. A value is cast at most once each way, before its first
    reader in this dtype. Constants that float16 cannot hold stay float32, and so do their calls.
    """
    return _Halves(function).rewritten()


class _Halves:
    """The state of the pass: the bindings made so far, and each value in the dtypes available."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.bindings: list[Binding] = []
        self.single: dict[Value, Value] = {p: p for p in function.params}
        self.half: dict[Value, Value] = {}
        self.names = Names(p.name for p in function.params)
        self.source = ""

    def rewritten(self) -> Function:
        for binding in self.function.bindings:
            self.source = binding.source
            call = binding.call
            if isinstance(call, Call) and self._serves(call, binding.outputs):
                self._as_half(binding.outputs, call)
            else:
                self._as_it_was(binding)
        if not self.half:
            return self.function
        self.source = ""
        outputs = tuple(map(self.in_single, self.function.outputs))
        return replace(self.function, bindings=tuple(self.bindings), outputs=outputs)

    def _serves(self, call: Call, outputs: Sequence[Var]) -> bool:
        """Whether a call should compute in float16."""
        floats = [a for a in call.args if _is_single(a)]
        if not floats or not all(map(_is_single, outputs)):
            return False
        known = [a.value for a in floats if isinstance(a, Constant)]
        numbers = operator(call.op).numbers
        limits = [np.asarray(a, SINGLE) for key, a in call.attrs.items() if key in numbers]
        if not all(map(_fits, (*known, *limits))):
            return False
        if has(call.op, "products"):  # so much faster in float16 that casting its arguments pays
            return True
        computed = [a for a in floats if not isinstance(a, Constant)]
        followed = bool(computed) and all(a in self.half for a in computed)
        return followed and has(call.op, "follows_half")

    def _as_half(self, outputs: Sequence[Var], call: Call) -> None:
        args = tuple(self.in_half(a) if _is_single(a) else self.in_single(a) for a in call.args)
        types = infer_types(call.op, [a.type for a in args], call.attrs)
        made = tuple(Var(self.names.fresh(v.name), t) for v, t in zip(outputs, types, strict=True))
        self.half.update(zip(outputs, made, strict=True))
        self.bindings.append(Binding(made, replace(call, args=args), self.source))

    def _as_it_was(self, binding: Binding) -> None:
        args = tuple(map(self.in_single, binding.call.args))
        outputs = tuple(Var(self.names.fresh(v.name), v.type) for v in binding.outputs)
        self.single.update(zip(binding.outputs, outputs, strict=True))
        self.bindings.append(Binding(outputs, replace(binding.call, args=args), binding.source))

    def in_half(self, value: Value) -> Value:
        if isinstance(value, Constant):
            return Constant(value.value.astype(HALF), value.name)
        if value not in self.half:
            self.half[value] = self._cast(self.single[value], HALF, f"{value.name}.half")
        return self.half[value]

    def in_single(self, value: Value) -> Value:
        """The value as in the model: float32, if it is a float."""
        if isinstance(value, Constant):
            return value
        if value not in self.single:
            self.single[value] = self._cast(self.half[value], SINGLE, f"{value.name}.single")
        return self.single[value]

    def _cast(self, value: Value, dtype: str, name: str) -> Var:
        attrs = frozen_attrs({"dtype": dtype})
        (type_,) = infer_types("cast", [value.type], attrs)
        out = Var(self.names.fresh(name), type_)
        self.bindings.append(Binding((out,), Call("cast", (value,), attrs), self.source))
        return out


def _is_single(value: Value) -> bool:
    return value.type.dtype == SINGLE


def _fits(array: Array) -> bool:
    """Whether float16 holds the numbers: no finite one overflows, and the largest has full
    precision or is 0."""
    largest = float(np.abs(array[np.isfinite(array)]).max(initial=0))
    return largest <= LARGEST and not 0 < largest < SMALLEST
