"""Graphs built as tutorials build them; what makes no graph is refused, with the whole message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlc_deploy import GraphError, IRModule, PrimFunc, graph, te
from mlc_deploy.graph import (
    BlockBuilder,
    Call,
    CallPacked,
    CallTIR,
    Constant,
    Var,
    bind_dims,
    bind_params,
    const,
    evaluate,
    op,
    tensor_type,
)
from mlc_deploy.ir import structural_hash

N = 8


def te_matmul(a: te.Tensor, b: te.Tensor) -> Any:
    k = te.reduce_axis((0, a.shape[1]), name="k")
    shape = (a.shape[0], b.shape[1])
    return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")


def te_relu(a: te.Tensor) -> Any:
    return te.compute(a.shape, lambda *i: te.maximum(a[i], 0), name="relu")


def var(name: str, *shape: int | str) -> Var:
    return Var(name, tensor_type(shape))


def test_parameters_first_and_last_give_the_same(golden: Callable[..., None]) -> None:
    modules: list[IRModule] = []
    for first in (True, False):
        bb, a, b = BlockBuilder(), var("A", N, N), var("B", N, N)
        with bb.function("main", [a, b] if first else None):
            with bb.dataflow():
                c = bb.emit_te(te_matmul, a, b)
                d = bb.emit_te(te_relu, c)
                r = bb.emit_output(d)
            bb.emit_func_output(r, None if first else [a, b])
        modules.append(bb.get())
    one, two = modules
    assert one.script() == two.script()
    golden(one.script(), "graph_emit_te")
    x, y = (np.random.default_rng(n).normal(size=(N, N)).astype(np.float32) for n in (0, 1))
    (found,) = evaluate(one["main"], [x, y], module=one).values()
    np.testing.assert_allclose(found, np.maximum(x @ y, 0), rtol=1e-5, atol=1e-6)


def test_equal_prim_funcs_are_there_once() -> None:
    bb, x = BlockBuilder(), var("x", N)
    with bb.function("main", [x]):
        y = bb.emit_te(te_relu, bb.emit_te(te_relu, x))
        z = bb.emit_te(te_relu, bb.emit(op.reshape(y, shape=(2, 4))))
        bb.emit_func_output([z, bb.emit_te(te_relu, z, primfunc_name_hint="other")])
    module = bb.get()
    assert list(module) == ["te_relu", "te_relu_1", "main"]
    calls = [b.call for b in module["main"].bindings]
    called = [call.func for call in calls if isinstance(call, CallTIR)]
    assert called == ["te_relu", "te_relu", "te_relu_1", "te_relu_1"]


def test_te_functions_take_lists_numbers_and_keywords() -> None:
    def total(parts: list[te.Tensor], scale: int, shift: te.Tensor) -> Any:
        a, b = parts
        return te.compute(a.shape, lambda i: (a[i] + b[i]) * float(scale) + shift[i])

    bb, x = BlockBuilder(), var("x", 3)
    with bb.function("main", [x]):
        y = bb.emit_te(total, [x, np.ones(3, np.float32)], 2, shift=op.relu(x))
        bb.emit_func_output(y, names=["y"])
    module = bb.get()
    given = np.array([-1, 0, 2], np.float32)
    found = evaluate(module["main"], [given], module=module)
    np.testing.assert_array_equal(found["y"], (given + 1) * 2 + np.maximum(given, 0))


def test_calls_within_calls_are_emitted_first() -> None:
    bb, x = BlockBuilder(), var("x", 2)
    with bb.function("main", [x]):
        bb.emit_func_output(op.add(op.relu(x), op.exp(op.negative(x))))
    (function,) = bb.get().functions.values()
    ops = [b.call.op for b in function.bindings if isinstance(b.call, Call)]
    assert ops == ["relu", "negative", "exp", "add"]


def test_constants() -> None:
    assert [const(v).type.dtype for v in (1.0, 2, True, np.int8(1), [1, 2])] == [
        "float32", "int32", "bool", "int8", "int32",
    ]  # fmt: skip
    assert const(1, "float16", "one").name == "one"


def test_call_tir_by_name() -> None:
    bb, x = BlockBuilder(), var("x", "n", 4)
    a = te.placeholder((te.var("rows"), 4))
    func = te.create_prim_func([a, te_relu(a)], "relu")
    key = bb.add_func(func)
    with bb.function("main", [x]):
        y = bb.call_tir(key, [x])
        bb.emit_func_output(bb.call_dps_packed("env.f", [y], y.type))
    assert str(y.type) == "float32[n, 4]"
    calls = [b.call for b in bb.get()["main"].bindings]
    assert isinstance(calls[1], CallPacked) and calls[1].pure
    kept = bb.get()["relu"]
    assert isinstance(kept, PrimFunc) and structural_hash(kept) == structural_hash(func)


# ---------------------------------------------------------------------- parameters, dimensions


def symbolic() -> IRModule:
    bb, x, w = BlockBuilder(), var("x", "n", "m"), var("w", 4, "m")
    with bb.function("main", [x, w]):
        y = bb.emit(op.dense(x, w, transpose_b=True))
        bb.emit_func_output(bb.emit_te(te_relu, y), names=["y"])
    return bb.get()


def test_symbolic_dimensions() -> None:
    module = symbolic()
    main = module["main"]
    assert [str(b.outputs[0].type) for b in main.bindings] == ["float32[n, 4]"] * 2
    x, w = np.ones((3, 5), np.float32), np.ones((4, 5), np.float32)
    np.testing.assert_array_equal(evaluate(main, [x, w], module=module)["y"], np.full((3, 4), 5))
    with pytest.raises(ValueError) as caught:
        evaluate(main, [x, np.ones((4, 6), np.float32)], module=module)
    assert str(caught.value) == (
        "input 'w' is float32[4, 6], the model takes float32[4, m], here float32[4, 5]"
    )


def test_bound_parameters_say_what_dimensions_are() -> None:
    w = np.arange(20, dtype=np.float32).reshape(4, 5)
    module = bind_params(symbolic(), {"w": w})
    (x,) = module["main"].params
    assert str(x.type) == "float32[n, 5]"
    given = np.ones((2, 5), np.float32)
    found = evaluate(module["main"], [given], module=module)["y"]
    np.testing.assert_array_equal(found, given @ w.T)
    fixed = bind_dims(module, {"n": 7})["main"]
    assert [str(v.type) for v in (*fixed.params, *fixed.outputs)] == [
        "float32[7, 5]",
        "float32[7, 4]",
    ]
    constants = [a for b in fixed.bindings for a in b.call.args if isinstance(a, Constant)]
    assert [c.name for c in constants] == ["w"]


def test_dimensions_that_are_computed() -> None:
    bb, x = BlockBuilder(), var("x", "n", 4)
    with bb.function("main", [x]):
        y = bb.emit(op.concatenate(x, x, axis=0))
        bb.emit_func_output(bb.emit(op.concatenate(y, x, axis=0)), names=["y"])
    (function,) = bb.get().functions.values()
    assert str(function.outputs[0].type) == "float32[n * 3, 4]"
    assert evaluate(function, [np.ones((2, 4), np.float32)])["y"].shape == (6, 4)


# ------------------------------------------------------------------------------------- refusals

X, Y = var("x", 2), var("x", 2)


def in_function(body: Callable[[BlockBuilder], Any], params: Any = (X,)) -> Callable[[], Any]:
    def run() -> None:
        bb = BlockBuilder()
        with bb.function("main", params):
            body(bb)

    return run


def in_block(body: Callable[[BlockBuilder], Any]) -> Callable[[], Any]:
    def run(bb: BlockBuilder) -> None:
        with bb.dataflow():
            body(bb)

    return in_function(run)


def read_outside(bb: BlockBuilder) -> None:
    with bb.dataflow():
        y = bb.emit(op.relu(X))
    bb.emit_func_output(y)


def function_twice() -> None:
    bb = BlockBuilder()
    for _ in range(2):
        with bb.function("main", [X]):
            bb.emit_func_output(X)


REFUSED: dict[str, Callable[[], Any]] = {
    "no output": in_function(lambda bb: bb.emit(op.relu(X))),
    "output twice": in_function(lambda bb: [bb.emit_func_output(X), bb.emit_func_output(X)]),
    "calls after the output": in_function(lambda bb: [bb.emit_func_output(X), bb.emit(op.exp(X))]),
    "output of no function": lambda: BlockBuilder().emit_func_output(X),
    "function within a function": in_function(lambda bb: bb.function("other").__enter__()),
    "two functions of a name": function_twice,
    "parameters of one name": in_function(lambda bb: None, [X, Y]),
    "no parameter": in_function(lambda bb: bb.emit_func_output(op.relu(X)), None),
    "another function's variable": in_function(lambda bb: bb.emit(op.relu(Y))),
    "block within a block": in_block(lambda bb: bb.dataflow().__enter__()),
    "side effects in a block": in_block(
        lambda bb: bb.call_dps_packed("env.print", [X], X.type, pure=False)
    ),
    "read outside of its block": in_function(read_outside),
    "output of no block": in_function(lambda bb: bb.emit_output(X)),
    "function's output in a block": in_block(lambda bb: bb.emit_func_output(X)),
    "number as an argument": in_function(lambda bb: bb.emit(op.add(X, 1.0))),
    "PrimFunc that is not there": in_function(lambda bb: bb.call_tir("relu", [X])),
    "PrimFunc of other types": in_function(lambda bb: bb.call_tir(relu_of_3(), [X])),
    "unknown parameter": lambda: bind_params(symbolic(), {"weight": np.ones(1)}),
    "parameter of another type": lambda: bind_params(symbolic(), {"w": np.ones((4, 5))}),
    "parameters that contradict": lambda: bind_params(
        symbolic(), {"x": np.ones((2, 3), np.float32), "w": np.ones((4, 5), np.float32)}
    ),
    "unknown dimension": lambda: bind_dims(symbolic(), {"k": 3}),
    "negative dimension": lambda: bind_dims(symbolic(), {"n": -1}),
    "unknown function": lambda: bind_dims(symbolic(), {"n": 1}, function="mian"),
    "dimensions that are left": lambda: graph.bind.static(symbolic()["main"], dims={"n": 1}),
    "shape that does not fit": lambda: graph.bind.static(symbolic()["main"], {"w": (3, 5)}),
    "shapes that contradict": lambda: graph.bind.static(
        symbolic()["main"], {"x": (2, 3), "w": (4, 5)}
    ),
    "shape of no input": lambda: graph.bind.static(symbolic()["main"], {"weights": (2, 3)}),
}


def relu_of_3() -> PrimFunc:
    a = te.placeholder((3,), name="a")
    return te.create_prim_func([a, te_relu(a)], "relu")


def test_messages(golden: Callable[..., None]) -> None:
    lines: list[str] = []
    for name, wrong in REFUSED.items():
        with pytest.raises(GraphError) as caught:
            wrong()
        lines += [f"--- {name}", str(caught.value)]
    golden("\n".join(lines), "graph_refusals")


def test_static_binds_by_shapes_and_names() -> None:
    main = graph.bind.static(symbolic()["main"], {"w": (4, 5)}, {"n": 2})
    assert [str(p.type) for p in main.params] == ["float32[2, 5]", "float32[4, 5]"]


def test_unknown_operator() -> None:
    with pytest.raises(AttributeError, match="no operator 'denes'\n  try: dense"):
        op.denes(X)
