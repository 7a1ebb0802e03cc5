"""Building, printing, verifying and evaluating graph functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlc_deploy.graph import (
    Binding,
    BlockBuilder,
    Call,
    CallFused,
    CallPacked,
    Constant,
    Function,
    TensorType,
    Var,
    evaluate,
    tensor_type,
    verify,
)
from mlc_deploy.graph.nodes import AnyCall
from mlc_deploy.ir import IRModule
from mlc_deploy.ops import compute
from mlc_deploy.te import create_prim_func, placeholder

CONV: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


def constant(shape: tuple[int, ...], name: str = "", seed: int = 0) -> Constant:
    rng = np.random.default_rng(seed)
    return Constant(rng.uniform(0.5, 1.5, shape).astype(np.float32), name)


def network() -> Function:
    """Convolution with a bias, batch norm, relu; a classifier behind; two outputs."""
    b = BlockBuilder("main")
    x = b.param("images:0", (1, 3, 6, 6))
    y = b.emit("conv2d", x, constant((4, 3, 3, 3), "conv1/w"), name="y", source="conv1", **CONV)
    y = b.emit("add", y, Constant(np.ones((1, 1, 1), np.float32)), source="conv1")
    y = b.emit("batch_norm", y, *(constant((4,), seed=n) for n in range(4)), epsilon=1e-5)
    y = b.emit("relu", y)
    flat = b.emit("reshape", y, shape=[1, 144])
    z = b.emit("dense", flat, constant((10, 144), "fc/w"), transpose_b=True, source="fc")
    return b.finish([b.emit("softmax", z, axis=1), y], ["probability", "features"])


def test_printed(golden: Callable[..., None]) -> None:
    golden(str(network()), "graph_network")


def test_names_are_made_unique() -> None:
    b = BlockBuilder()
    x = b.param("x", (2,))
    names = [b.emit("relu", x).name for _ in range(3)]
    assert names == ["relu", "relu_1", "relu_2"]


def test_verifies() -> None:
    verify(network())


def broken(change: Callable[[Function], Function]) -> str:
    with pytest.raises(ValueError) as caught:
        verify(change(network()))
    return str(caught.value)


def test_use_before_definition() -> None:
    message = broken(lambda f: replace(f, bindings=f.bindings[1:]))
    assert message.startswith("'y' is used before it is defined\n  in:  add: R.Tensor(")


def test_two_of_one_name() -> None:
    def change(f: Function) -> Function:
        relu = Call("relu", (f.params[0],), {})
        return replace(f, bindings=(Binding((Var("y", f.params[0].type),), relu), *f.bindings))

    assert broken(change).startswith("two variables are called 'y'\n  in:  y: R.Tensor(")


def test_wrong_type() -> None:
    def change(f: Function) -> Function:
        wrong = Var("wrong", TensorType((1,), "float32"))
        return replace(f, bindings=(Binding((wrong,), Call("relu", f.params, {})), *f.bindings))

    assert broken(change) == (
        "the call returns float32[1, 3, 6, 6], not float32[1]\n"
        '  in:  wrong: R.Tensor((1,), "float32") = R.relu(images_0)'
    )


def test_returned_but_not_defined() -> None:
    stranger = Var("stranger", TensorType((1,), "float32"))
    message = broken(lambda f: replace(f, outputs=(stranger, stranger)))
    assert message == "'stranger' is returned but not defined\n  in:  return stranger, stranger"


def single(call: AnyCall, *outputs: TensorType) -> Function:
    """A function of one binding; x: float32[2, "m"] is its parameter."""
    made = tuple(Var(f"y{n}", t) for n, t in enumerate(outputs))
    return Function("main", (X,), (Binding(made, call),), made, tuple(v.name for v in made))


X = Var("x", tensor_type((2, "m")))
ROWS = tensor_type((2,))


def fused_function(*ops: AnyCall, constant_shape: tuple[int, ...] = ()) -> Function:
    p = Var("p", X.type)
    y = Var("y", X.type)
    call = Call("add", (p, Constant(np.ones(constant_shape, np.float32))), {})
    bindings = (Binding((y,), call), *(Binding((), c) for c in ops))
    return Function("fused", (p,), bindings, (y,), ("y",))


VERIFIED: dict[str, Function] = {
    "dimension that no parameter says": single(
        CallPacked("f", (X,), (tensor_type(("k",)),)), tensor_type(("k",))
    ),
    "packed call of other types": single(CallPacked("f", (X,), (X.type,)), ROWS),
    "packed call without effect": single(CallPacked("f", (X,), ())),
    "too many outputs": single(CallPacked("f", (X,), (ROWS,)), ROWS, ROWS),
    "fused call of other types": single(
        CallFused(fused_function(), (Constant(np.ones((2, 2), np.float32)),)), X.type
    ),
    "fused constant that is not a scalar": single(
        CallFused(fused_function(constant_shape=(2, 1)), (X,)), X.type
    ),
    "fused call of a registered function": single(
        CallFused(fused_function(CallPacked("f", (), (), pure=False)), (X,)), X.type
    ),
    "attribute that is none": single(Call("relu", (X,), {"alpha": 1}), X.type),
    "unknown operator": single(Call("rellu", (X,), {}), X.type),
}


def test_refused_by_the_verifier(golden: Callable[..., None]) -> None:
    lines: list[str] = []
    for name, function in VERIFIED.items():
        with pytest.raises(ValueError) as caught:
            verify(function)
        lines += [f"--- {name}", str(caught.value)]
    golden("\n".join(lines), "graph_verifier_refusals")


def test_types_are_compared_up_to_arithmetic() -> None:
    verify(single(CallPacked("f", (X,), (tensor_type(("m + m",)),)), tensor_type(("m * 2",))))
    verify(single(CallFused(fused_function(), (X,)), tensor_type((2, "m + 1 - 1"))))


# ------------------------------------------------------------------------------------- evaluate


def test_evaluate_fused() -> None:
    function = single(CallFused(fused_function(), (X,)), X.type)
    x = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(evaluate(function, [x])["y0"], x + 1)


def test_evaluate_observes_every_binding() -> None:
    function = network()
    seen: list[Any] = []
    x = np.ones((1, 3, 6, 6), np.float32)
    outputs = evaluate(function, [x], lambda binding, values: seen.append((binding, values)))
    assert [b for b, _ in seen] == list(function.bindings)
    assert list(outputs) == ["probability", "features"]
    np.testing.assert_array_equal(outputs["features"], seen[3][1][0])
    np.testing.assert_allclose(outputs["probability"].sum(), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'images:0' (float32[1, 3, 6, 6]) is missing"),
        ({"x": np.ones(1)}, "no input 'x'\n  try: one of images:0"),
        ([], "0 inputs for 1: images:0"),
        (
            [np.ones((1, 3, 6, 6))],
            "input 'images:0' is float64[1, 3, 6, 6], the model takes float32[1, 3, 6, 6]",
        ),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        evaluate(network(), inputs)
    assert str(caught.value) == message


# ------------------------------------------------------------------------------------- call_tir


def with_prim_func() -> tuple[Function, IRModule]:
    a, c = placeholder((2, 3), name="a"), placeholder((3,), name="c")
    func = create_prim_func([a, c, *compute("add", [a, c], {})], "add_row")
    b = BlockBuilder()
    x = b.param("x", (2, 3))
    y = b.call_tir(func, [b.emit("relu", x), constant((3,))])
    function = b.finish([y])
    return function, IRModule({"main": function, "add_row": func})


def test_call_tir() -> None:
    function, module = with_prim_func()
    verify(function, module)
    x = np.array([[-1, 2, 3], [4, 5, -6]], np.float32)
    found = evaluate(function, [x], module=module)
    np.testing.assert_array_equal(found["add_row"], np.maximum(x, 0) + constant((3,)).value)


def test_call_tir_printed(golden: Callable[..., None]) -> None:
    function, module = with_prim_func()
    golden(str(function), "graph_call_tir")
    assert "def main(" in str(module) and "def add_row(" in str(module)


def test_call_tir_of_another_signature() -> None:
    function, _ = with_prim_func()
    x, y = placeholder((2, 3)), placeholder((1,))
    other = create_prim_func([x, y, *compute("add", [x, y], {})], "add_row")
    with pytest.raises(ValueError, match=r"'add_row' takes float32\[2, 3\], float32\[1\]"):
        verify(function, IRModule({"add_row": other}))
    with pytest.raises(ValueError, match="the module has no PrimFunc 'add_row'"):
        verify(function, IRModule({}))
