"""From a file to a checked onnx.ModelProto, and from its tensors to arrays."""

from __future__ import annotations

import math
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    checker,
    numpy_helper,
    shape_inference,
    version_converter,
)

from ..errors import ImporterError
from ..files.limits import ONNX_BYTES
from ..files.outside import read_file
from .narrow import BY_CODE, from_tensor
from .onnx_external import external_array, is_external, placed
from .onnx_rules import AGAIN
from .refusals import reading

OLDEST_OPSET = 6
DTYPES = {
    TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "float64",
    TensorProto.INT8: "int8", TensorProto.INT16: "int16", TensorProto.INT32: "int32",
    TensorProto.INT64: "int64", TensorProto.UINT8: "uint8", TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32", TensorProto.UINT64: "uint64", TensorProto.BOOL: "bool",
}  # fmt: skip
IR_OF_WEIGHTS = 4  # from which on weights need not be inputs
LARGE = 1 << 14  # elements of a tensor: the checker's time for smaller ones is that of their fields


def read_model(path: str | Path) -> ModelProto:
    """The model of a file, its external data left where it is. Raises ImporterError."""
    path = Path(path)
    if path.is_dir():
        raise ImporterError("the model is a folder", where=str(path), mend="the .onnx file in it")
    with reading(path):
        data = read_file(path, ONNX_BYTES.most)
    return parse_model(data, str(path))


def parse_model(data: bytes, where: str) -> ModelProto:
    """The model of a file's bytes. Raises ImporterError for other files and damaged ones."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
        begun = model.ir_version > 0
        whole = begun and model.HasField("graph") and len(model.opset_import) > 0
    except (DecodeError, UnicodeDecodeError):
        # A ModelProto begins with field 1, ir_version, as a small number.
        begun, whole = data[:1] == b"\x08" and data[1:2] < b"\x40", False
    if not begun and data[4:8] == b"ORTM":
        what = "this is a model in onnxruntime's own format (.ort)"
        raise ImporterError(what, where=where, mend="the .onnx file that it was made from")
    if not begun and data[4:8] == b"TFL3":
        what = "this is a TensorFlow Lite model"
        raise ImporterError(what, where=where, mend="the file under a name that ends in .tflite")
    if not begun:
        raise ImporterError(
            "this is not an ONNX model",
            where=where,
            mend="export the model to ONNX, for example with torch.onnx.export",
        )
    if not whole:
        raise ImporterError(
            f"the ONNX model is damaged or cut off ({len(data)} bytes)",
            where=where,
            mend=AGAIN,
        )
    return model


def refuse_later_format(model: ModelProto, where: str) -> None:
    """Raises ImporterError if the file is of a later version of ONNX than the installed one."""
    if model.ir_version > onnx.IR_VERSION:
        raise ImporterError(
            f"the model is of ONNX's file format {model.ir_version}; the installed onnx "
            f"{onnx.__version__} reads up to {onnx.IR_VERSION}",
            where=where,
            mend="pip install --upgrade onnx",
        )


def modern(model: ModelProto, where: str) -> ModelProto:
    """Converts a model of opset 1 to 5 to OLDEST_OPSET, if onnx can; returns others unchanged.
    Raises ImporterError for a damaged one."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions or not 0 < versions[0] < OLDEST_OPSET:
        return model
    check_model(model, where)
    errors = (RuntimeError, version_converter.ConvertError, shape_inference.InferenceError)
    with suppress(*errors):  # opset_of refuses what cannot be converted
        return version_converter.convert_version(model, OLDEST_OPSET)
    return model


def opset_of(model: ModelProto, where: str) -> int:
    """The version of ONNX's own operators. Raises ImporterError if it is too old or too new."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    opset = versions[0] if versions else newest
    if opset < OLDEST_OPSET:
        raise ImporterError(
            f"the model is of opset {opset}; the oldest that can be read is {OLDEST_OPSET}",
            where=where,
            mend="export it again, of a later opset (onnx.version_converter cannot convert it)",
        )
    if opset > newest:
        raise ImporterError(
            f"the model is of opset {opset}; the installed onnx {onnx.__version__} knows {newest}",
            where=where,
            mend="pip install --upgrade onnx",
        )
    return opset


def check_names(model: ModelProto, where: str) -> None:
    """Raises ImporterError if a name is not valid text; protobuf gives such a name as bytes."""
    graph = model.graph
    names: list[object] = [o.domain for o in model.opset_import]
    for tensor in graph.initializer:
        names.append(tensor.name)
    for info in (*graph.input, *graph.output):
        names.append(info.name)
        names.extend(d.dim_param for d in info.type.tensor_type.shape.dim)
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names.extend(a.name for a in node.attribute)
    if not all(isinstance(name, str) for name in names):
        raise ImporterError(
            "the ONNX model is damaged: a name in it is not text",
            where=where,
            mend=AGAIN,
        )


def sort_nodes(graph: GraphProto) -> None:
    """Sorts the nodes of a graph, and of the graphs in them, so that each comes after the nodes
    that it reads from; nodes of a cycle come last."""
    for inner in [inner for node in graph.node for inner in graphs_of(node)]:
        sort_nodes(inner)
    makers = {name: n for n, node in enumerate(graph.node) for name in node.output if name}
    needs = [{makers[name] for name in _read_by(node) if name in makers} for node in graph.node]
    if all(max(needed, default=-1) < n for n, needed in enumerate(needs)):
        return
    readers: list[list[int]] = [[] for _ in needs]
    for n, needed in enumerate(needs):
        for maker in needed:
            readers[maker].append(n)
    left = [len(needed) for needed in needs]
    ready = [n for n, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        order.append(n := heappop(ready))
        for reader in readers[n]:
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, reader)
    order += sorted(set(range(len(needs))).difference(order))
    nodes = [NodeProto.FromString(graph.node[n].SerializeToString()) for n in order]
    del graph.node[:]
    graph.node.extend(nodes)


def graphs_of(node: NodeProto) -> list[GraphProto]:
    """The graphs in a node's attributes."""
    found = [a.g for a in node.attribute if a.HasField("g")]
    return found + [graph for a in node.attribute for graph in a.graphs]


def _read_by(node: NodeProto) -> set[str]:
    """The names that a node reads, also in its graphs."""
    names = set(node.input)
    for inner in graphs_of(node):
        own = {name for n in inner.node for name in n.output} | {i.name for i in inner.input}
        read = {name for n in inner.node for name in _read_by(n)} | {o.name for o in inner.output}
        names |= read - own
    return names


def check_model(model: ModelProto, where: str) -> None:
    """onnx's own checker. Raises ImporterError with its message."""
    try:
        checker.check_model(_to_check(model))
    except (checker.ValidationError, ValueError) as error:
        raise ImporterError(
            f"the ONNX model is damaged: {' '.join(str(error).split())}",
            where=where,
            mend="copy or export the file again; onnx.checker.check_model must pass",
        ) from error


def _to_check(model: ModelProto) -> ModelProto:
    """A copy of the model for the checker. Large weights, and those in other files, have no
    elements in it, since the checker copies them twice; `to_array` checks them. What exporters
    write and the checker refuses is mended: inputs and outputs of unknown rank have a shape, which
    --shape gives; and a file of IR 3 is of IR 4, whose weights need not be inputs."""
    graph = {f.name: value for f, value in model.graph.ListFields() if f.name != "initializer"}
    copy = ModelProto(**{f.name: value for f, value in model.ListFields() if f.name != "graph"})
    copy.graph.CopyFrom(GraphProto(**graph))
    copy.ir_version = max(copy.ir_version, IR_OF_WEIGHTS)
    for tensor in model.graph.initializer:
        if is_external(tensor) or math.prod(tensor.dims) > LARGE:
            tensor = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
        copy.graph.initializer.append(tensor)
    for info in (*copy.graph.input, *copy.graph.output):
        of = info.type
        if of.HasField("tensor_type") and not of.tensor_type.HasField("shape"):
            of.tensor_type.shape.SetInParent()
    return copy


def bytes_of(path: Path) -> int:
    """The size of a model that can be read: its file, and the files of weights beside it."""
    tensors = read_model(path).graph.initializer
    beside = {placed(tensor, str(path))[0] for tensor in tensors if is_external(tensor)}
    return sum(file.stat().st_size for file in (path, *(path.parent / name for name in beside)))


def dtype_name(code: int, what: str, where: str) -> str:
    """The name of a dtype from ONNX's number. Raises ImporterError, which begins with `what`, for
    dtypes that are not supported."""
    names: dict[int, str] = {int(number): name for number, name in DTYPES.items()}
    if code not in names:
        kinds = {int(number): kind for kind, number in TensorProto.DataType.items()}
        raise ImporterError(
            f"{what} is of type {kinds.get(code, code)}, which is not supported",
            where=where,
            mend=f"one of {', '.join(names.values())}",
        )
    return names[code]


def carrier_of(code: int, what: str, where: str) -> str:
    """As dtype_name; for a narrow type, its carrier."""
    return BY_CODE[code].carrier if code in BY_CODE else dtype_name(code, what, where)


def to_array(tensor: TensorProto, where: str, file: Path | None = None) -> NDArray[Any]:
    """The tensor's values, narrow ones in their carrier. file: the model's. External data is mapped
    from files beside it. Raises ImporterError for unsupported dtypes, for data whose size is not
    the shape's, and for unreadable files."""
    what = f"tensor '{tensor.name}'"
    dtype = carrier_of(tensor.data_type, what, where)
    kind = BY_CODE.get(tensor.data_type)
    if any(extent < 0 for extent in tensor.dims):
        raise ImporterError(
            f"{what} has the shape {list(tensor.dims)}", where=where, mend="export the model again"
        )
    try:
        if is_external(tensor):
            return external_array(tensor, dtype, kind, file)
        if kind is not None:
            return from_tensor(tensor, kind, tensor.dims)
        array = numpy_helper.to_array(tensor)
        shape = tuple(tensor.dims)
        if array.shape != shape:
            raise ValueError(f"{array.size} values for the shape {list(shape)}")
        return np.asarray(array, dtype)
    except (ValueError, TypeError, OSError, checker.ValidationError, OverflowError) as error:
        text = " ".join(str(error).split())
        raise ImporterError(f"{what} cannot be read: {text}", where=where) from error
