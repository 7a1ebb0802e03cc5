"""Graphs inside nodes, functions of the model, sequences: what is unrolled, chosen and inlined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from mlc_deploy.errors import ImporterError, ModelWarning
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from tests.onnx_models import reference

Array = NDArray[Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
node = helper.make_node


def value(name: str, kind: int = FLOAT, shape: Sequence[int | str] | None = (2, 3)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def body(nodes: Sequence[Any], outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: dict[str, Array] | None = None,
    **options: Any,
) -> ModelProto:
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), *options.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)


def agrees(m: ModelProto, **inputs: Array) -> None:
    function = from_onnx(m)
    found = evaluate(function, inputs)
    for name, theirs in reference(m, inputs).items():
        assert found[name].dtype == theirs.dtype
        np.testing.assert_allclose(found[name], theirs, rtol=1e-5, atol=1e-6)


def refusal(m: ModelProto) -> str:
    with pytest.raises(ImporterError) as caught:
        from_onnx(m)
    return str(caught.value)


# -------------------------------------------------------------------------------------- branches


def choice(then: Sequence[Any], otherwise: Sequence[Any]) -> Any:
    """An If of c whose branches compute r."""
    return node(
        "If",
        ["c"],
        ["y"],
        name="if",
        then_branch=body(then, [value("r", shape=None)]),
        else_branch=body(otherwise, [value("r", shape=None)]),
    )


@pytest.mark.parametrize("c", [True, False])
def test_a_known_branch_is_taken(c: bool) -> None:
    """The other one may be what is not supported; names of the graph around are seen."""
    other = [node("Multinomial", ["x"], ["r"])]
    taken = [node("Relu", ["x"], ["a"]), node("Add", ["a", "w"], ["r"])]
    nodes = [choice(taken, other) if c else choice(other, taken)]
    m = model(nodes, [value("x")], [value("y")], {"c": np.array(c), "w": X})
    np.testing.assert_array_equal(evaluate(from_onnx(m), {"x": X})["y"], np.maximum(X, 0) + X)


@pytest.mark.parametrize("c", [True, False])
def test_both_branches_are_computed(c: bool) -> None:
    nodes = [choice([node("Relu", ["x"], ["r"])], [node("Neg", ["x"], ["r"])])]
    m = model(nodes, [value("x"), value("c", BOOL, [])], [value("y")])
    agrees(m, x=X, c=np.array(c))


def test_branches_of_different_shapes() -> None:
    flat = node("Constant", [], ["s"], value_ints=[-1])
    nodes = [choice([node("Relu", ["x"], ["r"])], [flat, node("Reshape", ["x", "s"], ["r"])])]
    m = model(nodes, [value("x"), value("c", BOOL, [])], [value("y", shape=None)])
    assert refusal(m) == (
        "'the condition of branches of different shapes' is known only at run time, but is needed "
        "when the model is compiled\n"
        "  in:  the model, node 'if' (If)\n"
        "  try: --const c=… (values= in Python), where that is always the same"
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_branch_that_cannot_be(first: bool) -> None:
    """It is for another shape; the other one is taken, and that is said."""
    impossible = [node("MatMul", ["x", "w"], ["r"], name="product")]
    relu = [node("Relu", ["x"], ["r"])]
    m = model(
        [choice(relu, impossible) if first else choice(impossible, relu)],
        [value("x"), value("c", BOOL, [])], [value("y")], {"w": np.ones((7, 4), np.float32)},
    )  # fmt: skip
    with pytest.warns(ModelWarning) as warned:
        function = from_onnx(m)
    (said,) = [str(w.message) for w in warned]
    taken = "then_branch" if first else "else_branch"
    assert said.startswith(
        f"the model, node 'if' (If): only its {taken} fits the shapes, and is taken whatever the "
        "condition is (dense: "
    )
    given = {"x": X, "c": np.array(not first)}
    np.testing.assert_array_equal(evaluate(function, given)["y"], np.maximum(X, 0))


def test_branches_of_which_none_can_be() -> None:
    impossible = [node("MatMul", ["x", "w"], ["r"], name="product")]
    m = model(
        [choice(impossible, impossible)], [value("x"), value("c", BOOL, [])], [value("y")],
        {"w": np.ones((7, 4), np.float32)},
    )  # fmt: skip
    assert "node 'if' (MatMul)" in refusal(m)


def test_nodes_in_another_order() -> None:
    """Also in a graph within a node."""
    late = [node("Neg", ["a"], ["r"]), node("Relu", ["x"], ["a"])]
    nodes = [
        node("Add", ["y0", "n"], ["y"]), choice(late, late[::-1]), node("Neg", ["x"], ["n"]),
    ]  # fmt: skip
    nodes[1].output[0] = "y0"
    m = model(nodes, [value("x"), value("c", BOOL, [])], [value("y")])
    found = evaluate(from_onnx(m), {"x": X, "c": np.array(True)})["y"]
    np.testing.assert_array_equal(found, -np.maximum(X, 0) - X)


# ----------------------------------------------------------------------------------------- loops


def loop(nodes: Sequence[Any], **names: str) -> Any:
    """A Loop over the state v from x, whose scan output is s."""
    inputs = [value("i", INT64, []), value("going", BOOL, []), value("v")]
    outputs = [value(names.get("condition", "going"), BOOL, []), value("w"), value("e")]
    return node(
        "Loop", ["n", "c", "x"], ["last", "all"], name="loop", body=body(nodes, outputs, inputs)
    )


COUNTING = [
    node("Cast", ["i"], ["k"], to=FLOAT),
    node("Add", ["v", "k"], ["w"]),
    node("Mul", ["w", "x"], ["e"]),
]


def test_a_loop_unrolls() -> None:
    constants = {"n": np.array(4), "c": np.array(True)}
    outputs = [value("last"), value("all", shape=[4, 2, 3])]
    agrees(model([loop(COUNTING)], [value("x")], outputs, constants), x=X)


def test_a_loop_that_ends_by_its_number() -> None:
    """The condition counts, so that it is known in every turn."""
    three = node("Constant", [], ["three"], value=numpy_helper.from_array(np.array(3)))
    nodes = [*COUNTING, three, node("Less", ["i", "three"], ["more"])]
    constants = {"n": np.array(10), "c": np.array(True)}
    outputs = [value("last"), value("all", shape=[4, 2, 3])]
    agrees(model([loop(nodes, condition="more")], [value("x")], outputs, constants), x=X)


def test_a_loop_that_data_end() -> None:
    nodes = [
        *COUNTING,
        node("ReduceMax", ["w"], ["most"], keepdims=0),
        node("Less", ["most", "limit"], ["more"]),
    ]
    constants = {"n": np.array(9), "c": np.array(True), "limit": np.array(9, np.float32)}
    outputs = [value("last"), value("all", shape=["turns", 2, 3])]
    for scale in (0.5, 1, 4, 100):
        m = model([loop(nodes, condition="more")], [value("x")], outputs, constants)
        agrees(m, x=scale * np.abs(X))
    endless = loop(nodes, condition="more")
    endless.input[0] = ""
    m = model([endless], [value("x")], outputs, constants)
    assert refusal(m) == (
        "the loop collects results, and nothing says how many at most\n"
        "  in:  the model, node 'loop' (Loop)\n"
        "  try: a constant trip count: the loop's condition may end it earlier"
    )


def test_a_loop_whose_trip_count_is_data_says_why_it_cannot_be() -> None:
    ending = [
        *COUNTING,
        node("ReduceMax", ["w"], ["most"], keepdims=0),
        node("Less", ["most", "limit"], ["more"]),
    ]
    constants = {"c": np.array(True), "limit": np.array(9, np.float32)}
    params = [value("x"), value("n", INT64, [])]
    outputs = [value("last", shape=None), value("all", shape=None)]
    assert refusal(model([loop(ending, condition="more")], params, outputs, constants)) == (
        "the loop collects results, and nothing says how many at most\n"
        "  in:  the model, node 'loop' (Loop)\n"
        "  try: a constant trip count: the loop's condition may end it earlier, or "
        "--const n=… (values= in Python), where that is always the same"
    )


def test_a_loop_that_turns_too_often() -> None:
    m = model(
        [loop(COUNTING)],
        [value("x")],
        [value("last")],
        {"n": np.array(1 << 40), "c": np.array(True)},
    )
    assert refusal(m).startswith("the loop runs 1099511627776 times; 2147483647 are the most")


def test_scan() -> None:
    """Columns from the last on, collected behind the rows, the first of them last."""
    inner = body(
        [node("Add", ["state", "column"], ["next"]), node("Identity", ["next"], ["out"])],
        [value("next", shape=[2]), value("out", shape=[2])],
        [value("state", shape=[2]), value("column", shape=[2])],
    )
    scan = node(
        "Scan",
        ["z", "x"],
        ["total", "all"],
        body=inner,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    outputs = [value("total", shape=[2]), value("all", shape=[2, 3])]
    agrees(model([scan], [value("x")], outputs, {"z": np.ones(2, np.float32)}), x=X)


def test_a_graph_within_a_graph() -> None:
    """What is inside sees all that is around it; names inside hide none behind the node."""
    inner = choice([node("Mul", ["v", "w"], ["r"])], [node("Neg", ["v"], ["r"])])
    inner.output[0] = "e"
    nodes = [
        node("Add", ["v", "x"], ["w"]),
        node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
        inner,
    ]
    outer = loop(nodes)
    outer.input[1] = "yes"
    constants = {"n": np.array(2), "yes": np.array(True)}
    after = node("Sub", ["last", "x"], ["y"])
    agrees(model([outer, after], [value("x")], [value("y")], constants), x=X)


# ------------------------------------------------------------------------------------- functions


def scaled(**defaults: Any) -> Any:
    """x times the attribute `factor`, plus itself where the optional input b is left out."""
    constant = node("Constant", [], ["f"])
    reference = constant.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "value_float", "factor", 1
    attributes = [] if defaults else ["factor"]
    function = helper.make_function(
        "acme",
        "Scaled",
        ["a", "b"],
        ["r"],
        [constant, node("Mul", ["a", "f"], ["m"]), node("Sum", ["m", "b"], ["r"])],
        [helper.make_opsetid("", 17)],
        attributes,
    )
    for name, default in defaults.items():
        function.attribute_proto.append(helper.make_attribute(name, default))
    return function


ACME: dict[str, Any] = {"opsets": [helper.make_opsetid("acme", 1)]}


@pytest.mark.parametrize("given", [{}, {"factor": 2.5}])
def test_functions_of_the_model(given: dict[str, float]) -> None:
    options: dict[str, Any] = {"domain": "acme", **given}
    call = node("Scaled", ["x", "x"], ["y"], **options)
    m = model([call], [value("x")], [value("y")], functions=[scaled(factor=4.0)], **ACME)
    (y,) = evaluate(from_onnx(m), {"x": X}).values()
    np.testing.assert_array_equal(y, X * (given.get("factor", 4.0) + 1))


def test_a_function_that_calls_itself() -> None:
    function = helper.make_function(
        "acme",
        "Endless",
        ["a"],
        ["r"],
        [node("Endless", ["a"], ["r"], domain="acme")],
        [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)],
    )
    m = model(
        [node("Endless", ["x"], ["y"], domain="acme")],
        [value("x")],
        [value("y")],
        functions=[function],
        **ACME,
    )
    message = refusal(m)
    assert "functions call each other without end" in message or "recursi" in message.lower()


# ------------------------------------------------------------------- sequences, shapes, constants


def test_sequences_of_known_length() -> None:
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=1),
        node("SequenceAt", ["s", "last"], ["a"]),
        node("SequenceErase", ["s", "last"], ["t"]),
        node("SequenceInsert", ["t", "a", "zero"], ["u"]),
        node("SequenceLength", ["u"], ["n"]),
        node("ConcatFromSequence", ["u"], ["y"], axis=1),
    ]
    outputs = [value("y"), value("n", INT64, [])]
    m = model(nodes, [value("x")], outputs, {"last": np.array(-1), "zero": np.array(0)})
    agrees(m, x=X)


def test_sequences_as_inputs_and_outputs() -> None:
    """Each of their tensors is an input or output; a map goes over all of them."""
    x = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    y = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    inner = body([node("Neg", ["a"], ["b"])], [value("b")], [value("a")])
    m = model([node("SequenceMap", ["x"], ["y"], body=inner)], [x], [y])
    function = from_onnx(m, {"x.0": (2, 3), "x.1": (4,)})
    assert [p.name for p in function.params] == ["x.0", "x.1"]
    given = {"x.0": X, "x.1": np.arange(4, dtype=np.float32)}
    found = evaluate(function, given)
    assert list(found) == ["y.0", "y.1"]
    for name, array in given.items():
        np.testing.assert_array_equal(found[name.replace("x", "y")], -array)


def test_an_optional_without_a_value() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 3]))
    given = helper.make_value_info("o", kind)
    empty = [node("Identity", ["x"], ["r"])]
    there = [node("OptionalGetElement", ["o"], ["e"]), node("Neg", ["e"], ["r"])]
    nodes = [node("OptionalHasElement", ["o"], ["c"]), choice(there, empty)]
    m = model(nodes, [value("x"), given], [value("y")], opsets=[helper.make_opsetid("", 18)])
    m.opset_import.pop(0)
    without = from_onnx(m, values={"o": None})
    np.testing.assert_array_equal(evaluate(without, {"x": X})["y"], X)
    np.testing.assert_array_equal(evaluate(from_onnx(m), {"x": X, "o": X + 1})["y"], -X - 1)


def test_computed_shapes_are_constants() -> None:
    """Shape, Gather, Concat, a branch on a rank: what exporters write around a Reshape."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Size", ["s"], ["rank"]),
        node("Equal", ["rank", "two"], ["c"]),
        node("Gather", ["s", "zero"], ["rows"]),
        node("Unsqueeze", ["rows", "front"], ["own"]),
        node("Concat", ["rest", "own"], ["wanted"], axis=0),
        choice([node("Reshape", ["x", "wanted"], ["r"])], [node("Identity", ["x"], ["r"])]),
    ]
    constants = {
        "two": np.array(2),
        "zero": np.array(0),
        "front": np.array([0]),
        "rest": np.array([-1]),
    }
    function = from_onnx(model(nodes, [value("x")], [value("y", shape=None)], constants))
    assert [str(b.call).partition("(")[0].split(".")[-1] for b in function.bindings] == ["reshape"]
    assert function.outputs[0].type.shape == (3, 2)


def test_places_that_are_not_zero() -> None:
    """NonZero of what is known, and of data, whose output has the shape that they say."""
    nodes = [node("NonZero", ["mask"], ["p"]), node("Transpose", ["p"], ["t"])]
    nodes += [node("GatherND", ["x", "t"], ["y"])]
    mask = {"mask": np.array([[True, False, True], [False, True, False]])}
    agrees(model(nodes, [value("x")], [value("y", shape=[3])], mask), x=X)
    nodes[0].input[0] = "x"
    agrees(model(nodes, [value("x")], [value("y", shape=None)]), x=X)
