"""Converters of ATen's recurrent layers. A call is a stack of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layers.recurrent import Cell, recurrent
from .layers.shapes import joined, reshape, rows
from .node import shape_of
from .torch_node import Converter, TorchNode

# The gates as torch packs them, named as layers/recurrent.py names them; the functions f, g, h.
KINDS = {
    "gru": ("GRU", "rzh", ("sigmoid", "tanh")),
    "lstm": ("LSTM", "ifco", ("sigmoid", "tanh", "tanh")),
    "rnn_relu": ("RNN", "h", ("relu",)),
    "rnn_tanh": ("RNN", "h", ("tanh",)),
}


def _recurrent(
    n: TorchNode, x: Any, initial: Any, weights: Sequence[Any], biased: bool, layers: int,
    dropout: float, training: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """initial: states [layers * directions, batch, hidden]; weights: w, r and, if biased, both
    biases, per layer and direction."""
    kind, order, names = KINDS[n.aten]
    directions, per = 1 + bidirectional, 2 + 2 * biased
    if n.overload != "input" or len(weights) != layers * directions * per:
        raise n.refuse("packed sequences and projections of the state are not supported")
    if training and dropout:
        raise n.refuse("dropout is not supported", "module.eval() before the export")
    functions = [lambda y, f=name: n.emit(f, y) for name in names]
    states = list(initial) if kind == "LSTM" else [initial]
    y = n.emit("transpose", x, axes=(1, 0, 2)) if batch_first else x
    ends: list[list[Any]] = [[] for _ in states]
    for layer in range(layers):
        first = layer * directions
        cells = []
        for d in range(directions):
            own = weights[(first + d) * per : (first + d + 1) * per]
            w, r, wb, rb = own if biased else (*own, None, None)
            cells.append(Cell(kind, order, functions, w, r, wb, rb, d == 1, reset_after=True))
        y, *lasts = recurrent(n, y, cells, [rows(n, s, first, directions) for s in states])
        length, _, batch, hidden = shape_of(y)
        y = n.emit("transpose", y, axes=(0, 2, 1, 3))
        y = reshape(n, y, (length, batch, directions * hidden))
        for own, last in zip(ends, lasts, strict=True):
            own.append(last)
    y = n.emit("transpose", y, axes=(1, 0, 2)) if batch_first else y
    return [y, *(joined(n, own) for own in ends)]


RECURRENT: dict[str, Converter] = dict.fromkeys(KINDS, _recurrent)
