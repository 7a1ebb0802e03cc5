"""Runs a net by the reference evaluator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from onnx import ModelProto, helper

from ..errors import ImporterError
from ..frontend import from_onnx
from ..frontend.onnx_node import Converter
from ..frontend.refusals import OTHER_SIZES
from ..graph import Function, evaluate
from ..graph.passes import eliminate_dead_code, fold_constants, optimize
from .net import WEIGHTS, Array, Layer, Net, with_inputs

Sample = Mapping[str, Array]  # the inputs of one run, by name


def run(net: Net, samples: Iterable[Sample], tapped: Sequence[str] = ()) -> Iterator[Sample]:
    """The outputs of each run, and its `tapped` tensors, by name. Raises ImporterError."""
    proto = net.proto(tapped)
    functions: dict[tuple[tuple[int, ...], ...], Function] = {}
    for sample in samples:
        key = tuple(a.shape for a in sample.values())
        if key not in functions:
            functions[key] = _function(proto, sample, net.converters)
        yield evaluate(functions[key], sample)


def _function(proto: ModelProto, sample: Sample, converters: Mapping[str, Converter]) -> Function:
    shapes = {name: array.shape for name, array in sample.items()}
    try:
        function = from_onnx(proto, shapes, converters=converters)
    except ImporterError as error:
        mended = error.mend and not error.mend.startswith(
            OTHER_SIZES
        )  # known only at run time here
        if mended or not _open(proto):
            raise
        given = ", ".join(f"'{name}' {list(shape)}" for name, shape in shapes.items())
        what = f"{error.what}, where the data are {given}"
        mend = "data of a size that the model takes; of images, --preprocess 'resize=HEIGHTxWIDTH'"
        raise type(error)(what, where=error.where, mend=mend) from error
    return optimize(function, (fold_constants, eliminate_dead_code))


def _open(proto: ModelProto) -> bool:
    """Whether inputs of the model have dynamic extents."""
    shapes = (i.type.tensor_type.shape for i in proto.graph.input)
    return any(not dim.dim_value for shape in shapes for dim in shape.dim)


def alone(net: Net, layer: Layer, x: Array, weights: Array) -> Array:
    """The result of a layer for data x with these weights, without its bias."""
    outputs = weights.shape[layer.axis]
    inputs = ["x", "w"]
    constants = {"w": weights}
    if layer.bias:
        inputs.append("b")
        constants["b"] = np.zeros(outputs, np.float32)
    node = with_inputs(layer.node, inputs)
    assert node.input[WEIGHTS] == "w"
    name = node.output[0]
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info(name, 1, None)],
    )
    source = helper.make_model(graph, opset_imports=net.source.opset_import)
    source.ir_version = net.source.ir_version
    function = from_onnx(Net(source, (node,), constants).proto(), converters=net.converters)
    (result,) = evaluate(function, {"x": x}).values()
    return result
