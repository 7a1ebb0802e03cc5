"""ONNX models to graphs.

    bytes --onnx_file--> checked ModelProto --here--> onnx_import, node by node --onnx_*--> graph

ONNX defines some operators by a function of simpler ones. Without a converter in the table, the
nodes of this function replace such an operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, ValueInfoProto

from ..errors import ImporterError
from ..files.mapped import release_mapped
from ..graph.builder import BlockBuilder
from ..graph.dims import bound_dims, symbol
from ..graph.extents import most_of
from ..graph.nodes import Constant, Function
from ..graph.verify import verify
from ..ir import Dim
from .ends import finished
from .extents import Extents
from .narrow import declared_kind, stored
from .onnx_collected import input_parts, known_collected, result_parts
from .onnx_external import check_external_data
from .onnx_file import (
    carrier_of,
    check_names,
    modern,
    opset_of,
    parse_model,
    read_model,
    refuse_later_format,
    sort_nodes,
)
from .onnx_import import Importer, Scope
from .onnx_node import Converter, TensorList, tensors
from .onnx_ops import CONVERTERS
from .onnx_rules import AGAIN, check_names_once
from .onnx_shapes import bound_shapes, declared_shape, open_inputs
from .refusals import open_sizes, refuse_unknown_inputs
from .values import fitted


def from_onnx(
    model: str | Path | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, Dim | str] | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    converters: Mapping[str, Converter] | None = None,
) -> Function:
    """The graph of an ONNX model, not optimized.

    A sequence `x` becomes inputs, or outputs, x.0, x.1, … shapes gives whole shapes of inputs. dims
    gives values of named dimensions, or "<=512" for a dynamic one, at most 512; or an
    expression of others' names (graph.dims.symbol). values makes inputs constants, of arrays or of
    one number; None says that an optional has no value. converters adds to the table or overrides
    it: the key is the operator's name, or "domain::name", the value a function of an OnnxNode.
    Raises ImporterError, and NeedsValue if the values of inputs decide about shapes.
    """
    where, path = "the model", None
    if isinstance(model, (str, Path)):
        where, path = str(model), Path(model)
        proto = read_model(path)
    else:
        proto = parse_model(model, where) if isinstance(model, bytes) else model
    try:
        return _convert(
            proto, path, where, shapes or {}, dims or {}, values or {}, converters or {}
        )
    except UnicodeDecodeError as error:
        what = "the ONNX model is damaged: a name in it is not text"
        raise ImporterError(what, where=where, mend=AGAIN) from error


def _convert(
    model: ModelProto,
    path: Path | None,
    where: str,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, Dim | str],
    values: Mapping[str, Any],
    converters: Mapping[str, Converter],
) -> Function:
    check_names(model, where)
    refuse_later_format(model, where)
    model = modern(model, where)
    opset = opset_of(model, where)
    check_external_data(model, path, where)
    sort_nodes(model.graph)
    graph = model.graph
    check_names_once(graph, where)
    importer = Importer(
        builder=BlockBuilder("main"),
        table={**CONVERTERS, **converters},
        functions={(f.domain, f.name): f for f in model.functions},
        where=where,
        file=path,
        extents=Extents(v.name for v in (*graph.input, *graph.output)),
    )
    scope = Scope(imports={o.domain: o.version for o in model.opset_import} | {"": opset})
    importer.refuse_missing(graph.node, scope)
    for tensor in graph.initializer:
        scope.values[tensor.name] = importer.constant(tensor, where, tensor.name)
    if graph.sparse_initializer:
        raise ImporterError("sparse weights are not supported", where=where)
    kinds = {i.name: declared_kind(i) for i in graph.input}
    arrays, lists = known_collected(graph.input, values)
    scope.values.update(lists)
    for name, array in known_inputs(graph, arrays, shapes, where).items():
        scope.values[name] = importer.marked(Constant(array, name), kinds[name])
    parts = {i.name: input_parts(i, shapes, where) for i in graph.input if i.name not in scope}
    inputs = [part for own in parts.values() for part in own]
    shapes = {name: shape for name, shape in shapes.items() if name not in values}
    importer.counts, dims = _counts(graph, inputs, dims)
    left = {name: text for name, text in dims.items() if isinstance(text, str)}
    symbols = {name: symbol(importer.extents.fresh(name)) for name in left}
    named = {symbol(name): own for name, own in symbols.items()}
    known = {
        name: symbols[name] if isinstance(n, str) else bound_dims([n], named)[0]
        for name, n in dims.items()
    }
    bound = bound_shapes(inputs, shapes, known, where, left)
    for info, extents in zip(inputs, bound, strict=True):
        code = info.type.tensor_type.elem_type
        scope.values[info.name] = importer.param(info.name, extents, code)
    for name, own in parts.items():
        if [part.name for part in own] != [name]:
            scope.values[name] = TensorList(tensors(scope[part.name] for part in own))
    for name, text in left.items():
        called = symbols[name].name
        value = importer.builder.param(called, (), "int64")
        importer.extents.given(called, value, most_of(name, text))
    with open_sizes(open_inputs(inputs, bound, where)):
        importer.nodes(graph.node, scope)
    ends = [part for o in graph.output for part in result_parts(o.name, importer.result(o, scope))]
    names, outputs = [name for name, _ in ends], [value for _, value in ends]
    function = finished(importer.builder, importer.extents, outputs, names)
    verify(function)
    release_mapped()
    return function


def _counts(
    graph: GraphProto, inputs: Sequence[ValueInfoProto], dims: Mapping[str, Dim | str]
) -> tuple[dict[str, int], dict[str, Dim | str]]:
    """The bounds that `dims` gives of ranges, by their outputs' names, and the other dims."""
    ranges = {node.output[0] for node in graph.node if node.op_type == "Range"}
    ranges -= {d.dim_param for info in inputs for d in info.type.tensor_type.shape.dim}
    counts = {name: text for name, text in dims.items() if name in ranges and isinstance(text, str)}
    others = {name: value for name, value in dims.items() if name not in counts}
    return {name: most_of(name, text) for name, text in counts.items()}, others


def known_inputs(
    graph: GraphProto, values: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], where: str
) -> dict[str, NDArray[Any]]:
    """The values of inputs as arrays of the declared types; narrow types in their carrier. Raises
    ImporterError, and ShapeError for a value that does not fit or belongs to no input."""
    kinds = {i.name: i for i in graph.input}
    refuse_unknown_inputs(values, kinds, "model", where)
    found = {}
    for name, value in values.items():
        own = kinds[name].type.tensor_type
        dtype = carrier_of(own.elem_type, f"input '{name}'", where)
        shape = shapes.get(name, declared_shape(kinds[name], where))
        found[name] = fitted(name, stored(value), dtype, shape, where)
    return found
