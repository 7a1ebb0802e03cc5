"""Converters of control flow.

A known condition takes its branch at once; any other condition is decided on the board. A loop
stays a loop if every iteration does the same to tensors of the same shapes. It is written out
iteration by iteration if it computes only constants, such as shapes, or if an iteration's number
decides about shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import ImporterError, ModelWarning
from ..graph.nodes import Constant, Value
from ..ir import Dim, Expr, is_const, same_shape
from ..ops.shape import normal_axis
from .extents import smaller
from .layers.loops import ENDLESS, loop
from .layers.shapes import counted_rows, expand, grown, reshape, select, stacked
from .node import MOST_TURNS, shape_of
from .onnx_counted import counted_iterations
from .onnx_node import Converter, Given, NeedsValue, OnnxNode, TensorList, tensors
from .refusals import MISTAKES


class Unlike(Exception):
    """The types of a loop's states, or of two branches' results, differ."""


def _if(n: OnnxNode) -> Any:
    """A constant condition takes its branch. Otherwise both are converted and must give results of
    one type. If one cannot be converted, for example because it is for other shapes, the other one
    is taken, unless shapes are known only at run time."""
    condition = n.input(0)
    if isinstance(condition, Constant):
        return n.body("then_branch" if condition.value.all() else "else_branch")
    try:
        with n.extents.tried() as added:
            results = _branch(n, condition)
            if not added():
                return results
            raise Unlike
    except Unlike:
        with n.extents.tried():
            return _both(n, condition)
    except ImporterError as error:
        if not isinstance(error.__cause__, MISTAKES) or n.extents.most:
            raise
        mistake = error
    for name in ("then_branch", "else_branch"):
        try:
            n.tried(lambda name=name: n.body(name))  # type: ignore[misc]
        except ImporterError as error:
            if not isinstance(error.__cause__, MISTAKES):
                raise
        else:
            what = f"{n.place}: only its {name} fits the shapes, and is taken whatever the"
            warnings.warn(f"{what} condition is ({mistake.what})", ModelWarning, stacklevel=2)
            return n.body(name)
    raise mistake


def _branch(n: OnnxNode, condition: Value) -> list[Value]:
    types: list[list[Any]] = []

    def taken(name: str) -> list[Value]:
        results = _of_branch(n, name)
        types.append([v.type for v in results])
        if types[0] != types[-1]:
            raise Unlike
        return results

    truth = reshape(n, condition, ())
    return n.emit_branch(truth, lambda: taken("then_branch"), lambda: taken("else_branch"))


def _both(n: OnnxNode, condition: Value) -> list[Value]:
    """The results of branches that give different numbers of rows. Both branches are computed."""
    truth = reshape(n, condition, ())
    pairs = zip(_of_branch(n, "then_branch"), _of_branch(n, "else_branch"), strict=True)
    return [_chosen(n, truth, a, b) for a, b in pairs]


def _of_branch(n: OnnxNode, name: str) -> list[Value]:
    """The results of a branch that the board may choose. Raises NeedsValue for sequences."""
    results = n.body(name)
    if any(v is None or isinstance(v, TensorList) for v in results):
        n.known(0, "the condition of branches that give sequences or optionals")
    return tensors(results)


def _chosen(n: OnnxNode, truth: Value, a: Value, b: Value) -> Value:
    if a.type == b.type:
        return n.emit("where", truth, a, b)
    (one, *rest), (other, *others) = (shape_of(v) or (0,) for v in (a, b))
    alike = a.type.dtype == b.type.dtype and len(shape_of(a)) == len(shape_of(b)) > 0
    if not same_shape(rest, others) or not alike:
        n.known(0, "the condition of branches of different shapes")
    most = max(n.extents.largest(one), n.extents.largest(other))
    rows = n.emit("where", truth, *(grown(n, v, most) for v in (a, b)))
    counts = [n.extents.value(n, extent) for extent in (one, other)]
    return counted_rows(n, rows, n.emit("where", truth, *counts), "chosen")


def _loop(n: OnnxNode) -> Any:
    given = n.inputs[2:]
    most, going = n.optional(0), n.optional(1)
    if isinstance(going, Constant) and not going.value.all():
        most = n.constant(0, "int64")
    counted = counted_iterations(n, most, going, given)
    if isinstance(counted, Expr):
        return _of_extent(n, lambda: _counted_loop(n, counted, tensors(given)))
    most = most if counted is None else n.constant(counted, "int64")
    extent = _extent(n, most)
    known = most is None or isinstance(most, Constant)
    if extent is not None:
        return _of_extent(n, lambda: _as_loop(n, extent, None, going, tensors(given)))
    turns = ENDLESS if most is None or not known else max(n.whole(0, "the trip count"), 0)
    if isinstance(most, Constant) and not turns:
        return _never(n, given, lambda: _turn_of(n, tensors(given))[1 + len(given) :])
    if any(v is None or isinstance(v, TensorList) for v in given):
        return _written_out(n, turns if known else n.whole(0, "the trip count"), going, given)
    states = tensors(given)
    if turns > ENDLESS:
        raise n.refuse(f"the loop runs {turns} times; {ENDLESS} are the most")
    try:
        if not (known and turns <= MOST_TURNS and _computes_constants(n, states)):
            return _as_loop(n, turns, None if known else most, going, states)
    except (Unlike, ImporterError, ValueError) as error:
        reason = _growing(n) if isinstance(error, Unlike) else error
        if not known:
            _needs_count(n, reason)
        if turns > MOST_TURNS:
            raise reason from None
    return _written_out(n, turns, going, states)


def _needs_count(n: OnnxNode, reason: Exception) -> None:
    """Raises NeedsValue for the trip count, with the reason why it is needed."""
    try:
        n.whole(0, "the loop's trip count")
    except NeedsValue as error:
        if not isinstance(reason, ImporterError) or isinstance(reason, NeedsValue):
            raise
        mend = f"{reason.mend}, or {error.mend}" if reason.mend else error.mend
        raise NeedsValue(reason.what, reason.where, mend, error.names) from None


def _extent(n: OnnxNode, most: Value | None) -> Dim | None:
    """The extent of a run that is the trip count; None if the trip count is not an extent."""
    found = None if most is None else n.extents.of(most)
    (extent,) = found.ravel().tolist() if found is not None and found.size == 1 else (None,)
    return extent if isinstance(extent, Expr) else None


def _of_extent(n: OnnxNode, convert: Callable[[], list[Value]]) -> list[Value]:
    """A loop that cannot be written out. Raises ImporterError if its state changes its shape."""
    try:
        return convert()
    except Unlike:
        raise _growing(n) from None


def _never(n: OnnxNode, states: Sequence[Given], turn: Callable[[], list[Value]]) -> list[Given]:
    """The states, and results without an element, of the types that `turn`, an iteration, gives."""
    every = n.tried(turn) if len(n.outputs) > len(states) else []
    return [*states, *(_none_of(n, value) for value in every)]


def _none_of(n: OnnxNode, element: Value) -> Value:
    """No element of results, each of the type of a value."""
    return expand(n, n.constant(0, element.type.dtype), (0, *shape_of(element)))


def _growing(n: OnnxNode) -> ImporterError:
    return n.refuse(
        "the loop's state changes its shape from iteration to iteration, and the number of "
        "iterations is known only at run time",
        "a loop with a constant trip count, or whose state keeps its shape",
    )


def _uncounted(n: OnnxNode) -> ImporterError:
    return n.refuse(
        "the loop collects results, and nothing says how many at most",
        "a constant trip count: the loop's condition may end it earlier",
    )


def _turn(n: OnnxNode, number: Value, states: Sequence[Given]) -> list[Given]:
    """The condition, the states and the elements of results that an iteration gives."""
    return n.body("body", number, n.constant(np.True_, "bool"), *states)


def _computes_constants(n: OnnxNode, states: Sequence[Value]) -> bool:
    """Whether an iteration on constants gives constants."""
    if not states or not all(isinstance(s, Constant) for s in states):
        return False
    found = n.tried(lambda: _turn(n, n.constant(0, "int64"), states))
    return all(isinstance(v, Constant) for v in found)


def _as_loop(
    n: OnnxNode, turns: Dim, most: Value | None, going: Value | None, states: Sequence[Value]
) -> list[Value]:
    """A loop of at most `turns` iterations; `most`, if given, is the trip count when the model
    runs."""
    results = len(n.outputs) - len(states)
    again = n.tried(lambda: _turn_of(n, states))[0]
    decided = isinstance(again, Constant)
    if isinstance(again, Constant) and not again.value.all():
        turns = smaller(turns, 1)
    if decided and most is None and (going is None or isinstance(going, Constant)):
        if is_const(turns, ENDLESS):
            raise n.refuse("nothing ends the loop", "a trip count, or a condition that changes")
        return _counted_loop(n, turns, states)
    if results and is_const(turns, ENDLESS):
        raise _uncounted(n)
    counter = [n.constant(0, "int64")] if results else []
    truth = n.constant(np.True_, "bool") if going is None else reshape(n, going, ())
    if most is not None:
        limit = reshape(n, n.cast(most, "int64"), ())
        truth = n.emit("logical_and", truth, n.emit("greater", limit, n.constant(0, "int64")))

    def conditional(number: Value, own: list[Value], _: list[Value]) -> Any:
        condition, *given = tensors(_turn(n, number, own[1 + len(counter) :]))
        following = n.emit("add", number, n.constant(1, "int64"))
        truth = reshape(n, condition, ())
        if most is not None:
            truth = n.emit("logical_and", truth, n.emit("greater", limit, following))
        after, collected = given[: len(states)], given[len(states) :]
        return [truth, *[following for _ in counter], *_kept(after, states)], collected

    (_, *ends), collected = n.emit_loop(
        turns, [truth, *counter, *states], conditional, written=[False] * results, conditional=True
    )
    if collected:
        count, *ends = ends
        collected = [counted_rows(n, x, count, "turns") for x in collected]
    return [*ends, *collected]


def _counted_loop(n: OnnxNode, turns: Dim, states: Sequence[Value]) -> list[Value]:
    """A loop of that many iterations, whatever condition its body computes."""

    def step(number: Value, own: list[Value], _: list[Value]) -> Any:
        given = tensors(_turn(n, number, own)[1:])
        return _kept(given[: len(states)], states), given[len(states) :]

    written = [False] * (len(n.outputs) - len(states))
    ends, collected = loop(n, turns, states, step, written=written)
    return [*ends, *collected]


def _turn_of(n: OnnxNode, states: Sequence[Value]) -> list[Value]:
    """The condition and results of an iteration of unknown number."""
    found: list[Value] = []

    def step(number: Value, own: list[Value], _: list[Value]) -> Any:
        found.extend(tensors(_turn(n, number, own)))
        return own, []

    n.emit_loop(1, states, step)
    return found


def _kept(after: Sequence[Value], before: Sequence[Value]) -> list[Value]:
    if [v.type for v in after] != [v.type for v in before]:
        raise Unlike
    return list(after)


def _written_out(
    n: OnnxNode, turns: int, going: Value | None, states: Sequence[Given]
) -> list[Given]:
    """Emits the loop iteration by iteration."""
    own = list(states)
    scans: list[list[Value]] = [[] for _ in n.outputs[len(own) :]]
    if going is not None:
        n.known(1, "the loop's condition")
    for turn in range(turns):
        if turn == MOST_TURNS:
            raise n.refuse(f"the loop runs more than {MOST_TURNS} times, too often to write out")
        condition, *results = _turn(n, n.constant(turn, "int64"), own)
        own = results[: len(own)]
        for collected, value in zip(scans, tensors(results[len(own) :]), strict=True):
            collected.append(value)
        if not isinstance(condition, Constant):
            raise _uncounted(n) if scans else _growing(n)
        if not condition.value.all():
            break
    return [*own, *(_collected(n, parts) for parts in scans)]


def _collected(n: OnnxNode, parts: Sequence[Value], axis: int = 0) -> Value:
    if not parts:
        raise ValueError("a loop that never runs has results to collect")
    return stacked(n, parts, axis)


def _scan(n: OnnxNode) -> Any:
    if n.opset < 9:
        return _scan_batches(n)
    return _scan_of(n, n.every())


def _scan_batches(n: OnnxNode) -> Any:
    """Before opset 9 all tensors have a leading batch dimension, and there is an input of
    lengths."""
    if n.optional(0) is not None:
        raise n.refuse("lengths of sequences are not supported", "Scan of opset 9")
    values = [n.input(k) for k in range(1, len(n.inputs))]
    batches = range(shape_of(values[0])[0])
    every = [_scan_of(n, [select(n, v, batch) for v in values]) for batch in batches]
    return [stacked(n, parts) for parts in zip(*every, strict=True)]


def _scan_of(n: OnnxNode, values: list[Value]) -> list[Value]:
    count = n.attr("num_scan_inputs")
    states, inputs = values[: len(values) - count], values[len(values) - count :]
    outputs = len(n.outputs) - len(states)
    axes = n.attr("scan_input_axes", [0] * count)
    way = "directions" if n.opset < 9 else "scan_input_directions"
    backwards = [bool(d) for d in n.attr(way, [0] * count)]
    axes = [normal_axis(n.op, a, len(shape_of(v))) for a, v in zip(axes, inputs, strict=True)]
    turns = {shape_of(v)[a] for a, v in zip(axes, inputs, strict=True)}
    if len(turns) != 1:
        raise ValueError(f"the scanned inputs have {sorted(turns)} elements")
    (length,) = turns
    directions = [bool(d) for d in n.attr("scan_output_directions", [0] * outputs)]
    result_axes = n.attr("scan_output_axes", [0] * outputs)
    if isinstance(length, int) and not length:
        parts = [
            n.constant(np.zeros([e for d, e in enumerate(shape_of(v)) if d != a]), v.type.dtype)
            for a, v in zip(axes, inputs, strict=True)
        ]
        elements = partial(n.body, "body", *states, *parts)
        return tensors(_never(n, states, lambda: tensors(elements())[len(states) :]))
    read = [
        (_axis_first(n, v, a), back) for v, a, back in zip(inputs, axes, backwards, strict=True)
    ]

    def step(_: Value, own: list[Value], parts: list[Value]) -> Any:
        given = tensors(n.body("body", *own, *parts))
        return _kept(given[: len(states)], states), given[len(states) :]

    try:
        ends, scanned = loop(n, length, states, step, read=read, written=directions)
    except Unlike:
        return _scan_written_out(n, length, states, read, directions, result_axes)
    return [*ends, *(_axis_last(n, v, a) for v, a in zip(scanned, result_axes, strict=True))]


def _scan_written_out(
    n: OnnxNode, length: Dim, states: Sequence[Value], read: Sequence[tuple[Value, bool]],
    directions: Sequence[bool], axes: Sequence[int],
) -> list[Value]:  # fmt: skip
    own = list(states)
    scans: list[list[Value]] = [[] for _ in axes]
    if isinstance(length, Expr):
        raise _growing(n)
    if length > MOST_TURNS:
        raise n.refuse(f"the loop runs more than {MOST_TURNS} times, too often to write out")
    for turn in range(length):
        parts = [select(n, x, length - 1 - turn if back else turn) for x, back in read]
        results = tensors(n.body("body", *own, *parts))
        own = results[: len(own)]
        for collected, value in zip(scans, results[len(own) :], strict=True):
            collected.append(value)
    every = [
        _collected(n, parts[::-1] if back else parts, axis)
        for parts, back, axis in zip(scans, directions, axes, strict=True)
    ]
    return [*own, *every]


def _axis_first(n: OnnxNode, x: Value, axis: int) -> Value:
    order = [axis, *(a for a in range(len(shape_of(x))) if a != axis)]
    return x if axis == 0 else n.emit("transpose", x, axes=order)


def _axis_last(n: OnnxNode, x: Value, axis: int) -> Value:
    """x with its dimension 0 moved to `axis`."""
    rank = len(shape_of(x))
    order = list(range(1, rank))
    order.insert(normal_axis(n.op, axis, rank), 0)
    return x if order[0] == 0 else n.emit("transpose", x, axes=order)


CONTROL: dict[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
