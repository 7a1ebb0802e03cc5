"""ONNX models, from opset 7 on, to graphs.

    bytes --onnx_file--> checked ModelProto --here--> nodes one by one --onnx_ops--> graph

Operators that ONNX defines by a function of simpler ones, and that the table of converters does not
hold, are replaced by that function's nodes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto

from ..errors import ImporterError
from ..graph.builder import BlockBuilder
from ..graph.nodes import Constant, Function, Value
from ..graph.verify import verify
from .onnx_file import (
    check_external_data,
    check_model,
    check_names,
    dtype_name,
    opset_of,
    parse_model,
    read_model,
    to_array,
)
from .onnx_node import Converter, OnnxNode
from .onnx_ops import CONVERTERS

# Why an operator is not in the table, where the reason is more than that nobody wrote it.
REASONS = {
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), "control flow"),
    **dict.fromkeys(
        ("NonZero", "Unique", "Compress", "NonMaxSuppression"),
        "its output's shape depends on the data",
    ),
}
# What a damaged or unusual node makes converters raise.
MISTAKES = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, MemoryError)


def from_onnx(
    model: str | Path | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    *,
    values: Mapping[str, NDArray[Any]] | None = None,
    converters: Mapping[str, Converter] | None = None,
) -> Function:
    """The graph of an ONNX model, not optimized.

    shapes gives whole shapes of inputs, dims values of named dimensions, values the values of
    inputs that then are constants. converters adds to the table, or overrides it: operator's name,
    or "domain::name", to a function of an OnnxNode. Raises ImporterError.
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
        what = "the ONNX model is damaged: a name in it is no text"
        raise ImporterError(what, where=where, mend="copy or export the file again") from error


def _convert(
    model: ModelProto,
    path: Path | None,
    where: str,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    values: Mapping[str, NDArray[Any]],
    converters: Mapping[str, Converter],
) -> Function:
    check_names(model, where)
    opset = opset_of(model, where)
    check_external_data(model, path, where)
    if all(_in_standard(n, opset) for n in model.graph.node):
        check_model(model, path, where)
    table = {**CONVERTERS, **converters}
    model = _inlined(model, opset, table)
    _refuse_missing(model.graph.node, table, where)
    graph = model.graph
    folder = path.parent if path is not None else None
    builder = BlockBuilder("main")
    known: dict[str, Value] = {}
    for tensor in graph.initializer:
        known[tensor.name] = Constant(to_array(tensor, where, folder), tensor.name)
    if graph.sparse_initializer:
        raise ImporterError("sparse weights are not supported", where=where)
    for name, array in values.items():
        known[name] = Constant(np.asarray(array), name)
    inputs = [i for i in graph.input if i.name not in known]
    for info, shape in zip(inputs, _bound_shapes(inputs, shapes, dims, where), strict=True):
        dtype = dtype_name(info.type.tensor_type.elem_type, f"input '{info.name}'", where)
        known[info.name] = builder.param(info.name, shape, dtype)
    for number, node in enumerate(graph.node):
        _convert_node(node, number, known, table, builder, opset, where, folder)
    outputs = [_output(o.name, known, where) for o in graph.output]
    function = builder.finish(outputs, [o.name for o in graph.output])
    verify(function)
    return function


def _in_standard(node: NodeProto, opset: int) -> bool:
    return node.domain not in ("", "ai.onnx") or onnx.defs.has(node.op_type, opset, "")


def _key(node: NodeProto) -> str:
    standard = node.domain in ("", "ai.onnx")
    return node.op_type if standard else f"{node.domain}::{node.op_type}"


def _inlined(model: ModelProto, opset: int, table: Mapping[str, Converter]) -> ModelProto:
    """The model with its own functions, and those that ONNX defines, in place of their calls."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    original = model
    for _ in range(4):  # functions of functions
        found = {
            n.op_type for n in model.graph.node if _key(n) not in table and _has_body(n, opset)
        }
        if not found:
            break
        if model is original:  # the caller's is not ours to edit
            model = ModelProto()
            model.CopyFrom(original)
        calls = [n for n in model.graph.node if n.op_type in found]
        for node in calls:
            _fill_defaults(node, opset)
        names = [(n.domain, n.op_type) for n in calls]
        try:
            model = onnx.inliner.inline_selected_functions(
                model, sorted(set(names)), inline_schema_functions=True
            )
        except RuntimeError:  # it fails for some optional inputs: then they are missing operators
            break
    return model


def _fill_defaults(node: NodeProto, opset: int) -> None:
    """Adds the attributes that are left out, since the inliner forgets their defaults."""
    given = {a.name for a in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _has_body(node: NodeProto, opset: int) -> bool:
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, opset, ""):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def _refuse_missing(nodes: Iterable[NodeProto], table: Mapping[str, Converter], where: str) -> None:
    """Raises ImporterError that lists every operator without a converter."""
    missing: dict[str, list[str]] = {}
    for number, node in enumerate(nodes):
        if _key(node) not in table:
            missing.setdefault(_key(node), []).append(_name(node, number))
    if not missing:
        return
    lines = []
    for op, names in sorted(missing.items()):
        often = "once, at" if len(names) == 1 else f"{len(names)} times, first at"
        reason = f": {REASONS[op]}" if op in REASONS else ""
        lines.append(f"{op} ({often} node '{names[0]}'){reason}")
    count = "an operator is" if len(missing) == 1 else f"{len(missing)} operators are"
    first = min(missing)
    raise ImporterError(
        f"{count} not supported:\n    " + "\n    ".join(lines),
        where=where,
        mend=f'supply a converter: mlc.compile(..., converters={{"{first}": convert}}), '
        "where convert\ntakes an OnnxNode and returns node.emit(operator, *node.inputs, ...)",
    )


def _name(node: NodeProto, number: int) -> str:
    return node.name or f"{node.op_type}_{number}"


def _convert_node(
    proto: NodeProto,
    number: int,
    known: dict[str, Value],
    table: Mapping[str, Converter],
    builder: BlockBuilder,
    opset: int,
    where: str,
    folder: Path | None,
) -> None:
    """Adds the node's outputs to known."""
    source = _name(proto, number)
    place = f"{where}, node '{source}' ({proto.op_type})"
    unknown = [i for i in proto.input if i and i not in known]
    if unknown:
        raise ImporterError(f"nothing computes the input '{unknown[0]}'", where=place)
    inputs = [known[i] if i else None for i in proto.input]
    node = OnnxNode(proto, inputs, opset, builder, source, where, folder)
    try:
        result = table[_key(proto)](node)
    except MISTAKES as error:
        text = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise ImporterError(text or type(error).__name__, where=place) from error
    results = list(result) if isinstance(result, (list, tuple)) else [result]
    for name, value in zip(proto.output, results, strict=False):
        known[name] = value
    absent = [name for name in proto.output[len(results) :] if name]
    if absent:
        raise ImporterError(f"output '{absent[0]}' is not supported", where=place)


def _output(name: str, known: Mapping[str, Value], where: str) -> Value:
    if name not in known:
        raise ImporterError(f"nothing computes the output '{name}'", where=where)
    return known[name]


# --------------------------------------------------------------------------------------- shapes


def _bound_shapes(
    inputs: Sequence[ValueInfoProto],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    where: str,
) -> list[tuple[int, ...]]:
    """The inputs' shapes, all known; ImporterError says which are not, and how to give them."""
    names = [i.name for i in inputs]
    for name in shapes:
        if name not in names:
            raise ImporterError(
                f"--shape names '{name}', which is no input of the model",
                where=where,
                mend=f"one of {', '.join(names)}",
            )
    declared = [_declared(i, where) for i in inputs]
    named = _named_dims(declared, shapes, dims, names, where)
    result: list[tuple[int, ...]] = []
    unbound: list[str] = []
    hints: list[str] = []
    for info, own in zip(inputs, declared, strict=True):
        given = shapes.get(info.name)
        if given is not None:
            result.append(_agreed(info.name, own, given, where))
            continue
        bound = None if own is None else [named.get(d, d) if isinstance(d, str) else d for d in own]
        if bound is not None and all(isinstance(d, int) for d in bound):
            result.append(tuple(d for d in bound if isinstance(d, int)))
            continue
        unbound.append(f"'{info.name}' {_text(own)}")
        hints.append(f"--shape {info.name}={_example(bound)}")
    if unbound:
        what = "the shape of an input is" if len(unbound) == 1 else "shapes of inputs are"
        raise ImporterError(
            f"{what} not known: {', '.join(unbound)}", where=where, mend=" ".join(hints)
        )
    return result


def _declared(info: ValueInfoProto, where: str) -> list[int | str] | None:
    """The shape as the model has it, unknown dimensions as names ("?" without one)."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "nothing").removesuffix("_type")
        raise ImporterError(
            f"input '{info.name}' is a {what}, not a tensor, which is not supported", where=where
        )
    if not info.type.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?"
        for d in info.type.tensor_type.shape.dim
    ]


def _named_dims(
    declared: Sequence[list[int | str] | None],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    names: Sequence[str],
    where: str,
) -> dict[str, int]:
    """Values of the named dimensions: those given, and those that given shapes imply."""
    there = {d for own in declared for d in own or () if isinstance(d, str) and d != "?"}
    for name, value in dims.items():
        if name not in there:
            known = ", ".join(sorted(there)) or "none: --shape gives whole shapes"
            raise ImporterError(
                f"--bind names '{name}', which is no dimension of the model's inputs",
                where=where,
                mend=known,
            )
        _positive([value], f"--bind {name}={value}", where)
    result = dict(dims)
    for name, own in zip(names, declared, strict=True):
        for d, value in zip(own or (), shapes.get(name, ()), strict=False):
            if isinstance(d, str) and d != "?" and result.setdefault(d, int(value)) != value:
                raise ImporterError(
                    f"dimension '{d}' is bound to {result[d]} and, by --shape {name}, to {value}",
                    where=where,
                )
    return result


def _agreed(
    name: str, own: list[int | str] | None, given: Sequence[int], where: str
) -> tuple[int, ...]:
    text = f"--shape {name}={','.join(map(str, given))}"
    _positive(given, text, where)
    fits = own is None or (
        len(own) == len(given)
        and all(isinstance(a, str) or a == b for a, b in zip(own, given, strict=True))
    )
    if not fits:
        raise ImporterError(f"{text} contradicts the model, where it is {_text(own)}", where=where)
    return tuple(int(d) for d in given)


def _positive(given: Sequence[int], text: str, where: str) -> None:
    if any(d < 0 for d in given):
        raise ImporterError(f"{text} has a negative dimension", where=where)


def _text(own: list[int | str] | None) -> str:
    return "of unknown rank" if own is None else f"[{', '.join(map(str, own))}]"


def _example(bound: Sequence[int | str] | None) -> str:
    """A shape to try: unknown dimensions as 1 in front, and as an image's side elsewhere."""
    if bound is None:
        return "1,3,224,224"
    return ",".join(
        str(d) if isinstance(d, int) else ("1" if n == 0 else "224") for n, d in enumerate(bound)
    )
