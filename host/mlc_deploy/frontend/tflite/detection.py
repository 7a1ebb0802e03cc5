"""TFLite_Detection_PostProcess: decodes boxes, and keeps the best of those that overlap.

There are as many iterations as there may be results. Each iteration takes the best box left and
strikes out all that overlap it too much. So sizes do not depend on the data; missing results are
zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.nodes import Value
from ...ir import is_const, same_shape
from ..layers.shapes import iota, reshape, rows, top_k
from ..node import limited, shape_of
from .node import Converter, TfliteNode
from .quantized import dequantized_input

LOWEST = float(np.finfo(np.float32).min)  # the score of a box that is struck out
MOST_RESULTS = 1 << 16  # boxes that a file may ask for


@dataclass(frozen=True, slots=True)
class Options:
    detections: int  # at most
    classes_each: int  # of one box, at most
    per_class: int  # detections of a class, with by_class
    by_class: bool  # only boxes of one class strike out each other
    score: float  # the least
    overlap: float  # the most: intersection over union
    classes: int
    scales: tuple[float, float, float, float]  # of y, x, height and width


def _options(n: TfliteNode) -> Options:
    """The operator's options, a map of flexbuffers."""
    from flatbuffers import flexbuffers

    options = flexbuffers.GetRoot(n.custom).AsMap

    def number(key: str, default: float | None = None) -> float:
        try:
            return float(options[key].AsFloat)
        except KeyError:
            if default is None:
                raise
            return default

    found = Options(
        int(number("max_detections")),
        int(number("max_classes_per_detection")),
        int(number("detections_per_class", 100)),
        bool(number("use_regular_nms", 0)),
        number("nms_score_threshold"),
        number("nms_iou_threshold"),
        int(number("num_classes")),
        (number("y_scale"), number("x_scale"), number("h_scale"), number("w_scale")),
    )
    counts = (found.detections, found.classes_each, found.per_class, found.classes)
    if min(counts) < 1 or max(counts) > MOST_RESULTS or not 0 < found.overlap <= 1:
        raise ValueError(f"the options {counts}, overlap {found.overlap}")
    if 0 in found.scales:
        raise ValueError(f"the scales {found.scales}")
    return found


def _post_process(n: TfliteNode) -> Any:
    """Inputs: boxes [1, N, 4 or more], scores [1, N, classes (+ 1 for the background)], anchors
    [N, 4]. Outputs: boxes, classes, scores, and their number."""
    options = _options(n)
    boxes, scores, anchors = (dequantized_input(n, k) for k in range(3))
    (one, count, width), total = shape_of(boxes), shape_of(scores)[-1]
    fits = is_const(one, 1) and same_shape(shape_of(scores), (1, count, total))
    if not fits or width < 4 or count < 1:
        raise ValueError(f"boxes {list(shape_of(boxes))}, scores {list(shape_of(scores))}")
    if not same_shape(shape_of(anchors), (count, 4)) or not 0 <= total - options.classes <= 1:
        raise ValueError(f"anchors {list(shape_of(anchors))}, {total} classes")
    corners = _corners(n, reshape(n, boxes, (count, width)), anchors, options)
    own = rows(n, reshape(n, scores, (count, total)), total - options.classes, options.classes, 1)
    if options.by_class:
        places, best, classes = _best_by_class(n, corners, own, options)
    else:
        places, best, classes = _best(n, corners, own, options)
    there = n.emit("greater", best, n.constant(LOWEST, "float32"))
    zero = n.constant(0, "float32")
    slots = shape_of(best)[0]

    def kept(value: Value) -> Value:
        return n.emit("where", there, n.cast(value, "float32"), zero)

    found = [kept(n.emit("gather", side, places, axis=0)) for side in corners]
    result = n.emit("concatenate", *(reshape(n, side, (slots, 1)) for side in found), axis=1)
    counted = n.cast(there, "float32")
    number = n.emit("sum", counted, axes=[0], keepdims=True)
    if not options.by_class:
        each = min(options.classes_each, options.classes)
        number = n.emit("divide", number, n.constant(each, "float32"))
    return [
        reshape(n, result, (1, slots, 4)),
        reshape(n, kept(classes), (1, slots)),
        reshape(n, kept(best), (1, slots)),
        number,
    ]


def _corners(n: TfliteNode, boxes: Value, anchors: Value, options: Options) -> list[Value]:
    """The least y and x, and the largest y and x, of each box."""
    count = shape_of(boxes)[0]

    def column(value: Value, number: int) -> Value:
        return reshape(n, rows(n, value, number, 1, 1), (count,))

    def scaled(number: int) -> Value:
        return n.emit(
            "divide", column(boxes, number), n.constant(options.scales[number], "float32")
        )

    sides = []
    for axis in (0, 1):
        size = column(anchors, 2 + axis)
        centre = n.emit("add", n.emit("multiply", scaled(axis), size), column(anchors, axis))
        reach = n.emit("multiply", n.emit("exp", scaled(2 + axis)), size)
        half = n.emit("multiply", reach, n.constant(0.5, "float32"))
        sides.append((n.emit("subtract", centre, half), n.emit("add", centre, half)))
    (top, bottom), (left, right) = sides
    return [top, left, bottom, right]


def _best(
    n: TfliteNode, corners: list[Value], scores: Value, options: Options
) -> tuple[Value, Value, Value]:
    """The best boxes by their best class; each with its classes_each best classes."""
    each, count = min(options.classes_each, options.classes), shape_of(scores)[0]
    values, classes = top_k(n, scores, each, 1, True)
    first = reshape(n, rows(n, values, 0, 1, 1), (1, count))
    places, best = _suppressed(n, corners, first, options, options.detections)
    slots = (options.detections,)
    places, best = (reshape(n, v, slots) for v in (places, best))
    there = n.emit("greater", best, n.constant(LOWEST, "float32"))
    lowest = n.constant(LOWEST, "float32")
    wide = (options.detections, options.classes_each)

    def spread(value: Value, fill: Any) -> Value:
        """[detections, each] with what is missing of classes_each filled."""
        more = options.classes_each - each
        padded = n.emit("pad", value, pads=[0, 0, 0, more], mode="constant", value=fill)
        return reshape(n, padded, (options.detections * options.classes_each,))

    own = n.emit("gather", values, places, axis=0)
    kept = n.emit("where", reshape(n, there, (options.detections, 1)), own, lowest)
    column = reshape(n, places, (options.detections, 1))
    every = reshape(n, n.emit("broadcast_to", column, shape=wide), (wide[0] * wide[1],))
    return every, spread(kept, LOWEST), spread(n.emit("gather", classes, places, axis=0), 0)


def _best_by_class(
    n: TfliteNode, corners: list[Value], scores: Value, options: Options
) -> tuple[Value, Value, Value]:
    """The best boxes among those that each class keeps."""
    by_class = n.emit("transpose", scores, axes=(1, 0))
    turns = min(options.per_class, shape_of(scores)[0])
    places, best = _suppressed(n, corners, by_class, options, turns)
    every = turns * options.classes
    limited(every, "a list of detections")
    numbers = iota(n, options.classes, 2, 0)
    classes = reshape(n, n.emit("broadcast_to", numbers, shape=(options.classes, turns)), (every,))
    flat = [reshape(n, v, (every,)) for v in (places, best)]
    most = min(options.detections, every)
    values, at = top_k(n, flat[1], most, 0, True)
    chosen = [n.emit("gather", v, at, axis=0) for v in (flat[0], classes)]
    more = options.detections - most

    def filled(value: Value, fill: Any) -> Value:
        return n.emit("pad", value, pads=[0, more], mode="constant", value=fill) if more else value

    return filled(chosen[0], 0), filled(values, LOWEST), filled(chosen[1], 0)


def _suppressed(
    n: TfliteNode, corners: list[Value], scores: Value, options: Options, turns: int
) -> tuple[Value, Value]:
    """The places and scores of the boxes kept for each row of scores [rows, N]: [rows, turns] each,
    the best first. Beyond the last one the score is LOWEST."""
    groups, count = shape_of(scores)
    zero, lowest = n.constant(0, "float32"), n.constant(LOWEST, "float32")
    top, left, bottom, right = corners
    height, width = n.emit("subtract", bottom, top), n.emit("subtract", right, left)
    area = n.emit("multiply", height, width)
    enough = n.emit("greater_equal", scores, n.constant(options.score, "float32"))
    begun = n.emit("where", enough, scores, lowest)
    numbers = iota(n, count, 2, 1)

    def step(_turn: Value, states: list[Value], _parts: list[Value]) -> Any:
        (left_over,) = states
        best = n.emit("max", left_over, axes=[1], keepdims=True)
        place = n.cast(n.emit("argmax", left_over, axis=1, keepdims=True, last=False), "int64")

        def common(low: Value, high: Value) -> Value:
            own = [n.emit("gather", side, place, axis=0) for side in (low, high)]
            span = n.emit(
                "subtract", n.emit("minimum", high, own[1]), n.emit("maximum", low, own[0])
            )
            return n.emit("maximum", span, zero)

        own_area = n.emit("gather", area, place, axis=0)
        both = n.emit("multiply", common(top, bottom), common(left, right))
        union = n.emit("subtract", n.emit("add", area, own_area), both)
        flat = n.emit(
            "logical_or", n.emit("less_equal", area, zero), n.emit("less_equal", own_area, zero)
        )
        ratio = n.emit("where", flat, zero, n.emit("divide", both, union))
        covered = n.emit("greater", ratio, n.constant(options.overlap, "float32"))
        gone = n.emit("logical_or", covered, n.emit("equal", numbers, place))
        return [n.emit("where", gone, lowest, left_over)], [place, best]

    _, (places, best) = n.emit_loop(turns, [begun], step, written=(False, False))
    return tuple(  # type: ignore[return-value]
        n.emit("transpose", reshape(n, v, (turns, groups)), axes=(1, 0)) for v in (places, best)
    )


DETECTION: dict[str, Converter] = {"CUSTOM TFLite_Detection_PostProcess": _post_process}
