"""Shape-polymorphic PrimFuncs that a graph calls, made definite for the extents of each call."""

# mypy: disable-error-code="valid-type, no-untyped-def, attr-defined, type-var, arg-type, call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import graph, te
from mlc_deploy.errors import GraphError, ScriptError
from mlc_deploy.graph import BlockBuilder, CallTIR, Var, op, tensor_type
from mlc_deploy.graph.specialize import specialize
from mlc_deploy.ir import IRModule
from mlc_deploy.script import from_script
from mlc_deploy.script import graph as R
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T


@I.ir_module
class Layers:
    @T.prim_func(private=True)  # type: ignore[untyped-decorator]
    def relu(x: T.handle, y: T.handle):
        n, m = T.int64(), T.int64()
        X = T.match_buffer(x, (n, m), "float32")
        Y = T.match_buffer(y, (n, m), "float32")
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(X[vi, vj], T.float32(0))

    @T.prim_func
    def linear(x: T.handle, w: T.handle, b: T.handle, z: T.handle):
        m, n, k = T.int64(), T.int64(), T.int64()
        X = T.match_buffer(x, (n, m), "float32")
        W = T.match_buffer(w, (k, m), "float32")
        B = T.match_buffer(b, (k,), "float32")
        Z = T.match_buffer(z, (n, k), "float32")
        Y = T.alloc_buffer((n, k), "float32")
        for i, j, kk in T.grid(n, k, m):
            with T.block("Y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, kk])
                with T.init():
                    Y[vi, vj] = T.float32(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vj, vk]
        for i, j in T.grid(n, k):
            with T.block("Z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = Y[vi, vj] + B[vj]

    @R.function
    def main(
        x: R.Tensor(("n", 24), "float32"),
        w0: R.Tensor((16, 24), "float32"),
        b0: R.Tensor((16,), "float32"),
        w1: R.Tensor((5, 16), "float32"),
        b1: R.Tensor((5,), "float32"),
    ) -> R.Tensor(("n", 5), "float32"):
        n = T.int64()
        cls = Layers  # noqa: F841
        with R.dataflow():
            lv0 = R.call_dps_packed(
                "linear", (x, w0, b0), out_sinfo=R.Tensor((n, 16), dtype="float32")
            )
            lv1: R.Tensor((n, 16), dtype="float32") = R.call_tir(
                Layers.relu, (lv0,), out_sinfo=R.Tensor((n, 16), dtype="float32")
            )
            out = R.call_tir(Layers.linear, (lv1, w1, b1), R.Tensor((n, 5), "float32"))
            R.output(out)
        return out


BOARDS = [("local://", "host"), ("qemu://cortex-a7", "armv7a"), ("qemu://cortex-a72", "aarch64")]
RNG = np.random.default_rng(0)
PARAMS = {
    name: RNG.normal(0, 0.3, shape).astype(np.float32)
    for name, shape in {"w0": (16, 24), "b0": (16,), "w1": (5, 16), "b1": (5,)}.items()
}


def read(text: str) -> IRModule:
    module = from_script(text)
    assert isinstance(module, IRModule)
    return module


def wanted(x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ PARAMS["w0"].T + PARAMS["b0"], 0)
    return np.asarray(hidden @ PARAMS["w1"].T + PARAMS["b1"])


def test_text_prints_and_reads_back() -> None:
    assert isinstance(Layers, IRModule)
    text = str(Layers)
    assert str(from_script(text)) == text
    assert "call_dps_packed" not in text  # the module's own function was found


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize(("board", "target"), BOARDS)
def test_a_module_of_open_shapes_runs(board: str, target: str, rows: int) -> None:
    module = graph.bind_params(Layers, PARAMS)
    x = RNG.random((rows, 24), np.float32)
    with mlc.connect(board) as session:
        for model in (
            mlc.compile(module, target, dims={"n": rows}),
            mlc.compile(graph.bind_dims(module, {"n": rows}), target),
            mlc.compile(module, target, shapes={"x": (rows, 24)}),
        ):
            done = mlc.deploy(model, session, {"x": x})
            assert done.ok
            np.testing.assert_allclose(done.outputs["out"], wanted(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 32])
def test_a_main_of_static_shapes(rows: int) -> None:
    text = str(Layers).replace('"n"', str(rows))
    module = graph.bind_params(read(text), PARAMS)
    x = RNG.random((rows, 24), np.float32)
    for board, target in BOARDS:
        with mlc.connect(board) as session:
            done = mlc.deploy(mlc.compile(module, target), session, {"x": x})
        assert done.ok
        np.testing.assert_allclose(done.outputs["out"], wanted(x), rtol=1e-4, atol=1e-5)


def test_each_call_has_its_extents_and_equal_ones_are_one_function() -> None:
    module = graph.bind_dims(Layers, {"n": 3})
    function, made = specialize(graph.graph_function(module), module)
    called = [b.call.func for b in function.bindings if isinstance(b.call, CallTIR)]
    assert called == ["linear_1", "relu_1", "linear_2"]
    assert [b.shape for b in made["linear_2"].buffers] == [(3, 16), (5, 16), (5,), (3, 5)]
    again, same = specialize(function, made)
    assert again is function and same.functions == made.functions


def test_what_te_makes_of_open_shapes() -> None:
    """emit_te on a parameter of the shape (1, "m"), with a stage between."""

    def shifted(x: Any) -> Any:
        k = te.reduce_axis((0, x.shape[1]), "k")
        total = te.compute((x.shape[0],), lambda i: te.sum(x[i, k], k), name="total")
        return te.compute(x.shape, lambda i, j: x[i, j] - total[i], name="shifted")

    b = BlockBuilder()
    x = Var("x", tensor_type((1, "m")))
    with b.function("main", [x]):
        with b.dataflow():
            y = b.emit_output(b.emit_te(shifted, b.emit(op.relu(x))))
        b.emit_func_output(y, names=["y"])
    given = RNG.normal(size=(1, 13)).astype(np.float32)
    positive = np.maximum(given, 0)
    for board, target in BOARDS:
        with mlc.connect(board) as session:
            model = mlc.compile(b.get(), target, dims={"m": 13})
            outputs = session.load(model).run({"x": given})
        np.testing.assert_allclose(outputs["y"], positive - positive.sum(), rtol=1e-4, atol=1e-5)


def test_a_dimension_that_nothing_says() -> None:
    func = from_script(
        """
@T.prim_func
def half(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n * 2,), "float32")
    Y = T.match_buffer(y, (n * 2,), "float32")
    for i in range(n * 2):
        with T.block("Y"):
            vi = T.axis.spatial(n * 2, i)
            Y[vi] = X[vi]
"""
    )
    from mlc_deploy.graph.specialize import with_extents

    with pytest.raises(GraphError) as error:
        with_extents(func, [tensor_type((8,)), tensor_type((8,))])
    assert str(error.value) == (
        "no argument of 'half' says what 'n' is\n  try: a tensor of which n is a whole dimension"
    )


SCALARS = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def halves(x: T.handle, y: T.handle, n: T.int64, factor: T.int64):
        X = T.match_buffer(x, (n * 2,), "float32")
        Y = T.match_buffer(y, (n,), "float32")
        for i in range(n):
            with T.block("Y"):
                vi = T.axis.spatial(n, i)
                Y[vi] = X[vi + n] * T.cast(factor, "float32")

    @R.function(private=True)
    def main(x: R.Tensor((12,), "float32"), z: R.Tensor(shape=("m",), dtype="float32")):
        m, k = T.int64()
        cls = Module
        with R.dataflow():
            y = R.call_tir(
                cls.halves, (x,), out_sinfo=R.Tensor((6,), "float32"), tir_vars=R.shape([6, m])
            )
            R.output(y)
        return y, z
"""


@pytest.mark.parametrize(("board", "target"), BOARDS)
def test_scalars_become_part_of_the_function(board: str, target: str) -> None:
    """Also where nothing else says what a dimension is."""
    module = from_script(SCALARS)
    assert isinstance(module, IRModule)
    text = str(module)
    assert 'tir_vars=R.shape([6, "m"])' in text and str(from_script(text)) == text
    x, z = np.arange(12, dtype=np.float32), np.zeros(3, np.float32)
    with mlc.connect(board) as session:
        model = mlc.compile(module, target, dims={"m": 3})
        done = mlc.deploy(model, session, {"x": x, "z": z})
    assert done.ok
    np.testing.assert_array_equal(done.outputs["y"], x[6:] * 3)


def test_other_scalars_than_the_function_takes() -> None:
    for given, what in (
        ("R.shape([6])", "'halves' takes the integers n, factor, and tir_vars gives 1"),
        ("6", "a shape is a list of integers and dimensions"),
    ):
        with pytest.raises(ScriptError) as error:
            from_script(SCALARS.replace("R.shape([6, m])", given))
        assert error.value.what == what


ROWS = """
@I.ir_module
class Module:
    @T.prim_func
    def rows(x: T.handle, y: T.handle, begin: T.int64, count: T.int32):
        n, m = T.int64(), T.int64()
        X = T.match_buffer(x, (n, m), "float32")
        Y = T.match_buffer(y, (count, m), "float32")
        Z = T.alloc_buffer((count, m), "float32")
        for i, j in T.grid(count, m):
            with T.block("Z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = X[vi + begin, vj]
        for i, j in T.grid(count, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = Z[vi, vj] * T.Cast("float32", begin)

    @R.function
    def main(x: R.Tensor(("n", 6), "float32")):
        n = T.int64()
        with R.dataflow():
            last = R.call_tir(
                cls.rows, (x,), R.Tensor((2, 6), "float32"), tir_vars=R.shape([n - 2, 2])
            )
            half = R.call_tir(
                cls.rows, (x,), out_sinfo=R.Tensor((n // 2, 6)), tir_vars=R.shape([1, n // 2])
            )
            R.output(last, half)
        return last, half
"""


@pytest.mark.parametrize("rows", [4, 9])
def test_integer_parameters(rows: int) -> None:
    """Numbers and dimensions that a graph passes to a function: as an argument, as an extent."""
    module = read(ROWS)
    assert str(from_script(str(module))) == str(module)
    x = RNG.integers(-9, 9, (rows, 6)).astype(np.float32)
    right = {"last": (rows - 2) * x[-2:], "half": x[1 : 1 + rows // 2]}
    open_ = graph.evaluate(module["main"], [x], module=module)
    bound = graph.bind_dims(module, {"n": rows})
    for name, values in graph.evaluate(bound["main"], [x], module=bound).items():
        np.testing.assert_array_equal(values, right[name])
        np.testing.assert_array_equal(open_[name], right[name])
    for board, target in BOARDS:
        with mlc.connect(board) as session:
            done = mlc.deploy(mlc.compile(module, target, dims={"n": rows}), session, {"x": x})
        assert done.ok
        for name, values in right.items():
            np.testing.assert_array_equal(done.outputs[name], values)


def test_integer_parameters_by_the_builder() -> None:
    rows = read(ROWS)["rows"]
    b = BlockBuilder()
    x = Var("x", tensor_type(("n", 6)))
    with b.function("main", [x]):
        y = b.call_tir(rows, [x], tir_vars=["n - 1", 1])
        b.emit_func_output(y)
    assert list(y.type.shape) == [1, 6]
    model = mlc.compile(b.get(), "host", dims={"n": 3})
    assert [len(k.computes.params) for k in model.program.kernels.values()] == [2]
    with pytest.raises(ValueError) as error:
        c = BlockBuilder()
        with c.function("main", [x]):
            c.emit_func_output(c.call_tir(rows, [x], tensor_type((2, 6)), tir_vars=[1]))
        c.get()
    assert str(error.value) == (
        "'rows' takes the integers begin, count, and tir_vars gives 1\n"
        '  in:  rows: R.Tensor((2, 6), "float32") = R.call_tir(cls.rows, (x,), '
        'R.Tensor((2, 6), "float32"), tir_vars=R.shape([1]))'
    )
