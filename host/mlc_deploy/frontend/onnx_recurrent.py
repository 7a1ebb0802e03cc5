"""Converters of recurrent layers, unrolled over their (constant) length.

What all steps need of the input is one matrix product in front; a step multiplies the state only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ImporterError
from ..graph.nodes import Value
from .onnx_control import MOST_TURNS
from .onnx_node import Converter, OnnxNode, static_shape

Function = Callable[[Value], Value]

# ONNX's activations: our operator, its attributes with their defaults (alpha, then beta).
ACTIVATIONS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "elu": ("elu", (("alpha", 1.0),)),
    "hardsigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "leakyrelu": ("leaky_relu", (("alpha", 0.01),)),
    "relu": ("relu", ()),
    "sigmoid": ("sigmoid", ()),
    "softplus": ("softplus", ()),
    "softsign": ("softsign", ()),
    "tanh": ("tanh", ()),
    "thresholdedrelu": ("thresholded_relu", (("alpha", 1.0),)),
}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _activations(n: OnnxNode, directions: int) -> list[list[Function]]:
    """Per direction the functions f, g, h, after clipping where the layer says so."""
    names = n.attr("activations", DEFAULTS[n.op] * directions)
    numbers = {key: iter(n.attr(f"activation_{key}", [])) for key in ("alpha", "beta")}
    limit = n.attr("clip", None)

    def function(name: str) -> Function:
        if name.lower() in ("affine", "scaledtanh"):
            raise ImporterError(f"activation '{name}' is not supported", where=n.place)
        op, attributes = ACTIVATIONS[name.lower()]
        attrs = {key: next(numbers[key], default) for key, default in attributes}

        def apply(x: Value) -> Value:
            if limit is not None:
                x = n.emit("clip", x, min=-limit, max=limit)
            result: Value = n.emit(op, x, **attrs)
            return result

        return apply

    every = [function(name) for name in names]
    per = len(DEFAULTS[n.op])
    return [every[d * per : (d + 1) * per] for d in range(directions)]


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of a layer: weights [gates * hidden, …], biases or None, its functions."""

    n: OnnxNode
    r: Value
    rb: Value | None
    peepholes: Value | None
    functions: Sequence[Function]
    hidden: int

    def add(self, a: Value, b: Value) -> Value:
        result: Value = self.n.emit("add", a, b)
        return result

    def mul(self, a: Value, b: Value) -> Value:
        result: Value = self.n.emit("multiply", a, b)
        return result

    def gates(self, x: Value, count: int) -> list[Value]:
        """x [batch, count * hidden] in parts."""
        return [_columns(self.n, x, g * self.hidden, self.hidden) for g in range(count)]

    def state_product(self, h: Value, r: Value | None = None, rb: Value | None = None) -> Value:
        y: Value = self.n.emit("dense", h, r or self.r, transpose_b=True)
        bias = rb if r is not None else self.rb
        return y if bias is None else self.add(y, bias)

    def mixed(self, share: Value, old: Value, fresh: Value) -> Value:
        """(1 - share) * fresh + share * old"""
        difference = self.n.emit("subtract", old, fresh)
        return self.add(fresh, self.mul(share, difference))


def _rnn_step(cell: _Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    return [cell.functions[0](cell.add(x, cell.state_product(states[0])))]


def _gru_step(cell: _Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    """Gates in the order update, reset, hidden."""
    (h,), (f, g), n, size = states, cell.functions, cell.n, cell.hidden
    xz, xr, xh = cell.gates(x, 3)
    if n.attr("linear_before_reset", 0):
        hz, hr, hh = cell.gates(cell.state_product(h), 3)
        z, r = f(cell.add(xz, hz)), f(cell.add(xr, hr))
        fresh = g(cell.add(xh, cell.mul(r, hh)))
    else:
        parts = [_rows(n, cell.r, k * size, size) for k in range(3)]
        biases = [None if cell.rb is None else _rows(n, cell.rb, k * size, size) for k in range(3)]
        z = f(cell.add(xz, cell.state_product(h, parts[0], biases[0])))
        r = f(cell.add(xr, cell.state_product(h, parts[1], biases[1])))
        fresh = g(cell.add(xh, cell.state_product(cell.mul(r, h), parts[2], biases[2])))
    return [cell.mixed(z, h, fresh)]


def _lstm_step(cell: _Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    """Gates in the order input, output, forget, cell; peepholes likewise without the last."""
    (h, c), (f, g, last) = states, cell.functions
    i, o, forget, fresh = cell.gates(cell.add(x, cell.state_product(h)), 4)
    size, p = cell.hidden, cell.peepholes

    def looked(gate: Value, number: int, at: Value) -> Value:
        if p is None:
            return gate
        return cell.add(gate, cell.mul(_rows(cell.n, p, number * size, size), at))

    kept = cell.mul(f(looked(forget, 2, c)), c)
    c = cell.add(kept, cell.mul(f(looked(i, 0, c)), g(fresh)))
    return [cell.mul(f(looked(o, 1, c)), last(c)), c]


STEPS = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


def _rows(n: OnnxNode, x: Value, begin: int, count: int) -> Value:
    shape = static_shape(x)
    rest = [0] * (len(shape) - 1)
    part: Value = n.emit(
        "slice", x, begin=[begin, *rest], step=[1] * len(shape), shape=[count, *shape[1:]]
    )
    return part


def _columns(n: OnnxNode, x: Value, begin: int, count: int) -> Value:
    part: Value = n.emit(
        "slice", x, begin=[0, begin], step=[1, 1], shape=[static_shape(x)[0], count]
    )
    return part


def _direction(n: OnnxNode, x: Value | None, number: int) -> Value | None:
    """A layer's weights or states of one direction."""
    if x is None:
        return None
    part: Value = n.emit("reshape", _rows(n, x, number, 1), shape=static_shape(x)[1:])
    return part


def _recurrent(n: OnnxNode) -> Any:
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        n.attr("direction", "forward")
    ]
    if n.attr("input_forget", 0):
        raise ImporterError("coupled gates (input_forget) are not supported", where=n.place)
    x, batch_first = n.input(0), n.attr("layout", 0)
    initial = [n.optional(k) for k in ((5, 6) if n.op == "LSTM" else (5,))]
    if batch_first:
        x = n.emit("transpose", x, axes=(1, 0, 2))
        initial = [None if s is None else n.emit("transpose", s, axes=(1, 0, 2)) for s in initial]
    functions = _activations(n, len(directions))
    every: list[list[Value]] = []
    ends: list[list[Value]] = []
    for number, backwards in enumerate(directions):
        states = [_direction(n, s, number) for s in initial]
        steps, end = _run(n, x, states, number, backwards, functions[number])
        every.append(steps)
        ends.append(end)
    length, batch, _ = static_shape(x)
    hidden = static_shape(every[0][0])[1]
    # [T, D, B, H]: what a step gives, per direction
    rows = [every[d][t] for t in range(length) for d in range(len(directions))]
    y = n.emit("concatenate", *rows, axis=0) if len(rows) > 1 else rows[0]
    y = n.emit("reshape", y, shape=(length, len(directions), batch, hidden))
    lasts = []
    for state in zip(*ends, strict=True):
        value = n.emit("concatenate", *state, axis=0) if len(state) > 1 else state[0]
        lasts.append(n.emit("reshape", value, shape=(len(directions), batch, hidden)))
    if batch_first:
        y = n.emit("transpose", y, axes=(2, 0, 1, 3))
        lasts = [n.emit("transpose", s, axes=(1, 0, 2)) for s in lasts]
    return [y, *lasts]


def _run(
    n: OnnxNode,
    x: Value,
    initial: Sequence[Value | None],
    number: int,
    backwards: bool,
    functions: Sequence[Function],
) -> tuple[list[Value], list[Value]]:
    """The outputs of all steps, [B, H] each, and the states after the last."""
    length, batch, width = static_shape(x)
    if length > MOST_TURNS:
        what = f"{length} steps are too many to unroll"
        raise ImporterError(what, where=n.place, mend=f"a length of at most {MOST_TURNS}")
    w, r = (_direction(n, n.input(k), number) for k in (1, 2))
    bias, peepholes = (_direction(n, n.optional(k), number) for k in (3, 7))
    assert w is not None and r is not None
    hidden = static_shape(r)[1]
    wide = GATES[n.op] * hidden
    rb: Value | None = None
    products = n.emit(
        "dense", n.emit("reshape", x, shape=(length * batch, width)), w, transpose_b=True
    )
    if bias is not None:
        products = n.emit("add", products, _rows(n, bias, 0, wide))
        rb = _rows(n, bias, wide, wide)
    cell = _Cell(n, r, rb, peepholes if n.op == "LSTM" else None, functions, hidden)
    zeros = n.constant(np.zeros((batch, hidden)), x.type.dtype)
    states = [s or zeros for s in initial]
    outputs: list[Value] = [zeros] * length
    for t in reversed(range(length)) if backwards else range(length):
        fresh = STEPS[n.op](cell, _rows(n, products, t * batch, batch), states)
        outputs[t] = fresh[0]
        if n.optional(4) is not None:  # beyond a sequence's end its state stays, and nothing shows
            there = n.emit("greater", n.input(4), n.constant(t, n.input(4).type.dtype))
            there = n.emit("reshape", there, shape=(batch, 1))
            outputs[t] = n.emit("where", there, fresh[0], zeros)
            fresh = [n.emit("where", there, a, b) for a, b in zip(fresh, states, strict=True)]
        states = list(fresh)
    return outputs, list(states)


RECURRENT: dict[str, Converter] = dict.fromkeys(GATES, _recurrent)
