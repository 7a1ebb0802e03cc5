"""Calibration: finds a range for every tensor that layers read, from runs of the float model.

A tensor gets the range that costs its layers the least error. A layer is linear: it multiplies an
error of its data by its weights. So the squared errors of a channel count by the squares of its
weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from .insert import rounded_weights
from .net import Array, Layer, Net, attributes
from .ranges import KEPT, Range, Seen, proposals
from .run import Sample, alone, run

JUDGED = 3  # runs to compare ranges and to measure the errors of layers
# Operators that only move numbers: the result keeps the input's range, so that integers pass.
PASSES = (
    "DepthToSpace", "Expand", "Flatten", "Gather", "MaxPool", "Reshape", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """outputs: of the float model, by run. ranges: by tensor. data: the tensors that layers read,
    in the first runs."""

    outputs: tuple[Sample, ...]
    ranges: Mapping[str, Range]
    data: Mapping[str, tuple[Array, ...]]


def calibrate(net: Net, samples: Sequence[Sample]) -> Calibration:
    """Calibrates by runs. Raises ImporterError, and InputError for NaN or infinity in a tensor."""
    wanted = list(dict.fromkeys(layer.data for layer in net.layers))
    seen = {name: Seen() for name in wanted}
    data: dict[str, list[Array]] = {name: [] for name in wanted}
    outputs: list[Sample] = []
    share = max(1, KEPT // max(len(samples), 1))
    for number, found in enumerate(run(net, samples, wanted)):
        for name in wanted:
            if not np.all(np.isfinite(found[name])):
                raise InputError(
                    f"the float model makes NaN or infinity of run {number + 1}: "
                    f"its tensor '{name}'",
                    mend="calibration data without such numbers; the model's own --preprocess",
                )
            seen[name].add(found[name], share)
            if number < JUDGED:
                data[name].append(found[name])
        outputs.append({name: found[name] for name in net.outputs})
    kept = {name: tuple(arrays) for name, arrays in data.items()}
    ranges = {}
    for name in wanted:
        layers = [layer for layer in net.layers if layer.data == name]
        ranges[name] = _best(layers, proposals(seen[name]), kept[name])
    return Calibration(tuple(outputs), _passed(net, ranges), kept)


def _best(layers: Sequence[Layer], ranges: Sequence[Range], data: Sequence[Array]) -> Range:
    """The range that gives the layers' results the least error."""
    if len(ranges) == 1:
        return ranges[0]

    def cost(of: Range) -> float:
        total = 0.0
        for x in data:
            error = np.square(of.rounded(x) - x, dtype=np.float64)
            total += sum(
                float((_by_channel(layer, error) * _reach(layer)).sum()) for layer in layers
            )
        return total

    return min(ranges, key=cost)


def _by_channel(layer: Layer, x: Array) -> Array:
    """The sum of x over all axes but that of the layer's input channels."""
    axis = layer.channel % x.ndim
    return np.asarray(x.sum(axis=tuple(a for a in range(x.ndim) if a != axis)))


def _reach(layer: Layer) -> Array:
    """For each input channel, the sum of the squares of the weights that read it."""
    squares = np.square(layer.weights, dtype=np.float64)
    if layer.node.op_type != "Conv":
        found: Array = squares.sum(axis=layer.axis)
        return found
    groups = int(attributes(layer.node).get("group", 1))
    outputs, inputs = squares.shape[:2]
    by_group = squares.reshape(groups, outputs // groups, inputs, -1)
    return np.asarray(by_group.sum((1, 3)).reshape(-1))


def _passed(net: Net, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges; a tensor made by moving a quantized one's numbers takes that one's range."""

    def source(name: str) -> str:
        node = net.makers.get(name)
        while node is not None and node.op_type in PASSES:
            name = node.input[0]
            if name in ranges:
                break
            node = net.makers.get(name)
        return name

    found = dict(ranges)
    for name in ranges:  # in the order of the nodes
        origin = source(name)
        if origin in found:
            found[name] = found[origin]
    return found


@dataclass(frozen=True)
class Miss:
    """The errors of a layer in integers on the float model's data: the relative error of its
    result, and the mean error of each output."""

    error: float
    mean: Array


def misses(net: Net, calibration: Calibration) -> dict[str, Miss]:
    """The errors of each layer, by the first runs."""
    return {layer.name: _miss(net, layer, calibration) for layer in net.layers}


def _miss(net: Net, layer: Layer, calibration: Calibration) -> Miss:
    of, weights = calibration.ranges[layer.data], rounded_weights(layer)
    sums, count, wrong, size = np.zeros(layer.weights.shape[layer.axis]), 0, 0.0, 0.0
    for x in calibration.data[layer.data]:
        right = alone(net, layer, x, layer.weights)
        miss = alone(net, layer, of.rounded(x), weights) - right
        rows = np.moveaxis(miss, layer.channel, -1).reshape(-1, sums.size)
        sums += rows.sum(0, dtype=np.float64)
        count += len(rows)
        wrong += float(np.square(miss, dtype=np.float64).sum())
        size += float(np.square(right, dtype=np.float64).sum())
    return Miss(float(np.sqrt(wrong / size)) if size else 0.0, sums / max(count, 1))


def corrected_biases(net: Net, known: Mapping[str, Miss]) -> dict[str, Array]:
    """By layer: the bias minus the mean error of each output in integers (Nagel et al.,
    "Data-Free Quantization through Weight Equalization and Bias Correction", ICCV 2019)."""
    return {
        layer.name: (net.constants[layer.bias].reshape(-1) - known[layer.name].mean).astype(
            np.float32
        )
        for layer in net.layers
        if layer.bias
    }


# ------------------------------------------------------------------------------- equalization

EQUAL_AFTER = ("Relu",)  # f(s * x) = s * f(x), for s > 0
LEAST, MOST = 1e-2, 1e2  # a scale outside belongs to a dead channel


def equalized(net: Net) -> Net:
    """conv2(relu(conv1(x, w)), v)   =>   conv2(relu(conv1(x, w * s)), v / s)

    The scales s, one per channel, make the weights of both layers alike in size (Nagel et al., as
    above). The result is the same. Without such pairs, returns the net itself."""
    for _ in range(2):  # pairs overlap: one changes the weights of the next
        for layer in net.layers:
            net = _equal_pair(net, layer.name)
    return net


def _equal_pair(net: Net, name: str) -> Net:
    first = next(layer for layer in net.layers if layer.name == name)
    tensor, node = first.node.output[0], first.node
    while True:
        readers = net.readers.get(tensor, ())
        if len(readers) != 1 or tensor in net.outputs or len(node.output) != 1:
            return net
        node = readers[0]
        if node.op_type not in EQUAL_AFTER:
            break
        tensor = node.output[0]
    second = next((layer for layer in net.layers if layer.name == node.name), None)
    if second is None or second.data != tensor or {first.axis, second.axis} != {0}:
        return net
    if first.node.op_type != "Conv" or second.node.op_type != "Conv":
        return net
    if any(len(net.readers[layer.node.input[1]]) != 1 for layer in (first, second)):
        return net
    outputs = first.weights.shape[0]
    depthwise = second.weights.shape[1] == 1 and second.weights.shape[0] == outputs
    if not depthwise and second.weights.shape[1] != outputs:
        return net
    along = 0 if depthwise else 1
    rest = tuple(a for a in range(second.weights.ndim) if a != along)
    top = np.abs(first.weights).reshape(outputs, -1).max(1)
    bottom = np.abs(second.weights).max(axis=rest)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.sqrt(bottom / top)
    scale = np.where(np.isfinite(scale) & (scale > LEAST) & (scale < MOST), scale, 1)
    scale = scale.astype(np.float32)
    constants = dict(net.constants)
    own, other = [-1] + [1] * (first.weights.ndim - 1), [1] * second.weights.ndim
    other[along] = -1
    constants[first.node.input[1]] = first.weights * scale.reshape(own)
    constants[second.node.input[1]] = second.weights / scale.reshape(other)
    if first.bias:
        if len(net.readers[first.bias]) != 1:
            return net
        constants[first.bias] = constants[first.bias] * scale
    return net.with_(net.nodes, constants)
