"""ONNX models that several tests use, and small ones made on the spot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

Array = NDArray[Any]

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def light_model(name: str, seed: int = 0) -> ModelProto:
    """A light model of the onnx package with random weights.

    Its own are all one number, made by ConstantOfShape: then the answer hardly depends on the
    input. Weights are drawn so that activations keep their size from layer to layer. What the
    softmax at the end reads is an output too, since a softmax may hide most of an error.
    """
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    rng = np.random.default_rng(seed)
    positive = {  # scale and variance
        name
        for n in model.graph.node
        if n.op_type == "BatchNormalization"
        for name in n.input[1::3]
    }
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = shapes[node.input[0]]
        if node.output[0] in positive:
            array = rng.uniform(0.5, 1.5, shape)
        elif len(shape) == 1:
            array = rng.normal(0, 0.1, shape)
        else:
            array = rng.normal(0, math.sqrt(2 / np.prod(shape[1:])), shape)
        tensor = numpy_helper.from_array(array.astype(np.float32), node.output[0])
        model.graph.initializer.append(tensor)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = 8  # from 4 on, initializers need not be inputs
    used = {i for n in kept for i in n.input}
    weights = [t for t in model.graph.initializer if t.name in used]
    known = {t.name for t in weights}
    inputs = [i for i in model.graph.input if i.name in used - known]
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend(weights)
    model.graph.input.extend(inputs)
    for softmax in (n for n in kept if n.op_type == "Softmax"):
        scores = onnx.ValueInfoProto(name=softmax.input[0])
        scores.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        model.graph.output.append(scores)
    return model


def image(shape: Sequence[int] = (1, 3, 224, 224), seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(np.float32)


def reference(model: ModelProto | Path, inputs: dict[str, Array]) -> dict[str, Array]:
    """What onnxruntime computes, on one thread and without its graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def one_node(
    op: str,
    inputs: dict[str, Array],
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
    constants: Sequence[str] = (),
    domain: str = "",
    **attributes: Any,
) -> ModelProto:
    """A model of one node on the inputs, in order; those in `constants` are initializers."""
    node = helper.make_node(
        op, list(inputs), list(outputs), name="node", domain=domain, **attributes
    )
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in inputs.items()
        if k not in constants and k
    ]
    given = [numpy_helper.from_array(inputs[k], k) for k in constants]
    results = [onnx.ValueInfoProto(name=o) for o in outputs if o]
    graph = helper.make_graph([node], "graph", infos, results, given)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    for info in model.graph.output:
        if info.type.WhichOneof("value") is None:
            info.type.tensor_type.elem_type = model.graph.input[0].type.tensor_type.elem_type
    return model
