"""Converters of recurrent layers."""

from __future__ import annotations

from typing import Any

from ..graph.nodes import Value
from .extents import simplified
from .layers.indices import checked
from .layers.integers import integer_matmul, is_zero
from .layers.recurrent import Cell, Function, Products, recurrent
from .layers.shapes import rows, select, transposed
from .node import shape_of
from .onnx_elementwise import PLAIN
from .onnx_node import Converter, OnnxNode
from .onnx_quantize import dynamic_quantize

ACTIVATIONS = {
    name.lower(): PLAIN[name]
    for name in (
        "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh",
        "ThresholdedRelu",
    )
}  # fmt: skip
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
GATES = {"RNN": "h", "GRU": "zrh", "LSTM": "iofc"}  # as layers/recurrent.py names them
DYNAMIC = "DynamicQuantize"  # before the name of a layer whose weights and data are quantized


def _kind(n: OnnxNode) -> str:
    return n.op.removeprefix(DYNAMIC)


def _activations(n: OnnxNode, directions: int) -> list[list[Function]]:
    """Per direction the functions f, g, h, after clipping where the layer says so."""
    names = n.attr("activations", DEFAULTS[_kind(n)] * directions)
    numbers = {key: iter(n.attr(f"activation_{key}", [])) for key in ("alpha", "beta")}
    limit = n.attr("clip", None)

    def function(name: str) -> Function:
        if name.lower() in ("affine", "scaledtanh"):
            raise n.refuse(f"activation '{name}' is not supported")
        op, attributes = ACTIVATIONS[name.lower()]
        attrs = {key: next(numbers[key], default) for key, default in attributes.items()}

        def apply(x: Value) -> Value:
            if limit is not None:
                x = n.emit("clip", x, min=-limit, max=limit)
            return n.emit(op, x, **attrs)

        return apply

    every = [function(name) for name in names]
    per = len(DEFAULTS[_kind(n)])
    return [every[d * per : (d + 1) * per] for d in range(directions)]


def _cell(n: OnnxNode, number: int, backwards: bool, functions: list[Function]) -> Cell:
    w, r = (select(n, n.input(k), number) for k in (1, 2))
    products: Products | None = None
    if n.op.startswith(DYNAMIC):
        products = _rounded(n, w, 8, number), _rounded(n, r, 10, number)
        w, r = (transposed(n, v) for v in (w, r))
    both, peepholes = (
        None if value is None else select(n, value, number)
        for value in (n.optional(3), n.optional(7))
    )
    wide = shape_of(w)[0]
    wb, rb = (None if both is None else rows(n, both, begin, wide) for begin in (0, wide))
    return Cell(
        _kind(n),
        GATES[_kind(n)],
        functions,
        *(w, r, wb, rb),
        backwards=backwards,
        reset_after=bool(n.attr("linear_before_reset", 0)),
        peepholes=peepholes,
        coupled=bool(n.attr("input_forget", 0)),
        products=products,
    )


def _rounded(n: OnnxNode, w: Value, first: int, number: int) -> Function:
    """Rows, which are rounded to 8 bits, times weights [inputs, gates]; from `first` on stand the
    inputs that are the weights' scales and zero points."""
    scale, zeros = select(n, n.input(first), number), n.input(first + 1)
    zero = None if is_zero(zeros) else select(n, zeros, number)

    def product(x: Value) -> Value:
        q, x_scale, x_zero = dynamic_quantize(n, x)
        sums = n.cast(integer_matmul(n, q, w, x_zero, zero), x.type.dtype)
        return n.emit("multiply", sums, n.emit("multiply", x_scale, scale))

    return product


def _recurrent(n: OnnxNode) -> Any:
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        n.attr("direction", "forward")
    ]
    if (rank := len(n.shape())) != 3:
        raise ValueError(f"{n.op} takes a tensor of 3 dimensions, and this one has {rank}")
    x, batch_first = n.input(0), n.attr("layout", 0)
    initial = [n.optional(k) for k in ((5, 6) if _kind(n) == "LSTM" else (5,))]

    def turned(value: Value) -> Value:
        return n.emit("transpose", value, axes=(1, 0, 2)) if batch_first else value

    functions = _activations(n, len(directions))
    cells = [
        _cell(n, number, backwards, functions[number])
        for number, backwards in enumerate(directions)
    ]
    states = [None if s is None else turned(s) for s in initial]
    x, lengths = turned(x), n.optional(4)
    if lengths is not None:
        lengths = checked(n, lengths, [simplified(shape_of(x)[0] + 1)], from_end=False)
    y, *lasts = recurrent(n, x, cells, states, lengths)
    if batch_first:
        y = n.emit("transpose", y, axes=(2, 0, 1, 3))
    return [y, *map(turned, lasts)]


RECURRENT: dict[str, Converter] = dict.fromkeys(
    (*GATES, f"com.microsoft::{DYNAMIC}LSTM"), _recurrent
)
