"""Random ONNX graphs: operators, shapes, dtypes, broadcasts and attributes, drawn by hypothesis.

A graph grows node by node, and onnxruntime computes each as it is drawn: so every value's shape,
dtype and numbers are known, and what onnxruntime refuses is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import onnxruntime
from hypothesis import reject
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from tests.onnx_models import Array

T = TypeVar("T")

OPSET = 19
MOST_ELEMENTS = 1 << 12
OPEN = 11  # what an open dimension is while a graph is drawn, and no other one
LARGEST = 1e4  # numbers beyond make errors that say nothing
LEAST = 1e-3  # of its operands: a smaller sum is what their rounding left
FLOATS = ("float32",)
INTEGERS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTEGERS)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """`exact`: every order of computing gives the same bits, so that a step function may follow."""

    name: str
    array: Array
    exact: bool

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)


@dataclass
class Drawn:
    """A graph so far, or the body of a node. `draw` draws from a hypothesis strategy; names begin
    with `prefix`."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    values: list[Value] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0
    named: int = 0  # names that were given
    open_dim: bool = False  # whether OPEN is a size that each run decides

    # ----------------------------------------------------------------------------------- choices

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.number(0, len(choices) - 1)]

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def value(
        self, dtypes: Sequence[str] = FLOATS, ranks: Sequence[int] = (), exact: bool = False
    ) -> Value | None:
        """A value there is, of these kinds; None where there is none."""
        fitting = [
            v
            for v in self.values
            if v.array.dtype.name in dtypes
            and v.array.size
            and (not ranks or v.rank in ranks)
            and (v.exact or not exact)
        ]
        return self.one_of(fitting) if fitting else None

    # ----------------------------------------------------------------------------------- leaves

    def leaf(
        self, shape: Sequence[int], dtype: str = "float32", constant: bool | None = None
    ) -> Value:
        """An input or, at will, an initializer, of numbers that float32 sums up exactly."""
        if self.open_dim:
            shape = [1 if n == OPEN else n for n in shape]
        array = numbers(shape, dtype, self.number(0, 1 << 20))
        return self.known(array, self.chance() if constant is None else constant)

    def known(self, array: Array | np.generic, constant: bool = True) -> Value:
        array = np.asarray(array)
        value = Value(self.name(), array, True)
        self.values.append(value)
        (self.constants if constant else self.inputs)[value.name] = array
        return value

    def shape(self, ranks: Sequence[int] = (0, 1, 2, 3, 4)) -> tuple[int, ...]:
        sizes = (1, 2, 3, 4, 5, 7, 8, 9, 16)
        shape: list[int] = []
        for _ in range(self.one_of(ranks)):
            room = MOST_ELEMENTS // int(np.prod(shape, dtype=int))
            shape.append(self.one_of([n for n in sizes if n <= room]))
        return tuple(shape)

    def broadcast_partner(self, value: Value, dtype: str) -> Value:
        """A value whose shape broadcasts with the given one, one there is where that is drawn."""
        same = [v for v in self.values if v.shape == value.shape and v.array.dtype == dtype]
        if same and self.chance():
            return self.one_of(same)
        shape = [n if self.number(0, 3) else 1 for n in value.shape]
        return self.leaf(shape[self.number(0, len(shape)) :], dtype)

    # ------------------------------------------------------------------------------------ nodes

    def node(
        self, op: str, inputs: Sequence[Value | None], exact: bool = False, **attrs: Any
    ) -> Value | None:
        """Adds a node with one output; None where onnxruntime refuses it or numbers explode.

        exact: whether it gives exact numbers when its inputs are.
        """
        made = self.several(op, inputs, 1, **attrs)
        if made is None:
            return None
        keeps = exact and all(v is None or v.exact for v in inputs) and _fine(made[0].array)
        self.values[-1] = replace(made[0], exact=keeps)
        return self.values[-1]

    def several(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int,
        also: Sequence[Value] = (),
        **attrs: Any,
    ) -> list[Value] | None:
        """Adds a node with several outputs, whose bodies read `also`; None as in `node`."""
        results = [self.name() for _ in range(outputs)]
        names = ["" if v is None else v.name for v in inputs]
        node = helper.make_node(
            op, names, results, name=f"{self.prefix}{op}_{len(self.nodes)}", **attrs
        )
        given = {v.name: v.array for v in (*inputs, *also) if v is not None}
        try:
            arrays = run(model([node], given, {}, results), given)
        except Exception:  # of onnxruntime's many kinds
            return None
        if any(a.size > MOST_ELEMENTS or a.size == 0 or not _tame(a) for a in arrays):
            return None
        if op in ("Add", "Sub") and _cancels([v for v in inputs if v is not None], arrays[0]):
            return None
        self.nodes.append(node)
        made = [Value(name, a, False) for name, a in zip(results, arrays, strict=True)]
        self.values += made
        return made

    def name(self) -> str:
        self.named += 1
        return f"{self.prefix}v{self.named}"


def numbers(shape: Sequence[int], dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, tuple(shape)).astype(np.bool_)
    if dtype.startswith("float"):
        return (rng.integers(-16, 17, tuple(shape)) / 8).astype(dtype)
    return rng.integers(0 if dtype.startswith("u") else -9, 10, tuple(shape)).astype(dtype)


def _tame(array: Array) -> bool:
    return array.dtype == np.bool_ or bool(
        np.isfinite(array).all() and np.abs(array.astype(np.float64)).max() <= LARGEST
    )


def _cancels(operands: Sequence[Value], total: Array) -> bool:
    """Whether a sum is left of operands that were rounded and far larger."""
    if total.dtype.kind != "f" or all(v.exact for v in operands):
        return False
    return bool(np.abs(total).max() < LEAST * max(np.abs(v.array).max() for v in operands))


def _fine(array: Array) -> bool:
    """Whether float32 has room for sums of such numbers."""
    if array.dtype.kind != "f":
        return True
    scaled = array.astype(np.float64) * 4096
    return bool((scaled == np.round(scaled)).all() and np.abs(scaled).max() < 1 << 21)


def model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Array],
    constants: dict[str, Array],
    outputs: Sequence[str],
) -> ModelProto:
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "random", infos, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def run(model: ModelProto, inputs: dict[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Array] = session.run(None, inputs)
    return found


@dataclass(frozen=True)
class RandomModel:
    """A model, its inputs, and what onnxruntime answers, by output. `smaller` are other inputs and
    answers of a model with an open dimension."""

    model: ModelProto
    inputs: dict[str, Array]
    expected: dict[str, Array]
    smaller: tuple[tuple[dict[str, Array], dict[str, Array]], ...] = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis shows a model that fails."""
        lines = [f"{name}: {a.dtype}{list(a.shape)}" for name, a in self.inputs.items()]
        for node in self.model.graph.node:
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            lines.append(f"{node.output[0]} = {node.op_type}({', '.join(node.input)}) {attrs}")
        printer.text("\n".join(["", *lines, f"outputs {list(self.expected)}"]))


def names_in(graph: GraphProto) -> set[str]:
    """What the nodes of a graph read, and those of the bodies in it."""
    found: set[str] = set()
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            found |= names_in(attribute.g) if attribute.HasField("g") else set()
    return found


@st.composite
def random_models(
    draw: st.DrawFn, nodes: Sequence[Callable[[Drawn], object]], open_dim: bool = False
) -> RandomModel:
    """Models of one to twelve nodes, made by some of `nodes`; outputs are what no node reads, and
    some other value. open_dim: inputs have a dimension `n`, of OPEN at most."""
    drawn = Drawn(draw, open_dim=open_dim)
    shape = list(drawn.shape((2, 3) if open_dim else (2, 3, 4)))
    if open_dim:
        shape[drawn.number(0, len(shape) - 1)] = OPEN
        for _ in range(drawn.number(1, 2)):
            drawn.known(numbers(shape, drawn.one_of(NUMBERS), drawn.number(0, 1 << 20)), False)
    else:
        drawn.leaf(shape, constant=False)
    for _ in range(drawn.number(0, 2)):
        drawn.leaf(drawn.shape(), drawn.one_of((*FLOATS, *NUMBERS, "bool", "uint8")))
    for _ in range(drawn.number(1, 12)):
        drawn.one_of(nodes)(drawn)
    if not drawn.nodes:
        drawn.node("Identity", [drawn.values[0]])
    read = names_in(helper.make_graph(drawn.nodes, "random", [], []))
    made = [name for node in drawn.nodes for name in node.output]
    outputs = [name for name in made if name not in read]
    also = drawn.one_of(made)
    outputs += [also] if also not in outputs else []
    used = {name: a for name, a in drawn.inputs.items() if name in read}
    constants = {name: a for name, a in drawn.constants.items() if name in read}
    whole = model(drawn.nodes, used, constants, outputs)
    try:
        answers = run(whole, used)
    except Exception:  # its inference of shapes contradicts its own kernels, as for ceil_mode
        reject()
    for info, array in zip(whole.graph.output, answers, strict=True):
        kind = helper.make_tensor_value_info(
            info.name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        info.CopyFrom(kind)
    expected = dict(zip(outputs, answers, strict=True))
    return RandomModel(whole, used, expected, tuple(_smaller(whole, used)) if open_dim else ())


def _smaller(whole: ModelProto, inputs: dict[str, Array]) -> Iterator[tuple[Any, Any]]:
    """Names the open dimension, and gives inputs where it is less, with onnxruntime's answers."""
    for info in whole.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value == OPEN:
                dim.dim_param = "n"
    for info in whole.graph.output:
        info.type.tensor_type.ClearField("shape")
    for n in (1, 4):
        given = {
            name: numbers([n if k == OPEN else k for k in a.shape], a.dtype.name, n)
            if OPEN in a.shape
            else a
            for name, a in inputs.items()
        }
        try:
            answers = run(whole, given)
        except Exception:  # the graph is right for one size alone
            continue
        if all(a.size and _tame(a) for a in answers):
            yield given, dict(zip([o.name for o in whole.graph.output], answers, strict=True))
