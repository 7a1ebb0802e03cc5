"""Recurrent layers: a loop over their length.

One matrix product multiplies the inputs of all steps by their weights. A step multiplies only the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...graph.nodes import Value
from ..extents import simplified
from ..node import Node, shape_of
from .loops import loop
from .products import rows_times
from .shapes import expand, reshape, rows, select, stacked

Function = Callable[[Value], Value]
Products = tuple[Function, Function]


@dataclass(frozen=True, slots=True)
class Cell:
    """One direction of a layer of kind RNN, GRU or LSTM.

    order: the gates in the order of the weights, a letter each: h of an RNN; update z, reset r and
    hidden h of a GRU; input i, output o, forget f and cell c of an LSTM. w [gates * hidden, inputs]
    and r [gates * hidden, hidden] multiply input and state, wb and rb are added to the products.
    functions: f; f, g; f, g, h, as ONNX names them. reset_after: a GRU's reset gate multiplies the
    state's product, not the state. peepholes: an LSTM's, [3 * hidden] of i, o and f. coupled: an
    LSTM forgets what it does not take in, f = 1 - i. products: how rows are multiplied by w and by
    r transposed, where these are not the floats that they mean.
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
    coupled: bool = False
    products: Products | None = None

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


def _of_state(n: Node, cell: Cell, h: Value) -> Value:
    """The state's product with all of its weights."""
    if cell.products is not None:
        return _plus(n, cell.products[1](h), cell.rb)
    return _product(n, h, cell.r, cell.rb)


def _rnn_step(n: Node, cell: Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    return [cell.functions[0](_plus(n, x, _of_state(n, cell, states[0])))]


def _gru_step(n: Node, cell: Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    (h,), (f, g) = states, cell.functions
    of_x = cell.gates(n, x, 1)
    if cell.reset_after:
        of_h = cell.gates(n, _of_state(n, cell, h), 1)
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
    gates = cell.gates(n, _plus(n, x, _of_state(n, cell, h)), 1)

    def looked(gate: str, at: Value) -> Value:
        if cell.peepholes is None:
            return gates[gate]
        weights = rows(n, cell.peepholes, "iof".index(gate) * cell.hidden, cell.hidden)
        return _plus(n, gates[gate], _times(n, weights, at))

    if cell.coupled:
        share = n.emit("subtract", n.constant(1, x.type.dtype), f(looked("i", c)))
    else:
        share = f(looked("f", c))
    kept = _times(n, share, c)
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

    x [steps, batch, inputs]; initial: the states before the first step, None for zeros;
    lengths [batch]: how many steps count.
    """
    batch = shape_of(x)[1]
    outputs: list[Value] = []
    ends: list[list[Value]] = []
    for number, cell in enumerate(cells):
        zeros = expand(n, n.constant(0, x.type.dtype), (batch, cell.hidden))
        states = [zeros if s is None else select(n, s, number) for s in initial]
        own, end = _run(n, cell, x, states, zeros, lengths)
        outputs.append(own)
        ends.append(end)
    lasts = [stacked(n, states) for states in zip(*ends, strict=True)]
    return [stacked(n, outputs, 1), *lasts]


def _run(
    n: Node, cell: Cell, x: Value, states: list[Value], zeros: Value, lengths: Value | None
) -> tuple[Value, list[Value]]:
    """The outputs of all steps [steps, batch, hidden], and the states after the last."""
    length, batch, width = shape_of(x)
    if cell.products is None:
        products = rows_times(n, x, cell.w, True)
    else:
        products = cell.products[0](reshape(n, x, (length * batch, width)))
    products = _plus(n, products, cell.wb)
    backwards = cell.backwards
    elements = reshape(n, products, (length, batch, shape_of(products)[-1]))

    def step(
        turn: Value, before: list[Value], parts: list[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        fresh = STEPS[cell.kind](n, cell, parts[0], before)
        output = fresh[0]
        if lengths is not None:  # beyond a sequence's end the state stays and the output is 0
            t = n.cast(turn, lengths.type.dtype)
            if backwards:
                last = n.cast(n.extents.value(n, simplified(length - 1)), lengths.type.dtype)
                t = n.emit("subtract", last, t)
            inside = reshape(n, n.emit("greater", lengths, t), (batch, 1))
            output = n.emit("where", inside, output, zeros)
            fresh = [n.emit("where", inside, a, b) for a, b in zip(fresh, before, strict=True)]
        return fresh, [output]

    ends, (outputs,) = loop(
        n, length, states, step, read=[(elements, backwards)], written=[backwards]
    )
    return outputs, ends
