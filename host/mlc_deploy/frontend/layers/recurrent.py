"""Recurrent layers, unrolled over their (constant) length.

One matrix product multiplies the inputs of all steps by their weights. A step multiplies only the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...graph.nodes import Value
from ..node import MOST_TURNS, Node, shape_of
from .products import rows_times
from .shapes import joined, reshape, rows, select

Function = Callable[[Value], Value]


@dataclass(frozen=True, slots=True)
class Cell:
    """One direction of a layer of kind RNN, GRU or LSTM.

    order: the gates as they stand in the weights, a letter each: h of an RNN; update z, reset r and
    hidden h of a GRU; input i, output o, forget f and cell c of an LSTM. w [gates * hidden, inputs]
    and r [gates * hidden, hidden] multiply input and state, wb and rb are added to the products.
    functions: f; f, g; f, g, h, as ONNX names them. reset_after: a GRU's reset gate multiplies the
    state's product, not the state. peepholes: an LSTM's, [3 * hidden] of i, o and f.
    """

    kind: str
    order: str
    functions: Sequence[Function]
    w: Value
    r: Value
    wb: Value | None
    rb: Value | None
    backwards: bool = False
    reset_after: bool = False
    peepholes: Value | None = None

    @property
    def hidden(self) -> int:
        return shape_of(self.r)[1]

    def gates(self, n: Node, x: Value, axis: int) -> dict[str, Value]:
        """The part of x that belongs to each gate, along an axis."""
        size = self.hidden
        return {gate: rows(n, x, k * size, size, axis) for k, gate in enumerate(self.order)}


def _plus(n: Node, a: Value, b: Value | None) -> Value:
    return a if b is None else n.emit("add", a, b)


def _times(n: Node, a: Value, b: Value) -> Value:
    return n.emit("multiply", a, b)


def _product(n: Node, h: Value, r: Value, bias: Value | None) -> Value:
    return _plus(n, n.emit("dense", h, r, transpose_b=True), bias)


def _rnn_step(n: Node, cell: Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    return [cell.functions[0](_plus(n, x, _product(n, states[0], cell.r, cell.rb)))]


def _gru_step(n: Node, cell: Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    (h,), (f, g) = states, cell.functions
    of_x = cell.gates(n, x, 1)
    if cell.reset_after:
        of_h = cell.gates(n, _product(n, h, cell.r, cell.rb), 1)
        z, r = (f(_plus(n, of_x[gate], of_h[gate])) for gate in "zr")
        fresh = g(_plus(n, of_x["h"], _times(n, r, of_h["h"])))
    else:
        weights = cell.gates(n, cell.r, 0)
        biases = {} if cell.rb is None else cell.gates(n, cell.rb, 0)
        own = {gate: _product(n, h, weights[gate], biases.get(gate)) for gate in "zr"}
        z, r = (f(_plus(n, of_x[gate], own[gate])) for gate in "zr")
        product = _product(n, _times(n, r, h), weights["h"], biases.get("h"))
        fresh = g(_plus(n, of_x["h"], product))
    # (1 - z) * fresh + z * h
    return [_plus(n, fresh, _times(n, z, n.emit("subtract", h, fresh)))]


def _lstm_step(n: Node, cell: Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    (h, c), (f, g, last) = states, cell.functions
    gates = cell.gates(n, _plus(n, x, _product(n, h, cell.r, cell.rb)), 1)

    def looked(gate: str, at: Value) -> Value:
        if cell.peepholes is None:
            return gates[gate]
        weights = rows(n, cell.peepholes, "iof".index(gate) * cell.hidden, cell.hidden)
        return _plus(n, gates[gate], _times(n, weights, at))

    kept = _times(n, f(looked("f", c)), c)
    c = _plus(n, kept, _times(n, f(looked("i", c)), g(gates["c"])))
    return [_times(n, f(looked("o", c)), last(c)), c]


STEPS = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


def recurrent(
    n: Node,
    x: Value,
    cells: Sequence[Cell],
    initial: Sequence[Value | None],
    lengths: Value | None = None,
) -> list[Value]:
    """The outputs [steps, cells, batch, hidden], and each state after the last step [cells, batch,
    hidden].

    x [steps, batch, inputs]; initial: the states before the first step, zeros where they are None;
    lengths [batch]: how many steps count.
    """
    length, batch, _ = shape_of(x)
    if length > MOST_TURNS:
        what = f"{length} steps are too many to unroll"
        raise n.refuse(what, f"a length of at most {MOST_TURNS}")
    steps: list[list[Value]] = []
    ends: list[list[Value]] = []
    for number, cell in enumerate(cells):
        zeros = n.constant(np.zeros((batch, cell.hidden)), x.type.dtype)
        states = [zeros if s is None else select(n, s, number) for s in initial]
        own, end = _run(n, cell, x, states, zeros, lengths)
        steps.append(own)
        ends.append(end)
    hidden = cells[0].hidden
    y = joined(n, [own[t] for t in range(length) for own in steps])
    lasts = [joined(n, states) for states in zip(*ends, strict=True)]
    return [
        reshape(n, y, (length, len(cells), batch, hidden)),
        *(reshape(n, last, (len(cells), batch, hidden)) for last in lasts),
    ]


def _run(
    n: Node, cell: Cell, x: Value, states: list[Value], zeros: Value, lengths: Value | None
) -> tuple[list[Value], list[Value]]:
    """The outputs of all steps, [batch, hidden] each, and the states after the last."""
    length, batch, _ = shape_of(x)
    products = _plus(n, rows_times(n, x, cell.w, True), cell.wb)
    outputs = [zeros] * length
    for t in reversed(range(length)) if cell.backwards else range(length):
        fresh = STEPS[cell.kind](n, cell, rows(n, products, t * batch, batch), states)
        outputs[t] = fresh[0]
        if lengths is not None:  # beyond a sequence's end its state stays, and its output is 0
            inside = n.emit("greater", lengths, n.constant(t, lengths.type.dtype))
            inside = reshape(n, inside, (batch, 1))
            outputs[t] = n.emit("where", inside, fresh[0], zeros)
            fresh = [n.emit("where", inside, a, b) for a, b in zip(fresh, states, strict=True)]
        states = fresh
    return outputs, states
