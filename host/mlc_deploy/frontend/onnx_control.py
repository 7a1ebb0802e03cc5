"""Converters of control flow: branches that are taken or computed both, loops that unroll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ImporterError
from ..graph.nodes import Constant, Value
from ..ops.shape import normal_axis
from .onnx_node import Converter, OnnxNode, static_shape

MOST_TURNS = 1000  # of a loop; each adds its nodes to the graph


def _if(n: OnnxNode) -> Any:
    """A branch that is known is taken. Else both are computed, and one of each pair of results
    chosen, for which they must be alike."""
    condition = n.input(0)
    if isinstance(condition, Constant):
        return n.body("then_branch" if condition.value.all() else "else_branch")
    pairs = zip(n.body("then_branch"), n.body("else_branch"), strict=True)
    scalar = n.emit("reshape", condition, shape=())
    results = []
    for a, b in pairs:
        if a.type != b.type:
            n.known(0, "the condition of branches of different shapes")
        results.append(n.emit("where", scalar, a, b))
    return results


def _turns(n: OnnxNode) -> int:
    """How often a loop turns at most."""
    if n.optional(0) is None:
        return MOST_TURNS + 1
    return max(int(n.known(0, "the loop's trip count").item()), 0)


def _truth(n: OnnxNode, value: Value | None) -> bool:
    if value is not None and not isinstance(value, Constant):
        raise ImporterError(
            "the loop ends when the model's data say so, which is not supported",
            where=n.place,
            mend="a loop whose condition stays true, with a constant trip count",
        )
    return value is None or bool(value.value.all())


def _refuse_endless(n: OnnxNode, turn: int) -> None:
    if turn > MOST_TURNS:
        raise ImporterError(
            f"the loop turns more than {MOST_TURNS} times, too often to unroll", where=n.place
        )


def _stacked(n: OnnxNode, parts: Sequence[Value], axis: int = 0) -> Value:
    if not parts:
        raise ValueError("a loop that never turns has results to collect")
    rank = len(static_shape(parts[0])) + 1
    axis = normal_axis(n.op, axis, rank)
    rows = []
    for part in parts:
        shape = static_shape(part)
        rows.append(n.emit("reshape", part, shape=(*shape[:axis], 1, *shape[axis:])))
    whole: Value = n.emit("concatenate", *rows, axis=axis) if len(rows) > 1 else rows[0]
    return whole


def _loop(n: OnnxNode) -> Any:
    turns = _turns(n)
    if n.optional(1) is not None:
        n.known(1, "the loop's condition")
    going = _truth(n, n.optional(1))
    states = [n.input(k) for k in range(2, len(n.inputs))]
    scans: list[list[Value]] = [[] for _ in n.outputs[len(states) :]]
    turn = 0
    while going and turn < turns:
        _refuse_endless(n, turn + 1)
        number, truth = n.constant(turn, "int64"), n.constant(np.True_, "bool")
        condition, *results = n.body("body", number, truth, *states)
        states = results[: len(states)]
        for collected, value in zip(scans, results[len(states) :], strict=True):
            collected.append(value)
        going = _truth(n, condition)
        turn += 1
    return [*states, *(_stacked(n, parts) for parts in scans)]


def _scan(n: OnnxNode) -> Any:
    """Before opset 9 there is a batch dimension in front, and an input of lengths."""
    if n.opset < 9:
        raise ImporterError("Scan before opset 9 is not supported", where=n.place)
    count = n.attr("num_scan_inputs")
    values = [n.input(k) for k in range(len(n.inputs))]
    states, inputs = values[: len(values) - count], values[len(values) - count :]
    outputs = len(n.outputs) - len(states)
    axes = n.attr("scan_input_axes", [0] * count)
    backwards = n.attr("scan_input_directions", [0] * count)
    axes = [normal_axis(n.op, a, len(static_shape(v))) for a, v in zip(axes, inputs, strict=True)]
    turns = {static_shape(v)[a] for a, v in zip(axes, inputs, strict=True)}
    if len(turns) != 1:
        raise ValueError(f"the scanned inputs have {sorted(turns)} elements")
    (length,) = turns
    _refuse_endless(n, length)
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    for turn in range(length):
        parts = []
        for value, axis, back in zip(inputs, axes, backwards, strict=True):
            parts.append(_element(n, value, axis, length - 1 - turn if back else turn))
        results = n.body("body", *states, *parts)
        states = results[: len(states)]
        for own, result in zip(collected, results[len(states) :], strict=True):
            own.append(result)
    directions = n.attr("scan_output_directions", [0] * outputs)
    result_axes = n.attr("scan_output_axes", [0] * outputs)
    scanned = [
        _stacked(n, list(reversed(own)) if back else own, axis)
        for own, axis, back in zip(collected, result_axes, directions, strict=True)
    ]
    return [*states, *scanned]


def _element(n: OnnxNode, value: Value, axis: int, number: int) -> Value:
    """value[number] along an axis, which is left out."""
    shape = list(static_shape(value))
    begin = [number if d == axis else 0 for d in range(len(shape))]
    shape[axis] = 1
    part = n.emit("slice", value, begin=begin, step=[1] * len(shape), shape=shape)
    result: Value = n.emit("reshape", part, shape=[s for d, s in enumerate(shape) if d != axis])
    return result


CONTROL: dict[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
