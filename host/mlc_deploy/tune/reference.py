"""The correct outputs of a task, computed by numpy from the task's definition, so that no kernel,
not even the default one, is its own judge; and inputs that reveal errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Function, evaluate
from ..graph.count import multiply_accumulates
from ..graph.nodes import Binding, Call, Value
from ..ir import (
    Block,
    Buffer,
    Const,
    Expr,
    For,
    IterVar,
    Let,
    Load,
    PrimFunc,
    Store,
    dtype_of,
    statements,
    walk,
)
from ..ir.dtypes import numpy_dtype
from ..ir.interp import run
from ..ops import Attrs
from .records import Task

Array = NDArray[Any]
MOST_INTERPRETED = 1 << 16  # iterations of blocks; the interpreter takes about a second for them
WEIGHTS = 1  # the place of weights among an operator's arguments
INTEGERS = ("int32", "int64")
# The root mean square of a random 8-bit number, signed and unsigned.
STORED_SIZE, UNSIGNED_SIZE = 73.0, 147.0


@dataclass(frozen=True, slots=True)
class Values:
    """Random numbers between two, both included; `whole` ones, or any."""

    low: float
    high: float
    whole: bool = True

    def draw(self, shape: Sequence[int], dtype: str, seed: int) -> Array:
        rng = np.random.default_rng(seed)
        if self.whole:
            return rng.integers(int(self.low), int(self.high) + 1, shape).astype(dtype)
        return rng.uniform(self.low, self.high, shape).astype(dtype)


# Divisors must not be 0, and exponents not negative.
COUNTS = Values(1, 100)
STORED = Values(-127, 127)


@dataclass(frozen=True, slots=True)
class Reference:
    """A graph function of operators, or a function of loops, that computes outputs from inputs."""

    computes: Function | PrimFunc

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        match self.computes:
            case Function() as function:
                return list(evaluate(function, inputs).values())
            case func:
                return _interpreted(func, inputs)


def reference_of(task: Task) -> Reference | None:
    """The reference of a task; None where it would take too long."""
    if task.source is not None and isinstance(task.source.computes, Function):
        return Reference(task.source.computes)
    blocks = (s for s in statements(task.func.body) if isinstance(s, Block))
    turns = sum(prod(_extent(i.extent) for i in b.iters) for b in blocks)
    return Reference(task.func) if turns <= MOST_INTERPRETED else None


def written(func: PrimFunc) -> set[Any]:
    """The buffers that a function writes."""
    return {r.buffer for n in walk(func.body) if isinstance(n, Block) for r in n.writes}


def values_of(task: Task) -> dict[Buffer, Values]:
    """The inputs that need certain values, and these values."""
    outputs, used = written(task.func), indices(task.func)
    inputs = [b for b in task.func.buffers if b not in outputs]
    found = {b: COUNTS for b in inputs if b.dtype in INTEGERS}
    if task.source is not None and isinstance(task.source.computes, Function):
        found |= {inputs[n]: v for n, v in _quantized(task.source.computes).items()}
    return {b: values for b, values in found.items() if b not in used}


def packed_weights(task: Task) -> dict[Buffer, Attrs]:
    """The parameters of packed weights, with the attributes of their operator."""
    if task.source is None or not isinstance(task.source.computes, Function):
        return {}
    function = task.source.computes
    return {
        task.func.buffers[function.params.index(call.args[WEIGHTS])]: call.attrs
        for call in (binding.call for binding in function.bindings)
        if isinstance(call, Call)
        and "kernel_layout" in call.attrs
        and call.args[WEIGHTS] in function.params
    }


def indices(func: PrimFunc) -> set[Buffer]:
    """The buffers whose values may be indices into other buffers."""
    found: set[Buffer] = set()
    todo: list[Expr] = []
    stores: list[Store] = []
    for n in walk(func.body):
        match n:
            case Load(_, at):
                todo += at
            case Store(_, at):
                todo += at
                stores.append(n)
            case Let(_, value):
                todo.append(value)
            case For(_, extent):
                todo.append(extent)
            case IterVar():
                todo.append(n.binding)
    while todo:
        new = {n.buffer for n in walk(todo.pop()) if isinstance(n, Load)} - found
        found |= new
        todo += [store.value for store in stores if store.buffer in new]
    return found


def _quantized(function: Function) -> dict[int, Values]:
    """By parameter, the values that spread quantized numbers over the range of their dtype. Floats
    that are cast to integers have no fraction: else the last bit of a sum would decide."""
    number = {param: n for n, param in enumerate(function.params)}
    products = sum(map(multiply_accumulates, function.bindings))
    unsigned = any(param.type.dtype == "uint8" for param in number)
    multiplied = UNSIGNED_SIZE if unsigned else STORED_SIZE  # what weights are multiplied with
    found: dict[int, Values] = {}
    if any(_cuts(binding) for binding in function.bindings):
        found = {n: STORED for param, n in number.items() if _is_float(param)}
    for binding in function.bindings:
        match binding.call:
            case Call("requantize" | "quantize" as op, (_, scale, _)):
                # A sum of n products is about sqrt(n) times as large as one of them.
                times = sqrt(max(products / max(binding.outputs[0].type.elements, 1), 1.0))
                most = int(STORED.high * times)
                biases = [n for p, n in number.items() if p.type.dtype in INTEGERS]
                found |= dict.fromkeys(biases, Values(-most, most))
                if scale in number:
                    size = times / STORED_SIZE if op == "quantize" else 1 / (multiplied * times)
                    found[number[scale]] = Values(size / 2, size, whole=False)
    return found


def _interpreted(func: PrimFunc, inputs: Sequence[Array]) -> list[Array]:
    given, outputs, made = iter(inputs), written(func), []
    arrays = []
    for buffer in func.buffers:
        if buffer in outputs:
            shape = [_extent(n) for n in buffer.shape]
            made.append(np.zeros(shape, numpy_dtype(buffer.dtype)))
        arrays.append(made[-1] if buffer in outputs else next(given))
    run(func, *arrays)
    return made


def _cuts(binding: Binding) -> bool:
    """Whether it truncates floats to integers."""
    match binding.call:
        case Call("cast", (x,)):
            return _is_float(x) and not _is_float(binding.outputs[0])
    return False


def _is_float(value: Value) -> bool:
    return dtype_of(value.type.dtype).kind == "float"


def _extent(extent: Any) -> int:
    return int(extent.value if isinstance(extent, Const) else extent)
