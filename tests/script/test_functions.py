"""Functions as users write them: equal to what tensor expressions make, and doing what they say."""

# mypy: disable-error-code="valid-type, no-untyped-def"

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import IRModule, PrimFunc, ScriptError, te
from mlc_deploy.ir import For, const, interp, statements, structural_equal
from mlc_deploy.ir.nodes import Block
from mlc_deploy.script import from_script
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T


def assert_same(func: PrimFunc, made: PrimFunc) -> None:
    assert structural_equal(func, made), f"{func}\n--- tensor expression\n{made}"


def blocks_of(func: PrimFunc) -> list[Block]:
    return [s for s in statements(func.body) if isinstance(s, Block) and s.name != "root"]


def test_vector_add() -> None:
    @T.prim_func
    def add(
        A: T.Buffer((128,), "float32"),  # comments may stand anywhere
        B: T.Buffer((128,), "float32"),
        C: T.Buffer((128,), "float32"),
    ):
        """So may a docstring."""
        for i in range(128):
            with T.block("C"):
                vi = T.axis.spatial(128, i)
                # even here
                C[vi] = A[vi] + B[vi]

    a, b = te.placeholder((128,), name="A"), te.placeholder((128,), name="B")
    c = te.compute((128,), lambda i: a[i] + b[i], name="C")
    assert_same(add, te.create_prim_func([a, b, c]))
    assert add.name == "add"
    x, y = np.arange(128, dtype=np.float32), np.ones(128, np.float32)
    out = np.zeros(128, np.float32)
    interp.run(add, x, y, out)
    np.testing.assert_array_equal(out, x + y)


def test_matmul_with_init_and_relu() -> None:
    @I.ir_module
    class Module:
        @T.prim_func
        def main(
            A: T.Buffer((16, 8), "float32"),
            B: T.Buffer((8, 12), "float32"),
            D: T.Buffer((16, 12), "float32"),
        ):
            T.func_attr({"global_symbol": "matmul_relu"})
            C = T.alloc_buffer((16, 12), "float32")
            for i, j, k in T.grid(16, 12, 8):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
            for i, j in T.grid(16, 12):
                with T.block("D"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = T.max(C[vi, vj], T.float32(0))

    a, b = te.placeholder((16, 8), name="A"), te.placeholder((8, 12), name="B")
    r = te.reduce_axis((0, 8), "k")
    c = te.compute((16, 12), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    d = te.compute((16, 12), lambda i, j: te.maximum(c[i, j], 0.0), name="D")
    assert isinstance(Module, IRModule) and list(Module) == ["main"]
    assert Module["main"].name == "matmul_relu"
    assert_same(Module["main"], te.create_prim_func([a, b, d]))
    loops = [s.name for s in statements(Module["main"].body) if isinstance(s, For)]
    assert loops == ["i", "j", "k", "i_1", "j_1"]  # a schedule's handles are unique


def test_convolution_with_captured_sizes() -> None:
    channels, out_channels, size, kernel, stride = 3, 4, 8, 3, 2
    out_size = (size - kernel) // stride + 1
    shape = (1, channels, size, size)

    @T.prim_func
    def conv(
        data: T.Buffer(shape, "float32"),
        weight: T.Buffer((out_channels, channels, kernel, kernel), "float32"),
        out: T.Buffer((1, out_channels, out_size, out_size), "float32"),
    ):
        for n, o, y, x, c, ky, kx in T.grid(
            1, out_channels, out_size, out_size, shape[1], kernel, kernel
        ):
            with T.block("out"):
                vn, vo, vy, vx, vc, vky, vkx = T.axis.remap("SSSSRRR", [n, o, y, x, c, ky, kx])
                T.reads(
                    data[vn, vc, vy * stride + vky, vx * stride + vkx], weight[vo, vc, vky, vkx]
                )
                T.writes(out[vn, vo, vy, vx])
                with T.init():
                    out[vn, vo, vy, vx] = 0.0
                out[vn, vo, vy, vx] += (
                    data[vn, vc, vy * stride + vky, vx * stride + vkx] * weight[vo, vc, vky, vkx]
                )

    a = te.placeholder(shape, name="data")
    w = te.placeholder((out_channels, channels, kernel, kernel), name="weight")
    axes = [te.reduce_axis((0, n), name) for n, name in ((channels, "c"), (3, "ky"), (3, "kx"))]

    def element(n: Any, o: Any, y: Any, x: Any) -> Any:
        c, ky, kx = axes
        return te.sum(a[n, c, y * 2 + ky, x * 2 + kx] * w[o, c, ky, kx], axis=axes)

    b = te.compute((1, out_channels, out_size, out_size), element, name="out")
    assert_same(conv, te.create_prim_func([a, w, b]))


def test_symbolic_shapes() -> None:
    @T.prim_func
    def scale(a: T.handle, b: T.handle):
        n, m = T.int32(), T.var("int32")
        A = T.match_buffer(a, (n, m), "float32")
        B = T.match_buffer(b, (n, m), "float32")
        for i, j in T.grid(n, m):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0

    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A")
    made = te.create_prim_func([a, te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="B")])
    assert_same(scale, made)

    @T.prim_func
    def with_scalars(n: T.int32, a: T.handle):
        A = T.match_buffer(a, (n * 2,), "int32")
        for i in T.serial(n * 2):
            A[i] = i * n

    out = np.zeros(6, np.int32)
    interp.run(with_scalars, 3, out)
    np.testing.assert_array_equal(out, np.arange(6) * 3)


def test_statements_and_expressions_do_what_they_say() -> None:
    table = {"low": (2, 7)}
    one = const(1)

    @T.prim_func
    def everything(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "float32")):
        T.func_attr({"tir.noalias": True})
        scratch = T.alloc_buffer((8,), "int32", scope="local", align=16)
        for i in T.parallel(8, annotations={"pragma": [1, 2.5]}):
            scratch[i] = 0
        for i in T.serial(*table["low"]):
            square = i * i
            scratch[i] = square
            scratch[i] += one
        for i in T.unroll(8):
            with T.block("A"):
                vi = T.axis.S((0, 8), i)
                T.where(0 <= i < 7)
                T.block_attr({"note": {"deep": None}})
                A[vi] = scratch[vi] if vi != 3 else -T.truncdiv(scratch[vi], 4)
        for i in T.vectorized(8):
            if (i >= 4 and not i == 5) or i == 0:
                B[i] = T.Select(A[i] > 16, T.exp(T.cast(A[i], "float32")), T.float32("inf"))
            elif i == 1:
                B[i] = T.sqrt(A[i].astype("float32") + 0.5)
            else:
                B[i] = T.min(T.float32(i), 2.5)
        if len(table) > 1:
            A[0] = 99
        with T.LetStmt(A[7] + 1) as last:
            A[7] = last
        T.evaluate(0)

    a, b = np.full(8, 5, np.int32), np.zeros(8, np.float32)
    interp.run(everything, a, b)
    np.testing.assert_array_equal(a, [0, 0, 5, -2, 17, 26, 37, 6])
    expected = [np.inf, np.sqrt(0.5), 2, 2.5, np.exp(17.0), 2.5, np.exp(37.0), np.inf]
    np.testing.assert_allclose(b, expected, rtol=1e-6)
    assert everything.attrs == {"tir.noalias": True}
    again = from_script(everything.script())
    assert isinstance(again, PrimFunc) and structural_equal(again, everything)


@pytest.mark.parametrize(
    ("body", "reads", "writes"),
    [
        ("B[vi, 0] = A[vi, 1] + A[vi, 1]", "A[v_i, 1]", "B[v_i, 0]"),
        ("for j in range(8):\n    B[vi, j] = A[vi, j // 2]", "A[v_i, 0:4]", "B[v_i, 0:8]"),
        ("for j in range(n):\n    B[vi, j] = A[j, vi]", "A[0:16, v_i]", "B[v_i, 0:8]"),
        ("x = A[vi, 3]\nB[vi, 0] = x", "A[v_i, 3]", "B[v_i, 0]"),
        ("S = T.alloc_buffer((1,))\nS[0] = A[vi, 0]\nB[vi, 0] = S[0]", "A[v_i, 0]", "B[v_i, 0]"),
        ("with T.init():\n    B[vi, 0] = 0\nB[vi, 0] += A[0, vi]", "A[0, v_i]", "B[v_i, 0]"),
        (
            "for j in range(2):\n    with T.block('in'):\n        vj = T.axis.spatial(4, j + 1)\n"
            "        B[vi, vj] = A[vi, vj + 1]",
            "A[v_i, 2:4]",
            "B[v_i, 1:3]",
        ),
    ],
)
def test_reads_and_writes_are_found(body: str, reads: str, writes: str) -> None:
    lines = "".join(f"            {line}\n" for line in body.replace("vi", "v_i").splitlines())
    func = from_script(
        "@T.prim_func\ndef f(A: T.Buffer((16, 16)), B: T.Buffer((16, 8)), n: T.int32):\n"
        '    for i in range(16):\n        with T.block("B"):\n'
        f"            v_i = T.axis.spatial(16, i)\n{lines}"
    )
    assert isinstance(func, PrimFunc)
    block = blocks_of(func)[0]
    assert [str(r) for r in block.reads] == [reads]
    assert [str(r) for r in block.writes] == [writes]


def test_text_with_imports_and_constants() -> None:
    text = (
        "from mlc_deploy.script import ir as I2, tir as T2\n"
        "N = 4\n"
        "@I2.ir_module\nclass Module:\n    M = N * 2\n"
        "    @T2.prim_func\n    def main(A: T2.Buffer((N, M), 'int8')):\n        A[0, 0] = N\n"
    )
    module = from_script(text)
    assert isinstance(module, IRModule)
    assert module["main"].buffers[0].shape == (4, 8)


def test_compiles_like_any_other_function() -> None:
    @T.prim_func
    def twice(A: T.Buffer((37,), "float32"), B: T.Buffer((37,), "float32")):
        for i in range(37):
            with T.block("B"):
                vi = T.axis.spatial(37, i)
                B[vi] = A[vi] * 3.0

    lib = mlc.build(twice, target="aarch64", name="twice")
    assert "fmul" in lib.assembly


@pytest.mark.parametrize(
    "call",
    [
        lambda: T.grid(4, 4),
        lambda: T.block("C"),
        lambda: T.axis.remap("S", [1]),
        lambda: T.match_buffer(T.handle, (4,)),
        lambda: T.Buffer((4,))[0],
    ],
)
def test_words_outside_of_a_script(call: Callable[[], object]) -> None:
    with pytest.raises(ScriptError, match="called outside of a script\n  try: use it in a func"):
        call()


def test_types_that_python_evaluates(tmp_path: Path) -> None:
    """Without `from __future__ import annotations`, Python itself evaluates the types."""
    path = tmp_path / "kernels.py"
    path.write_text(
        "from mlc_deploy.script import tir as T\n"
        "def make(n):\n"
        "    @T.prim_func\n"
        '    def fill(A: T.Buffer((n, 4), "int8"), x: T.int8) -> None:\n'
        "        A[0, 0] = x\n"
        "    return fill\n"
    )
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.make(5).buffers[0].shape == (5, 4)
