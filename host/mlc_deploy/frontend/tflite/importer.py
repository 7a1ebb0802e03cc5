"""Converts the operators of a .tflite file in order, by the operator's converter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...errors import ImporterError, ShapeError
from ...graph.builder import BlockBuilder
from ...graph.nodes import Constant, Function, Value
from ...graph.states import with_states
from ...graph.verify import verify
from ...ir import Dim
from ..refusals import (
    missing_operators,
    mistakes_at,
    open_sizes,
    open_text,
    refuse_unknown_inputs,
    shape_text,
)
from .file import (
    AGAIN,
    DTYPES,
    NO_TENSOR,
    OPEN,
    Array,
    Operator,
    Subgraph,
    Tensor,
    constant_array,
    damaged,
    parse,
    read_tflite,
)
from .node import COMPLEX, Converter, TfliteNode
from .ops import CONVERTERS

# Reasons for operators that have no converter on purpose.
REASONS = {
    operator: reason
    for operators, reason in {
        "IF WHILE CALL STABLEHLO_WHILE STABLEHLO_CASE": "control flow is not supported",
        "HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_LOOKUP HASHTABLE_SIZE "
        "LSH_PROJECTION SKIP_GRAM": "text is not supported",
        "WHERE UNIQUE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5":
            "its output's shape is known only at run time",
        "RANDOM_UNIFORM RANDOM_STANDARD_NORMAL MULTINOMIAL":
            "random numbers would make every run another one; pass them as an input",
    }.items()
    for operator in operators.split()
}  # fmt: skip
VARIABLES = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")


def from_tflite(
    model: str | Path | bytes,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, Dim | str] | None = None,
    *,
    converters: Mapping[str, Converter] | None = None,
) -> Function:
    """The graph of a .tflite model, not optimized.

    shapes gives other shapes of inputs than the file has. The format names no dimensions, so dims
    must be empty. converters adds to the table or overrides it: the key is the operator's name, or
    "CUSTOM name", the value a function of a TfliteNode. A variable of the model is a state: an
    input (its value before the run) and an output (after it). Raises ImporterError and ShapeError.
    """
    where = "the model" if isinstance(model, bytes) else str(model)
    data = model if isinstance(model, bytes) else read_tflite(model)
    subgraphs = parse(data, where)
    if dims:
        raise ShapeError(
            f"a .tflite model has no named dimension '{next(iter(dims))}'",
            where=where,
            mend="--shape INPUT=1,2,3",
        )
    table = {**CONVERTERS, **(converters or {})}
    importer = _Importer(subgraphs[0], table, where)
    with damaged(where):
        function = importer.function(shapes or {})
    verify(function)
    return function


def initial_variables(model: str | Path | bytes) -> dict[str, Array]:
    """The values of a .tflite model's variables before its first run, by name. Raises
    ImporterError."""
    where = "the model" if isinstance(model, bytes) else str(model)
    subgraphs = parse(model if isinstance(model, bytes) else read_tflite(model), where)
    found: dict[str, Array] = {}
    with damaged(where):
        for operator in subgraphs[0].operators:
            if operator.name == "CALL_ONCE" and operator.options is not None:
                graph = subgraphs[operator.options.InitSubgraphIndex()]
                own = _Importer(graph, CONVERTERS, where)
                for number, inner in enumerate(graph.operators):
                    own.node(number, inner)
                for name, value in own.variables.items():
                    if isinstance(value, Constant):
                        found[name] = value.value
    return found


@dataclass(slots=True)
class _Importer:
    """The state of one import. `values` holds tensors by number, `handles` the variables that
    tensors name, and `variables` the values of variables, as far as they are known."""

    graph: Subgraph
    table: Mapping[str, Converter]
    where: str
    builder: BlockBuilder = field(default_factory=lambda: BlockBuilder("main"))
    values: dict[int, Value] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)

    def function(self, shapes: Mapping[str, Sequence[int]]) -> Function:
        graph = self.graph
        self.refuse_missing()
        inputs = [graph.tensors[place] for place in graph.inputs]
        names = _unique([t.name or f"input{k}" for k, t in enumerate(inputs)])
        refuse_unknown_inputs(shapes, names, "model", self.where)
        for place, name, tensor in zip(graph.inputs, names, inputs, strict=True):
            with mistakes_at(f"{self.where}, input '{name}'"):
                shape = _shape(name, tensor, shapes.get(name), self.where)
                self.values[place] = self.builder.param(name, shape, tensor.dtype)
        others = {n: t.shape for n, t in zip(names, inputs, strict=True)
                  if tuple(shapes.get(n, t.shape)) != t.shape}  # fmt: skip
        free = [open_text(n, _open_shape(t), tuple(shapes.get(n, t.shape)))
                for n, t in zip(names, inputs, strict=True) if OPEN in t.signature]  # fmt: skip
        with open_sizes(free), _of_shapes(shapes, {} if free else others):
            for number, operator in enumerate(graph.operators):
                self.node(number, operator)
        outputs = [self.output(place) for place in graph.outputs]
        wanted = [graph.tensors[p].name or f"output{k}" for k, p in enumerate(graph.outputs)]
        first = len(wanted)
        for name, value in self.variables.items():
            wanted.append(f"{name}.next")
            outputs.append(value)
        named = _unique(wanted)
        function = self.builder.finish(outputs, named)
        read = {p.name for p in function.params}
        states = dict(zip(self.variables, named[first:], strict=True))
        return with_states(function, {name: states[name] for name in states if name in read})

    def output(self, place: int) -> Value:
        value, tensor = self.value(place), self.graph.tensors[place]
        if value is None:
            raise ImporterError(f"nothing computes the output '{tensor.name}'", where=self.where)
        if tensor.kind == "COMPLEX64":
            raise ImporterError(
                f"the output '{tensor.name}' is of complex numbers, which is not supported",
                where=self.where,
                mend="a model that gives its real and its imaginary part",
            )
        return value

    def value(self, place: int) -> Value | None:
        """A tensor's value; None if nothing has computed it so far."""
        if place not in self.values:
            tensor = self.graph.tensors[place]
            if tensor.data is None and 0 not in tensor.shape:
                return None
            with mistakes_at(f"{self.where}, tensor '{tensor.name}'"):
                empty = tensor.data is None
                array = np.zeros(tensor.shape, tensor.dtype) if empty else constant_array(tensor)
                self.values[place] = Constant(array, tensor.name)
        return self.values[place]

    # --------------------------------------------------------------------------------- nodes

    def node(self, number: int, operator: Operator) -> None:
        made = [self.graph.tensors[place] for place in operator.outputs]
        source = _name(number, operator, made)
        place = f"{self.where}, operator '{source}' ({operator.name})"
        if operator.name in VARIABLES and operator.name not in self.table:
            with mistakes_at(place):
                self.variable(operator, made)
            return
        given = [None if p == NO_TENSOR else self.graph.tensors[p] for p in operator.inputs]
        inputs = [None if p == NO_TENSOR else self.value(p) for p in operator.inputs]
        for tensor, value in zip(given, inputs, strict=True):
            if tensor is not None and value is None:
                what = f"nothing computes the input '{tensor.name}'"
                raise ImporterError(what, where=place, mend=AGAIN)
        node = TfliteNode(operator, inputs, given, made, self.builder, source, self.where)
        with mistakes_at(place):
            if not made:
                raise ValueError("it has no output")
            if any(t is not None and t.kind == "INT16" and t.quantization for t in (*given, *made)):
                raise ValueError("quantized tensors of 16 bits are not supported")
            if node.has_complex() and operator.name not in COMPLEX:
                raise ValueError("it is not supported of complex numbers")
            result = self.table[operator.name](node)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        if len(results) < len(made):
            what = f"output '{made[len(results)].name}' is not supported"
            raise ImporterError(what, where=place)
        for output, tensor, value in zip(operator.outputs, made, results, strict=False):
            if tensor.kind in DTYPES and value.type.dtype != DTYPES[tensor.kind]:
                what = f"the output is {DTYPES[tensor.kind]} in the file, {value.type.dtype} here"
                raise ImporterError(what, where=place)
            self.values[output] = value

    def variable(self, operator: Operator, made: Sequence[Tensor]) -> None:
        """Tracks the value of each variable: a parameter until it is assigned."""
        match operator.name:
            case "VAR_HANDLE":
                found = None if operator.options is None else operator.options.SharedName()
                name = (found or b"").decode("utf-8", "replace")
                if not name:
                    raise ValueError("a variable has no name")
                self.handles[operator.outputs[0]] = name
            case "READ_VARIABLE":
                name = self.handles[operator.inputs[0]]
                if name not in self.variables:
                    param = self.builder.param(name, made[0].shape, made[0].dtype)
                    self.variables[name] = param
                self.values[operator.outputs[0]] = self.variables[name]
            case "ASSIGN_VARIABLE":
                value = self.value(operator.inputs[1])
                if value is None:
                    raise ValueError("nothing computes what is assigned")
                self.variables[self.handles[operator.inputs[0]]] = value

    # -------------------------------------------------------------------------------- refusals

    def refuse_missing(self) -> None:
        """Raises ImporterError that lists every operator without a converter."""
        missing: dict[str, list[str]] = {}
        for number, operator in enumerate(self.graph.operators):
            if operator.name not in self.table and operator.name not in VARIABLES:
                made = [self.graph.tensors[place] for place in operator.outputs]
                place = f"operator '{_name(number, operator, made)}'"
                missing.setdefault(operator.name, []).append(place)
        if missing:
            call = "takes a TfliteNode and returns node.emit(operator, *node.inputs, ...)"
            raise missing_operators(missing, REASONS, self.where, call)


@contextmanager
def _of_shapes(
    given: Mapping[str, Sequence[int]], own: Mapping[str, tuple[int, ...]]
) -> Iterator[None]:
    """Turns an operator's error into one about the input whose shape the user changed."""
    try:
        yield
    except ImporterError as error:
        if not own:
            raise
        name, shape = next(iter(own.items()))
        what = f"{shape_text(name, given[name])} does not fit: {error.what}"
        mend = f"the shape that the file has, {','.join(map(str, shape))}"
        raise ShapeError(what, where=error.where, mend=mend) from error


def _open_shape(tensor: Tensor) -> str:
    sizes = ("?" if size == OPEN else str(size) for size in tensor.signature)
    return f"[{', '.join(sizes)}]"


def _name(number: int, operator: Operator, made: Sequence[Tensor]) -> str:
    """The first output's name, up to the first ";": TensorFlow's converter joins the names of all
    operators that it fused."""
    name = made[0].name.partition(";")[0] if made else ""
    return name or f"{operator.name}_{number}"


def _unique(names: Sequence[str]) -> list[str]:
    """The names; repeated ones get a number."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return result


def _shape(name: str, tensor: Tensor, wanted: Sequence[int] | None, where: str) -> tuple[int, ...]:
    if wanted is None:
        return tensor.shape
    if len(wanted) != len(tensor.shape) or any(extent < 1 for extent in wanted):
        raise ShapeError(
            f"{shape_text(name, wanted)} does not fit {list(tensor.shape)}",
            where=where,
            mend=f"{len(tensor.shape)} extents of at least 1",
        )
    return tuple(wanted)
