"""Graph functions as script: what is printed parses back, what users write means what it says."""

# mypy: disable-error-code="valid-type, no-untyped-def, arg-type, call-arg, misc, call-overload"

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy import IRModule, ScriptError, te
from mlc_deploy.graph import (
    BlockBuilder,
    Call,
    CallFused,
    CallPacked,
    CallTIR,
    Constant,
    Function,
    Var,
    evaluate,
    named_constants,
    tensor_type,
)
from mlc_deploy.graph.fuse import fuse_operators
from mlc_deploy.script import from_script
from mlc_deploy.script import graph as R
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T
from tests.graph.random_graphs import draw, random_module
from tests.graph.test_graph import network


def round_trip(node: Function | IRModule) -> Any:
    """What the text of a node parses back to; it prints as the same text."""
    text = node.script()
    again = from_script(text, constants=named_constants(node))
    assert type(again) is type(node)
    assert again.script() == text
    return again


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_any_module(seed: int) -> None:
    module = random_module(random.Random(seed))
    again = round_trip(module)
    main, parsed = module["main"], again["main"]
    assert [p.name for p in parsed.params] == [p.name for p in main.params]
    assert parsed.output_names == main.output_names
    inputs = draw(main)
    found = evaluate(parsed, inputs, module=again)
    for name, expected in evaluate(main, inputs, module=module).items():
        np.testing.assert_array_equal(found[name], expected)


def test_a_function_alone() -> None:
    again = round_trip(network())
    assert [b.source for b in again.bindings] == [b.source for b in network().bindings]
    x = np.ones((1, 3, 6, 6), np.float32)
    found = evaluate(again, [x])
    for name, expected in evaluate(network(), [x]).items():
        np.testing.assert_array_equal(found[name], expected)


def test_fused(golden: Callable[..., None]) -> None:
    b = BlockBuilder()
    x = b.param("x", (4, 8))
    w = Constant(np.ones((6, 8), np.float32), "w")
    y = b.emit("dense", x, w, transpose_b=True, source="fc")
    y = b.emit("relu", b.emit("add", y, Constant(np.asarray(0.5, np.float32))))
    function = fuse_operators(b.finish([y]))
    assert isinstance(function.bindings[0].call, CallFused)
    golden(str(function), "graph_script_fused")
    round_trip(function)
    again = round_trip(IRModule({"main": function}))
    assert [b.call.function.name for b in again["main"].bindings] == ["dense_add_relu"]


def test_several_dataflow_blocks(golden: Callable[..., None]) -> None:
    b = BlockBuilder()
    x = b.param("x", (2, "m"))
    y = b.emit("relu", x)
    z = b.emit("exp", y)
    b.emit(CallPacked("env.print", (y,), (), pure=False))
    top, bottom = b.call_dps_packed("env.halves", [z], [y.type, tensor_type(("m // 2",))])
    function = b.finish([b.emit("tanh", top), bottom, y], ["top", "bottom", "y"])
    golden(str(function), "graph_script_blocks")
    round_trip(function)


def test_equal_names_of_constants_are_told_apart() -> None:
    one, two = (Constant(np.full(9, n, np.float32), "w") for n in (1, 2))
    b = BlockBuilder()
    f = b.finish([b.emit("add", b.emit("add", b.param("x", (9,)), one), two)])
    assert list(named_constants(f)) == ["w", "w_1"]
    again = round_trip(IRModule({"main": f, "other": f}))
    assert named_constants(again).keys() == {"w", "w_1", "w_2", "w_3"}


def test_a_prim_func_whose_name_is_no_identifier() -> None:
    b = BlockBuilder()
    x = b.param("x", (4,))
    b.finish([b.emit_te(_plus_one, x, primfunc_name_hint="conv/1")])
    again = round_trip(b.get())
    assert [binding.call.func for binding in again["main"].bindings] == ["conv/1"]


def _plus_one(a: te.Tensor) -> Any:
    return te.compute(a.shape, lambda i: a[i] + 1.0)


# ------------------------------------------------------------------------------ as users write it

W = np.arange(12, dtype=np.float32).reshape(3, 4)
COLUMNS = 4


@R.function
def alone(x: R.Tensor((2, "m"), "float32"), y: R.Tensor(("m", COLUMNS), "float32")):
    """A doc string."""
    with R.dataflow():
        z = R.dense(x, y, transpose_b=False)
        w: R.Tensor((2, 3)) = R.dense(z, R.const(W), transpose_b=True)  # layer fc
        s = R.relu(R.add(w, R.const(-100.0, "float32")))
        R.output(s)
    t = R.exp(s)
    return t, R.const([1, 2], "int32")


def test_decorated() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s).astype(np.float32) for s in ((2, 5), (5, 4)))
    outputs = evaluate(alone, [x, y])
    assert list(outputs) == ["t", "output1"]
    np.testing.assert_allclose(outputs["t"], np.exp(np.maximum(x @ y @ W.T - 100, 0)), rtol=1e-5)
    assert [b.source for b in alone.bindings] == ["", "fc", "", "", ""]
    round_trip(alone)


@I.ir_module
class Mixed:
    @T.prim_func
    def double(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for i in T.serial(4):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] * T.float32(2)

    @R.function
    def add_relu(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")):
        R.func_attr({"Primitive": True})
        a = R.add(x, y)
        return R.relu(a)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = Mixed
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), R.Tensor((4,), "float32"))
            b = R.call_tir(Mixed.double, (a,), out_sinfo=R.Tensor((4,), dtype="float32"))
            c = cls.add_relu(a, b)
            R.output(c)
        return c


def test_module() -> None:
    assert list(Mixed) == ["double", "main"]
    kinds = [type(b.call) for b in Mixed["main"].bindings]
    assert kinds == [CallTIR, CallTIR, CallFused]
    x = np.array([1, -1, 2, -2], np.float32)
    found = evaluate(Mixed["main"], [x], module=Mixed)
    np.testing.assert_array_equal(found["c"], np.maximum(6 * x, 0))
    round_trip(Mixed)


PRINTED_BY_TVM = """# from tvm.script import ir as I
# from tvm.script import tir as T
# from tvm.script import relax as R

@I.ir_module
class Module:
    @T.prim_func(private=True)
    def rows(var_x: T.handle, var_y: T.handle, begin: T.int64):
        T.func_attr({"op_pattern": 2, "tir.noalias": T.bool(True)})
        n, m = T.int64(), T.int64()
        x = T.match_buffer(var_x, (n, T.int64(8)))
        y = T.match_buffer(var_y, (m, T.int64(8)))
        # with T.block("root"):
        for i, j in T.grid(m, T.int64(8)):
            with T.block("y"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                T.reads(x[v_i + begin, v_j])
                T.writes(y[v_i, v_j])
                y[v_i, v_j] = x[v_i + begin, v_j]

    @R.function(private=True)
    def main(
        x: R.Tensor(("n", 8), dtype="float32"),
        y: R.Tensor(("n - 2", 8), dtype="float32", ndim=2, vdevice="llvm:0"),
        z: R.Tensor(dtype="float32", ndim=2),
        s: R.Tensor((), dtype="float32"),
    ) -> R.Tuple(R.Tensor(("n - 2", 8), dtype="float32"), R.Tensor(dtype="float32", ndim=2)):
        n = T.int64()
        R.func_attr({"num_input": 2})
        with R.dataflow():
            cls = Module
            lv = R.call_tir(cls.rows, R.tuple(x), out_sinfo=R.Tensor((n - 2, 8), dtype="float32"),
                            tir_vars=R.shape([2]))
            lv1: R.Tensor((n - 2, 8), dtype="float32") = lv
            lv2: R.Tensor("float32", ndim=2) = R.add(lv1, y)
            lv3: R.Tensor = R.multiply(z, s)
            gv: R.Tuple(R.Tensor((n - 2, 8), dtype="float32"), R.Tensor) = lv2, lv3
            R.output(gv)
        return gv
"""


def test_what_tvm_prints() -> None:
    module = from_script(PRINTED_BY_TVM)
    assert isinstance(module, IRModule)
    main = module["main"]
    types = [str(p.type) for p in main.params]
    assert types == ["float32[n, 8]", "float32[n - 2, 8]", "float32[z_0, z_1]", "float32[]"]
    x, z = np.arange(40, dtype=np.float32).reshape(5, 8), np.ones((3, 2), np.float32)
    found = evaluate(main, [x, x[:3], z, np.asarray(2, np.float32)], module=module)
    np.testing.assert_array_equal(found["lv2"], x[2:] + x[:3])
    np.testing.assert_array_equal(found["lv3"], 2 * z)
    round_trip(module)


def test_words_outside_of_a_script_make_calls() -> None:
    b = BlockBuilder()
    x = Var("x", R.Tensor((2, "n"), "float32"))
    with b.function("main"):
        y = b.emit(R.relu(R.call_dps_packed("f", (x,), x.type)))
        b.emit_func_output(y, params=[x])
    kinds = [type(binding.call) for binding in b.get()["main"].bindings]
    assert kinds == [CallPacked, Call]
    assert str(R.call_tir("g", (x,), x.type, R.shape(["n", 4]))) == (
        'R.call_tir(cls.g, (x,), R.Tensor((2, "n"), "float32"), tir_vars=R.shape(["n", 4]))'
    )
    with pytest.raises(AttributeError, match=r"no R\.rellu\n  try: R\.relu"):
        R.rellu(x)
    with pytest.raises(ScriptError, match=r"R\.dataflow is called outside of a script"):
        R.dataflow()


# ----------------------------------------------------------------------------------- refusals

HEADER = '@R.function\ndef f(x: R.Tensor((4, 4)), y: R.Tensor((4,), "int32")):\n'


def body(text: str) -> str:
    return HEADER + "".join(f"    {line}\n" for line in text.splitlines())


def block(text: str) -> str:
    inner = "".join(f"    {line}\n" for line in text.splitlines())
    return body(f"with R.dataflow():\n{inner}return x")


FUNC = (
    '    @T.prim_func\n    def g(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):\n'
    "        for i in range(4):\n            B[i] = A[i]\n"
)


def module(call: str) -> str:
    main = (
        f"    @R.function\n    def main(x: R.Tensor((4,))):\n        y = {call}\n        return y\n"
    )
    return f"@I.ir_module\nclass M:\n{FUNC}{main}"


OUT = 'R.Tensor((4,), "float32")'
REFUSED = {
    "no return": body("z = R.relu(x)"),
    "return in the middle": body("return x\nreturn x"),
    "no type": "@R.function\ndef f(x):\n    return x\n",
    "type that is none": "@R.function\ndef f(x: T.int32):\n    return x\n",
    "defaults": "@R.function\ndef f(x: R.Tensor((4,)) = 3):\n    return x\n",
    "shape that is not a tuple": "@R.function\ndef f(x: R.Tensor(4)):\n    return x\n",
    "dimension that is none": '@R.function\ndef f(x: R.Tensor(("m +",))):\n    return x\n',
    "unknown dtype": '@R.function\ndef f(x: R.Tensor((4,), "float31")):\n    return x\n',
    "unknown name": body("return z"),
    "unknown word": body("return R.rellu(x)"),
    "word of a group": body("return R.nn.rellu(x)"),
    "word without a meaning": body("return R.print(x)"),
    "group without a meaning": body("return R.vm.alloc_storage(x)"),
    "text as an argument": body('return R.add(x, "a")'),
    "number that does not fit": body("return R.add(R.astype(x, 'int8'), 200)"),
    "other arguments than a word has": body("return R.permute_dims(x, perm=[1, 0])"),
    "axis beyond the rank": body("return R.sum(x, axis=2)"),
    "attribute that is missing": body("return R.cumulative(x, axis=1)"),
    "operator of Python that is none": body("return x % x"),
    "parameter that is a shape": '@R.function\ndef f(s: R.Shape(["n"])):\n    return s\n',
    "results of unknown types": body('return R.call_pure_packed("f", x, sinfo_args=R.Object)'),
    "cast that certainly fails": body("return R.match_cast(x, R.Tensor((4, 5)))"),
    "branches of two names": body("if x:\n    a = x\nelse:\n    b = x\nreturn x"),
    "names of outputs twice": body('R.func_attr({"output_names": ["a", "a"]})\nreturn x, x'),
    "arguments that an operator refuses": body("return R.add(x, y)"),
    "attribute that is none": body("return R.relu(x, alpha=1)"),
    "type without a shape": body('return R.call_tir(cls.g, (x,), R.Tensor(dtype="float32"))'),
    "dimensions that are not as many": body("z: R.Tensor((4, 4), ndim=3) = x\nreturn z"),
    "number of dimensions that is none": body("z: R.Tensor((4, 4), ndim=(2,)) = x\nreturn z"),
    "too many dimensions": "@R.function\ndef f(x: R.Tensor(ndim=1000000000)):\n    return x\n",
    "unknown argument of a type": body('z: R.Tensor((4, 4), dype="int8") = x\nreturn z'),
    "too many arguments of a type": body("z: R.Tensor((4, 4), 'int8', 1, 2, 3) = x\nreturn z"),
    "wrong dtype": body('z: R.Tensor("int32", ndim=2) = x\nreturn z'),
    "wrong number of dimensions": body("z: R.Tensor(ndim=3) = x\nreturn z"),
    "other values than said": body("z: R.Tuple(R.Tensor, R.Tensor) = x\nreturn z"),
    "result of another type": (
        "@R.function\ndef f(x: R.Tensor((4, 4))) -> R.Tensor((4, 5)):\n    return x\n"
    ),
    "result of a type that is none": (
        "@R.function\ndef f(x: R.Tensor((4, 4))) -> int:\n    return x\n"
    ),
    "integers that are none": body(f"return R.call_tir(cls.g, (x,), {OUT}, tir_vars=R.shape(2))"),
    "integers that nobody takes": module(f"R.call_tir(cls.g, (x,), {OUT}, tir_vars=R.shape([2]))"),
    "wrong type": body('z: R.Tensor((4, 5), "float32") = R.relu(x)\nreturn z'),
    "too many names": body("a, b = R.relu(x)\nreturn a"),
    "statement that is none": body("for i in range(4):\n    pass\nreturn x"),
    "unknown attribute of the function": body('R.func_attr({"out_names": ["a"]})\nreturn x'),
    "too few names of outputs": body('R.func_attr({"output_names": []})\nreturn x'),
    "block without output": block("z = R.relu(x)"),
    "output in the middle": block("R.output(x)\nz = R.relu(x)\nR.output(z)"),
    "variable of a block": body("with R.dataflow():\n    z = R.relu(x)\n    R.output()\nreturn z"),
    "side effects in a block": block(
        f'z = R.call_dps_packed("env.f", (x,), {OUT}, pure=False)\nR.output(z)'
    ),
    "block within a block": block("with R.dataflow():\n    R.output()\nR.output()"),
    "constant that is not given": body(
        'return R.add(x, R.const(R.Tensor((4, 4), "float32"), name="w2"))'
    ),
    "constant of another shape": body('return R.const(R.Tensor((3,), "float32"), name="w")'),
    "call_tir without types": body("return R.call_tir(cls.g, (x,))"),
    "call of what is not a function": body("return cls.g(x)"),
    "packed function without a name": body(f"return R.call_dps_packed(f, (x,), {OUT})"),
    "missing PrimFunc": module(f"R.call_tir(cls.h, (x,), {OUT})"),
    "other arguments": module(f"R.call_tir(cls.g, (x, x), {OUT})"),
    "PrimFunc as an operator": module("cls.g(x)"),
    "not decorated": "def f(x: R.Tensor((4,))):\n    return x\n",
    "two of a name": body("return x") + body("return x"),
}


def test_messages(golden: Callable[..., None]) -> None:
    lines: list[str] = []
    for name, text in REFUSED.items():
        with pytest.raises(ScriptError) as caught:
            from_script(text, constants={"w": W})
        lines += [f"--- {name}", str(caught.value)]
    golden("\n".join(lines), "script_refusals_graphs")
