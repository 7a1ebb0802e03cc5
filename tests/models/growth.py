"""ONNX models that use what they compute twice, again and again: with each repetition there are
twice as many ways from the output to the input, and one operator more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import (
    FunctionProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)
from onnx import helper as h
from onnx import numpy_helper as nh

OPSET = 17
SHAPE = (64,)
DOMAIN = "functions"


@dataclass(frozen=True, slots=True)
class Growing:
    """`make(n)` is the model of n repetitions; `repeat` a number of them that takes a while."""

    make: Callable[[int], ModelProto]
    repeat: int


def _value(name: str, element: int = TensorProto.FLOAT) -> ValueInfoProto:
    return h.make_tensor_value_info(name, element, SHAPE)


def _model(
    nodes: Sequence[NodeProto],
    last: str,
    *,
    element: int = TensorProto.FLOAT,
    functions: Sequence[FunctionProto] = (),
    **constants: object,
) -> ModelProto:
    """From x0 to `last`."""
    given = [nh.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = h.make_graph(nodes, "g", [_value("x0", element)], [_value(last, element)], given)
    return h.make_model(graph, opset_imports=_imports(), functions=functions, ir_version=8)


def _imports() -> list[OperatorSetIdProto]:
    return [h.make_opsetid("", OPSET), h.make_opsetid(DOMAIN, 1)]


def doubled(count: int) -> ModelProto:
    """x = x + x"""
    nodes = [h.make_node("Add", [f"x{n}", f"x{n}"], [f"x{n + 1}"]) for n in range(count)]
    return _model(nodes, f"x{count}")


def gated(count: int) -> ModelProto:
    """x = x * sigmoid(x)"""
    nodes = []
    for n in range(count):
        nodes.append(h.make_node("Sigmoid", [f"x{n}"], [f"s{n}"]))
        nodes.append(h.make_node("Mul", [f"x{n}", f"s{n}"], [f"x{n + 1}"]))
    return _model(nodes, f"x{count}")


def powers(count: int) -> ModelProto:
    """x = x ** 3 of int64"""
    nodes = [h.make_node("Pow", [f"x{n}", "three"], [f"x{n + 1}"]) for n in range(count)]
    return _model(nodes, f"x{count}", element=TensorProto.INT64, three=np.int64(3))


def looped(count: int) -> ModelProto:
    """A Loop of `count` turns: x = x + x"""
    scalars = [h.make_tensor_value_info("turn", TensorProto.INT64, [])]
    scalars.append(h.make_tensor_value_info("going", TensorProto.BOOL, []))
    again = h.make_tensor_value_info("again", TensorProto.BOOL, [])
    body = h.make_graph(
        [h.make_node("Add", ["a", "a"], ["b"]), h.make_node("Identity", ["going"], ["again"])],
        "body",
        [*scalars, _value("a")],
        [again, _value("b")],
    )
    loop = h.make_node("Loop", ["count", "true", "x0"], ["y"], body=body)
    return _model([loop], "y", count=np.int64(count), true=np.True_)


def _function(number: int, *nodes: NodeProto) -> FunctionProto:
    return h.make_function(DOMAIN, f"f{number}", ["x"], ["y"], nodes, _imports())


def _nested(count: int, *calls: Callable[[str], NodeProto]) -> ModelProto:
    functions = [_function(0, h.make_node("Add", ["x", "x"], ["y"]))]
    for n in range(1, count):
        functions.append(_function(n, *(call(f"f{n - 1}") for call in calls)))
    top = h.make_node(f"f{count - 1}", ["x0"], ["y"], domain=DOMAIN)
    return _model([top], "y", functions=functions)


def nested(count: int) -> ModelProto:
    """`count` functions, each of which calls the next twice on one input: f(x) = g(x) + g(x)"""
    return _nested(
        count,
        lambda f: h.make_node(f, ["x"], ["a"], domain=DOMAIN),
        lambda f: h.make_node(f, ["x"], ["b"], domain=DOMAIN),
        lambda f: h.make_node("Add", ["a", "b"], ["y"]),
    )


def expanding(count: int) -> ModelProto:
    """f(x) = g(g(x)): 2^count operators"""
    return _nested(
        count,
        lambda f: h.make_node(f, ["x"], ["a"], domain=DOMAIN),
        lambda f: h.make_node(f, ["a"], ["y"], domain=DOMAIN),
    )


def mixed(count: int) -> ModelProto:
    """x = x[a] + x[b] of two permutations: 2^count elements for each of the result"""
    nodes = []
    for n in range(count):
        nodes.append(h.make_node("Gather", [f"x{n}", "a"], [f"l{n}"]))
        nodes.append(h.make_node("Gather", [f"x{n}", "b"], [f"r{n}"]))
        nodes.append(h.make_node("Add", [f"l{n}", f"r{n}"], [f"x{n + 1}"]))
    order = np.random.default_rng(0).permutation(SHAPE[0])
    return _model(nodes, f"x{count}", a=order, b=order[::-1].copy())


GRAPHS = {
    "doubled": Growing(doubled, 1_000),
    "gated": Growing(gated, 200),
    "powers": Growing(powers, 64),
    "looped": Growing(looped, 250),
    "nested": Growing(nested, 7),
    "mixed": Growing(mixed, 50),
}
