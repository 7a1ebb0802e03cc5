"""Converters of control flow: a known branch is taken, else both are computed; loops unroll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Value
from ..ops.shape import normal_axis
from .layers.shapes import reshape, select, stacked
from .node import MOST_TURNS, shape_of
from .onnx_node import Converter, OnnxNode


def _if(n: OnnxNode) -> Any:
    """A constant condition takes its branch. Else both branches are computed, and the condition
    chooses from each pair of results, which must have one type."""
    condition = n.input(0)
    if isinstance(condition, Constant):
        return n.body("then_branch" if condition.value.all() else "else_branch")
    pairs = zip(n.body("then_branch"), n.body("else_branch"), strict=True)
    scalar = reshape(n, condition, ())
    results = []
    for a, b in pairs:
        if a.type != b.type:
            n.known(0, "the condition of branches of different shapes")
        results.append(n.emit("where", scalar, a, b))
    return results


def _turns(n: OnnxNode) -> int:
    """The most turns of a loop."""
    if n.optional(0) is None:
        return MOST_TURNS + 1
    return max(n.whole(0, "the loop's trip count"), 0)


def _truth(n: OnnxNode, value: Value | None) -> bool:
    if value is not None and not isinstance(value, Constant):
        raise n.refuse(
            "the loop ends when the model's data say so, which is not supported",
            "a loop whose condition stays true, with a constant trip count",
        )
    return value is None or bool(value.value.all())


def _refuse_endless(n: OnnxNode, turn: int) -> None:
    if turn > MOST_TURNS:
        raise n.refuse(f"the loop turns more than {MOST_TURNS} times, too often to unroll")


def _collected(n: OnnxNode, parts: Sequence[Value], axis: int = 0) -> Value:
    if not parts:
        raise ValueError("a loop that never turns has results to collect")
    return stacked(n, parts, axis)


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
    return [*states, *(_collected(n, parts) for parts in scans)]


def _scan(n: OnnxNode) -> Any:
    """Before opset 9 there is a batch dimension in front, and an input of lengths."""
    if n.opset < 9:
        raise n.refuse("Scan before opset 9 is not supported")
    count = n.attr("num_scan_inputs")
    values = n.every()
    states, inputs = values[: len(values) - count], values[len(values) - count :]
    outputs = len(n.outputs) - len(states)
    axes = n.attr("scan_input_axes", [0] * count)
    backwards = n.attr("scan_input_directions", [0] * count)
    axes = [normal_axis(n.op, a, len(shape_of(v))) for a, v in zip(axes, inputs, strict=True)]
    turns = {shape_of(v)[a] for a, v in zip(axes, inputs, strict=True)}
    if len(turns) != 1:
        raise ValueError(f"the scanned inputs have {sorted(turns)} elements")
    (length,) = turns
    _refuse_endless(n, length)
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    for turn in range(length):
        parts = []
        for value, axis, back in zip(inputs, axes, backwards, strict=True):
            parts.append(select(n, value, length - 1 - turn if back else turn, axis))
        results = n.body("body", *states, *parts)
        states = results[: len(states)]
        for own, result in zip(collected, results[len(states) :], strict=True):
            own.append(result)
    directions = n.attr("scan_output_directions", [0] * outputs)
    result_axes = n.attr("scan_output_axes", [0] * outputs)
    scanned = [
        _collected(n, list(reversed(own)) if back else own, axis)
        for own, axis, back in zip(collected, result_axes, directions, strict=True)
    ]
    return [*states, *scanned]


CONTROL: dict[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
