"""Converts the nodes of a model in order, and the graphs inside nodes, by the operator's converter
or by the function that defines the operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from ..errors import ImporterError
from ..files.limits import RANK
from ..graph.builder import BlockBuilder
from ..graph.nodes import Constant, Value, Var
from ..ir import Dim
from .extents import Extents
from .narrow import AWARE, BY_CODE, Flow, Narrow, carried, declared_kind, flow_of
from .node import shape_of
from .onnx_file import DTYPES, carrier_of, graphs_of, to_array
from .onnx_node import Converter, Given, OnnxNode, TensorList, tensors
from .onnx_rules import AGAIN, check_names_once, check_node
from .refusals import missing_operators, mistakes_at

# Reasons for operators that have no converter on purpose.
REASONS = {
    operator: reason
    for operators, reason in {
        "Multinomial": "boards generate no random numbers; pass them as an input",
        "Gradient": "gradients are not computed",
        "ai.onnx.ml::CategoryMapper RegexFullMatch StringConcat StringNormalizer StringSplit":
            "text is not supported",
        "ai.onnx.ml::DictVectorizer": "maps are not supported",
        "ImageDecoder": "files of images are not supported",
    }.items()
    for operator in operators.split()
}  # fmt: skip
STANDARD = 23  # the opset of the ONNX operators that onnxruntime's are converted to
# The most nodes that functions and loops may make, of some kilobytes each. A small file of
# functions that call others twice could otherwise fill any memory.
MOST_EXPANDED = 100_000


@dataclass(slots=True)
class Scope:
    """The values of names (None for an optional input that is left out), and the versions of
    operator sets by domain. The names of `outer` are visible, too."""

    imports: Mapping[str, int]
    values: dict[str, Given] = field(default_factory=dict)
    outer: Scope | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.values or (self.outer is not None and name in self.outer)

    def __getitem__(self, name: str) -> Given:
        if name in self.values or self.outer is None:
            return self.values[name]
        return self.outer[name]

    def version(self, domain: str) -> int:
        return self.imports.get("" if domain == "ai.onnx" else domain, 1)


@dataclass(slots=True)
class Importer:
    """The state of one import. `counts` has the bounds of ranges, by their outputs; `origins` the
    parameters that each value comes from, `narrow` the types of values in a carrier."""

    builder: BlockBuilder
    table: Mapping[str, Converter]
    functions: Mapping[tuple[str, str], FunctionProto]
    where: str
    file: Path | None
    extents: Extents = field(default_factory=Extents)
    origins: dict[Value, frozenset[str]] = field(default_factory=dict)
    narrow: dict[Value, Narrow] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    depth: int = 0
    called: dict[tuple[Any, ...], list[Given]] = field(default_factory=dict)
    expanded: int = 0  # nodes converted from functions and from graphs inside nodes

    def param(self, name: str, shape: Sequence[Dim], code: int) -> Value:
        """A parameter; code is ONNX's number of its dtype. Raises ImporterError."""
        dtype = carrier_of(code, f"input '{name}'", self.where)
        if len(shape) > RANK.most:
            raise ImporterError(
                f"input '{name}' has {len(shape):,} dimensions, and at most {RANK.most} can be "
                "computed",
                where=self.where,
                mend="a model whose tensors have fewer dimensions",
            )
        value = self.builder.param(name, shape, dtype)
        self.origins[value] = frozenset([name])
        return self.marked(value, BY_CODE.get(code))

    def constant(self, tensor: TensorProto, where: str, name: str) -> Constant:
        """A model's tensor. Raises ImporterError."""
        value = Constant(to_array(tensor, where, self.file), name)
        self.marked(value, BY_CODE.get(tensor.data_type))
        return value

    def marked(self, value: Value, kind: Narrow | None) -> Value:
        """Notes that value is the carrier of a narrow type; returns value."""
        if kind is not None:
            self.narrow[value] = kind
        return value

    def emit(self, op: str, args: Sequence[Value], **options: Any) -> Any:
        """A call of one of our operators."""
        result = self.builder.emit(op, *args, **options)
        self.come_from(result if isinstance(result, tuple) else (result,), args)
        return result

    def come_from(self, values: Iterable[Value], args: Iterable[Value]) -> None:
        """Notes that the values depend on the same parameters as args."""
        origins = frozenset().union(*(self.origins.get(a, frozenset()) for a in args))
        self.origins.update(dict.fromkeys(values, origins))

    @contextmanager
    def within(self) -> Iterator[None]:
        """Forgets results of functions that a loop's or branch's body adds: they are not valid
        outside of it."""
        before, self.called = self.called, dict(self.called)
        try:
            yield
        finally:
            self.called = before

    def output(self, name: str, scope: Scope, *, optional: bool = False) -> Given:
        value = scope[name] if name in scope else None
        if value is None and not (optional and name in scope):
            what = f"the ONNX model is damaged: nothing computes the output '{name}'"
            raise ImporterError(what, where=self.where, mend=AGAIN)
        return value

    def result(self, info: ValueInfoProto, scope: Scope) -> Given:
        """An output of a graph. Raises ImporterError if narrow numbers lost their type."""
        value = self.output(info.name, scope, optional=info.type.HasField("optional_type"))
        if value is None or isinstance(value, TensorList):
            return value
        kind = declared_kind(info)
        untyped = info.type.WhichOneof("value") is None
        if not untyped and kind is not (own := self.narrow.get(value)):
            said, given = (k.name if k else "no narrow type" for k in (kind, own))
            what = f"output '{info.name}' is said to be {said} and computed as {given}"
            raise ImporterError(what, where=self.where, mend="a Cast in front of the output")
        return value

    # --------------------------------------------------------------------------------- nodes

    def nodes(self, nodes: Iterable[NodeProto], scope: Scope, source: str = "") -> None:
        """Converts nodes in order; their outputs join the scope. source, if given, names them."""
        for number, proto in enumerate(nodes):
            self._node(proto, scope, source or _name(proto, number))
            self.expanded += bool(source)
            if self.expanded > MOST_EXPANDED:
                raise ImporterError(
                    f"functions and loops make more than {MOST_EXPANDED} nodes of this model",
                    where=f"{self.where}, node '{source}'",
                    mend="fewer iterations of loops, or functions that call others less often",
                )

    def _node(self, proto: NodeProto, scope: Scope, source: str) -> None:
        place = f"{self.where}, node '{source}' ({proto.op_type})"
        unknown = [i for i in proto.input if i and i not in scope]
        if unknown:
            what = f"the ONNX model is damaged: nothing computes the input '{unknown[0]}'"
            raise ImporterError(what, where=place, mend=AGAIN)
        inputs = [scope[i] if i else None for i in proto.input]
        node = OnnxNode(proto, inputs, scope, self, source)
        with mistakes_at(place, self.extents.params):
            if (schema := _schema(proto, scope)) is not None:
                check_node(proto, schema)
            flow = self._flow(proto, inputs, scope)
            for k, kind in flow.read.items():
                node.inputs[k] = kind.read(node, node.input(k))
            convert = self.table.get(_key(proto))
            result = convert(node) if convert else self._call(proto, node.inputs, scope, source)
            several = isinstance(result, (list, tuple)) and not isinstance(result, TensorList)
            results: list[Any] = list(result) if several else [result]
            for k, kind in flow.written.items():
                if k < len(results) and results[k] is not None:
                    value = results[k] if flow.moves else kind.write(node, results[k])
                    results[k] = self.marked(value, kind)
        for name, value in zip(proto.output, results, strict=False):
            scope.values[name] = value
        absent = [name for name in proto.output[len(results) :] if name]
        if absent:
            raise ImporterError(f"output '{absent[0]}' is not supported", where=place)

    def standard(
        self, op: str, inputs: Sequence[Value | None], outputs: int, source: str,
        attributes: Iterable[AttributeProto],
    ) -> list[Value]:  # fmt: skip
        """The outputs of an ONNX operator, converted like a node of the model."""
        given = {f"i{k}": value for k, value in enumerate(inputs) if value is not None}
        names = [f"i{k}" if f"i{k}" in given else "" for k in range(len(inputs))]
        node = onnx.helper.make_node(op, names, [f"o{k}" for k in range(outputs)])
        node.attribute.extend(attributes)
        scope = Scope({"": min(onnx.defs.onnx_opset_version(), STANDARD)}, {**given})
        self.refuse_missing([node], scope)
        self.nodes([node], scope, source)
        return tensors(self.output(name, scope) for name in node.output)

    def _flow(self, proto: NodeProto, inputs: Sequence[object], scope: Scope) -> Flow:
        """The inputs and outputs of a node that are read and written as narrow numbers."""
        if proto.op_type in AWARE or (proto.domain, proto.op_type) in self.functions:
            outputs = [o for g in graphs_of(proto)[:1] for o in g.output]
            return carried(map(declared_kind, outputs[proto.op_type == "Loop" :]))
        kinds = {
            k: self.narrow[value]
            for k, value in enumerate(inputs)
            if isinstance(value, (Var, Constant)) and value in self.narrow
        }
        return flow_of(proto, kinds, _schema(proto, scope)) if kinds else carried(())

    def body(
        self, graph: GraphProto, inputs: Sequence[Given], scope: Scope, source: str
    ) -> list[Given]:
        """The outputs of a graph inside a node. It sees the names around it."""
        inner = Scope(scope.imports, outer=scope)
        check_names_once(graph, self.where)
        if len(inputs) != len(graph.input):
            raise ValueError(f"{len(inputs)} inputs for the {len(graph.input)} of '{graph.name}'")
        for info, value in zip(graph.input, inputs, strict=True):
            inner.values[info.name] = value
            if isinstance(value, (Var, Constant)):
                self.marked(value, declared_kind(info))
        for tensor in graph.initializer:
            inner.values[tensor.name] = self.constant(tensor, self.where, tensor.name)
        self.refuse_missing(graph.node, inner)
        self.nodes(graph.node, inner, source)
        return [self.result(o, inner) for o in graph.output]

    # ----------------------------------------------------------------------------- functions

    def _call(
        self,
        proto: NodeProto,
        inputs: Sequence[Given],
        scope: Scope,
        source: str,
    ) -> list[Given]:
        """The outputs of an operator that a function defines. Equal calls of a model's own function
        share their outputs."""
        function = self._function(proto, inputs, scope)
        if function is None:
            self.refuse_missing([proto], scope, source)
            raise AssertionError(f"{proto.op_type} is missing, and yet not")
        if len(inputs) > len(function.input):
            raise ValueError(f"{len(inputs)} inputs for {len(function.input)}")
        given = tuple(a.SerializeToString(deterministic=True) for a in proto.attribute)
        wanted = tuple(map(bool, proto.output))
        key = (proto.domain, proto.op_type, tuple(inputs), given, wanted)
        own = (proto.domain, proto.op_type) in self.functions
        if own and key in self.called:
            return self.called[key]
        inner = Scope({**scope.imports, **{o.domain: o.version for o in function.opset_import}})
        inner.values.update(dict.fromkeys(function.input))
        inner.values.update(zip(function.input, inputs, strict=False))
        attributes = {a.name: a for a in (*_defaults(proto, scope), *function.attribute_proto)}
        attributes |= {a.name: a for a in proto.attribute}
        self.depth += 1
        try:
            if self.depth > 32:
                raise ValueError("functions call each other without end")
            nodes = [_with_attributes(n, attributes) for n in function.node]
            self.refuse_missing(nodes, inner)
            self.nodes(nodes, inner, source)
        finally:
            self.depth -= 1
        outputs = zip(function.output, wanted, strict=False)
        results: list[Given] = [
            self.output(name, inner) if asked else None for name, asked in outputs
        ]
        if own:
            self.called[key] = results
        return results

    def _function(
        self, proto: NodeProto, inputs: Sequence[Given], scope: Scope
    ) -> FunctionProto | None:
        """The model's function of that name, or the one that defines an operator of ONNX."""
        own = self.functions.get((proto.domain, proto.op_type))
        if own is not None:
            return own
        schema: Any = _schema(proto, scope)
        if schema is None:
            return None
        version = scope.version(proto.domain)
        if schema.has_context_dependent_function:
            types = [_type(v).SerializeToString() for v in inputs]
            types += [TypeProto().SerializeToString()] * (len(schema.inputs) - len(types))
            node = NodeProto()
            node.CopyFrom(proto)  # the function looks only at which inputs are left out
            known = {a.name for a in proto.attribute}
            node.attribute.extend(a for a in _defaults(proto, scope) if a.name not in known)
            fitting = [v for v in schema.context_dependent_function_opset_versions if v <= version]
            for v in sorted(fitting, reverse=True):
                data = schema.get_context_dependent_function_with_opset_version(
                    v, node.SerializeToString(), types
                )
                if data:
                    return _parsed(data)
        if schema.has_function:
            fitting = [v for v in schema.function_opset_versions if v <= version]
            for v in sorted(fitting, reverse=True):
                data = schema.get_function_with_opset_version(v)
                if data:
                    return _parsed(data)
        return None

    # -------------------------------------------------------------------------------- refusals

    def _is_known(self, node: NodeProto, scope: Scope) -> bool:
        if _key(node) in self.table or (node.domain, node.op_type) in self.functions:
            return True
        schema: Any = _schema(node, scope)
        return schema is not None and (schema.has_function or schema.has_context_dependent_function)

    def refuse_missing(self, nodes: Iterable[NodeProto], scope: Scope, source: str = "") -> None:
        """Raises ImporterError that lists every operator without a converter."""
        missing: dict[str, list[str]] = {}
        for number, node in enumerate(nodes):
            if source or not self._is_known(node, scope):
                place = f"node '{source or _name(node, number)}'"
                missing.setdefault(_key(node), []).append(place)
        if missing:
            call = "takes an OnnxNode and returns node.emit(operator, *node.inputs, ...)"
            raise missing_operators(missing, REASONS, self.where, call)


def _parsed(data: bytes) -> FunctionProto:
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _key(node: NodeProto) -> str:
    standard = node.domain in ("", "ai.onnx")
    return node.op_type if standard else f"{node.domain}::{node.op_type}"


def _name(node: NodeProto, number: int) -> str:
    return node.name or f"{node.op_type}_{number}"


def _schema(node: NodeProto, scope: Scope) -> Any:
    """ONNX's definition of a node's operator, or None."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = scope.version(domain)
    if not onnx.defs.has(node.op_type, version, domain):
        return None
    return onnx.defs.get_schema(node.op_type, version, domain)


def _defaults(node: NodeProto, scope: Scope) -> list[AttributeProto]:
    schema = _schema(node, scope)
    every = [] if schema is None else [a.default_value for a in schema.attributes.values()]
    return [a for a in every if a.name]


def _type(value: Given) -> TypeProto:
    if value is None:
        return TypeProto()
    if isinstance(value, TensorList):
        some = _type(value[0]) if value else _FLOATS
        return onnx.helper.make_sequence_type_proto(some)
    code = next(int(c) for c, name in DTYPES.items() if name == value.type.dtype)
    return onnx.helper.make_tensor_type_proto(
        code, [d if isinstance(d, int) else str(d) for d in shape_of(value)]
    )


_FLOATS = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, None)


def _with_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """A function's node with references to attributes replaced by the call's attributes. A
    reference to a missing attribute is dropped."""
    result = NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                copy = result.attribute.add()
                copy.CopyFrom(given[attribute.ref_attr_name])
                copy.name = attribute.name
            continue
        copy = result.attribute.add()
        copy.CopyFrom(attribute)
    for graph in graphs_of(result):
        nodes = [_with_attributes(n, given) for n in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return result
