"""Users' functions in a graph: what they compute is read from their loops, and fused by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.driver.kernels import compile_source
from mlc_deploy.graph import BlockBuilder, Function, Var, op, optimize, tensor_type
from mlc_deploy.graph.definition import definition_of
from mlc_deploy.ir import IRModule, PrimFunc
from mlc_deploy.schedule import Schedule
from mlc_deploy.script import from_script
from mlc_targets import Target

Make = Callable[[BlockBuilder, Var], Any]
BOARDS = [("local://", "host"), ("qemu://cortex-a7", "armv7a"), ("qemu://cortex-a72", "aarch64")]
RNG = np.random.default_rng(0)
W = RNG.normal(size=(32, 24)).astype(np.float32)
B = RNG.normal(size=24).astype(np.float32)
X = RNG.normal(size=(16, 32)).astype(np.float32)


def te_relu(x: te.Tensor) -> Any:
    return te.compute(x.shape, lambda *i: te.max(x(*i), 0.0))


def te_double(x: te.Tensor) -> Any:
    return te.compute(x.shape, lambda *i: x(*i) + x(*i))


def te_bias(x: te.Tensor, b: te.Tensor) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, j] + b[j])


def te_transpose(x: te.Tensor) -> Any:
    return te.compute((x.shape[1], x.shape[0]), lambda i, j: x[j, i])


def te_reverse(x: te.Tensor) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, x.shape[1] - 1 - j])


def te_neighbours(x: te.Tensor) -> Any:
    return te.compute((x.shape[0], x.shape[1] - 1), lambda i, j: x[i, j] + x[i, j + 1])


def te_numbered(x: te.Tensor) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, j] + j.astype("float32"))


def te_sum(x: te.Tensor) -> Any:
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], k))


def te_matmul(a: te.Tensor, b: te.Tensor) -> Any:
    k = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], k))


def te_gram(a: te.Tensor, b: te.Tensor) -> Any:
    """A product that no operator says: of the columns of both."""
    k = te.reduce_axis((0, a.shape[0]), "k")
    return te.compute((a.shape[1], b.shape[1]), lambda i, j: te.sum(a[k, i] * b[k, j], k))


def te_part_of_product(a: te.Tensor, b: te.Tensor) -> Any:
    k = te.reduce_axis((0, 8), "k")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], k))


def te_corner(x: te.Tensor) -> Any:
    return te.compute((8, 4), lambda i, j: x[j, i])


def te_sum_of_corners(a: te.Tensor, b: te.Tensor) -> Any:
    return te.compute((4, 8), lambda i, j: a[i, j] + b[i, j])


def te_linear(a: te.Tensor, b: te.Tensor, bias: te.Tensor) -> Any:
    return te_bias(te_matmul(a, b), bias)


def te_softmax(x: te.Tensor) -> Any:
    k, l = (te.reduce_axis((0, x.shape[1]), n) for n in "kl")  # noqa: E741
    largest = te.compute((x.shape[0],), lambda i: te.max(x[i, k], k))
    e = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - largest[i]))
    total = te.compute((x.shape[0],), lambda i: te.sum(e[i, l], l))
    return te.compute(x.shape, lambda i, j: e[i, j] / total[i])


def scores(bb: BlockBuilder, x: Var) -> Any:
    """Of four batches of rows, each with each of its batch."""
    x = bb.emit(op.reshape(x, shape=(4, 4, 32)))
    return bb.emit(op.matmul(x, bb.emit(op.transpose(x, axes=(0, 2, 1)))))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def module(make: Make, shape: tuple[int, ...] = (16, 32)) -> IRModule:
    bb = BlockBuilder()
    x = Var("x", tensor_type(shape))
    with bb.function("main", [x]):
        bb.emit_func_output(make(bb, x), names=["y"])
    return bb.get()


def func_of(f: Callable[..., Any], *shapes: tuple[int, ...]) -> PrimFunc:
    inputs = [te.placeholder(s, name=f"p{n}") for n, s in enumerate(shapes)]
    return te.create_prim_func([*inputs, f(*inputs)], "f")


# ------------------------------------------------------------------------------------ definitions

PATTERNS = [
    (te_relu, [(4, 8)], "elementwise"),
    (te_bias, [(4, 8), (8,)], "elementwise"),
    (te_transpose, [(4, 8)], "injective"),
    (te_reverse, [(4, 8)], "injective"),
    (te_numbered, [(4, 8)], "injective"),
    (te_neighbours, [(4, 8)], "anchor"),
    (te_sum, [(4, 8)], "reduction"),
    (te_matmul, [(4, 8), (8, 3)], "anchor"),
    (te_softmax, [(4, 8)], "anchor"),
]


@pytest.mark.parametrize(("f", "shapes", "pattern"), PATTERNS)
def test_patterns_are_derived(f: Any, shapes: list[tuple[int, ...]], pattern: str) -> None:
    found = definition_of(func_of(f, *shapes), len(shapes))
    assert found is not None and found.pattern == pattern


def test_what_has_no_definition() -> None:
    plain = func_of(te_relu, (4, 8))
    sch = Schedule(plain)
    sch.vectorize(sch.get_loops(sch.get_blocks()[0])[-1])
    several = te.placeholder((4,), name="x")
    both = te.compute((4,), lambda i: (several[i] + 1.0, several[i] * 2.0))
    again = from_script(
        """
@T.prim_func
def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("Y"):
            vi = T.axis.spatial(4, i)
            Y[vi] = X[vi]
    for i in range(2):
        with T.block("Y_again"):
            vi = T.axis.spatial(2, i)
            Y[vi] = X[vi + 1]
"""
    )
    assert definition_of(sch.func, 1) is None  # the schedule counts
    assert definition_of(te.create_prim_func([several, *both], "f"), 1) is None
    assert isinstance(again, PrimFunc) and definition_of(again, 1) is None
    assert definition_of(plain, 1) is not None


# ---------------------------------------------------------------------------------------- kernels

CASES: dict[str, tuple[Make, Callable[[], np.ndarray], list[str]]] = {
    "operators' ways": (
        lambda bb, x: bb.emit_te(te_relu, bb.emit_te(te_bias, bb.emit(op.matmul(x, W)), B)),
        lambda: np.maximum(X @ W + B, 0),
        ["dense_te_bias_te_relu"],
    ),
    "functions alone": (
        lambda bb, x: bb.emit_te(te_relu, bb.emit_te(te_linear, x, W, B)),
        lambda: np.maximum(X @ W + B, 0),
        ["dense_compute_1_te_relu"],
    ),
    "transpose, matmul, softmax": (
        lambda bb, x: bb.emit_te(
            te_softmax, bb.emit_te(te_matmul, bb.emit_te(te_transpose, x), W[:16].copy())
        ),
        lambda: softmax(X.T @ W[:16]),
        ["transpose_dense", "te_softmax"],
    ),
    "transpose of the other matrix": (
        lambda bb, x: bb.emit_te(te_softmax, bb.emit_te(te_matmul, x, bb.emit_te(te_transpose, x))),
        lambda: softmax(X @ X.T),
        ["dense", "te_softmax"],
    ),
    "of batches, by operators": (
        lambda bb, x: bb.emit(op.softmax(scores(bb, x), axis=-1)),
        lambda: softmax(X.reshape(4, 4, 32) @ X.reshape(4, 4, 32).transpose(0, 2, 1)),
        ["transpose_matmul", "softmax"],
    ),
    "a product of its own": (
        lambda bb, x: bb.emit(op.relu(bb.emit_te(te_double, bb.emit_te(te_gram, x, x)))),
        lambda: np.maximum(2 * (X.T @ X), 0),
        ["te_gram_te_double_relu"],
    ),
    "before a reduction": (
        lambda bb, x: bb.emit_te(te_sum, bb.emit(op.exp(bb.emit_te(te_reverse, x)))),
        lambda: np.exp(X).sum(1),
        ["te_reverse_exp_te_sum"],
    ),
    "a part of a product": (
        lambda bb, x: bb.emit_te(te_part_of_product, x, W[:20].copy()),
        lambda: X[:, :8] @ W[:8],
        ["te_part_of_product"],
    ),
    "a part, transposed": (
        lambda bb, x: bb.emit_te(te_corner, x),
        lambda: X[:4, :8].T,
        ["te_corner"],
    ),
    "a sum of parts": (
        lambda bb, x: bb.emit_te(te_sum_of_corners, x, W),
        lambda: X[:4, :8] + W[:4, :8],
        ["te_sum_of_corners"],
    ),
    "not into what reads twice": (
        lambda bb, x: bb.emit(op.relu(bb.emit_te(te_neighbours, bb.emit(op.exp(x))))),
        lambda: np.exp(X[:, 1:]) + np.exp(X[:, :-1]),
        ["exp_op", "te_neighbours_relu"],
    ),
}


@pytest.mark.parametrize(("board", "target"), BOARDS)
@pytest.mark.parametrize("case", CASES)
def test_functions_share_kernels(case: str, board: str, target: str) -> None:
    make, wanted, kernels = CASES[case]
    with mlc.connect(board) as session:
        model = mlc.compile(module(make), target)
        done = mlc.deploy(model, session, {"x": X})
    assert [c.kernel for c in model.program.calls] == kernels
    assert done.ok
    np.testing.assert_allclose(done.outputs["y"], wanted(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", ["armv7a", "aarch64"])
def test_after_a_convolution_the_code_is_that_of_the_operator(target: str) -> None:
    """In every layout that the convolution computes in."""
    w = RNG.normal(size=(32, 16, 3, 3)).astype(np.float32)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}

    def code(after: Make) -> list[tuple[bytes, int]]:
        made = module(lambda bb, x: after(bb, bb.emit(op.conv2d(x, w, **attrs))), (1, 16, 14, 14))
        program = mlc.compile(made, target).program
        assert [k for k in program.kernels if "conv2d" not in k] == [
            "layout_transform",
            "layout_transform_1",
        ]
        sources = [s for name, s in program.kernels.items() if "conv2d" in name]
        found = [compile_source(s, Target(target)).code for s in sources]
        return [(c, len(c)) for c in found]

    ours = code(lambda bb, y: bb.emit_te(te_relu, y))
    assert len(ours) == 1
    assert ours == code(lambda bb, y: bb.emit(op.relu(y)))


def test_without_fusion_functions_stay() -> None:
    made = module(lambda bb, x: bb.emit_te(te_relu, bb.emit(op.matmul(x, W))))
    with mlc.PassContext(disabled_pass=["recognize_functions", "fuse_operators"]):
        model = mlc.compile(made, "aarch64")
    assert [c.kernel for c in model.program.calls] == ["dense", "te_relu"]


def test_fused_functions_print_and_read_back() -> None:
    model = mlc.compile(module(CASES["a product of its own"][0]), "aarch64")
    assert model.module is not None
    text = str(IRModule({**model.module.functions, "main": model.program.function}))
    assert "R.call_tir(cls.te_gram" in text and "R.pointwise(" in text
    assert str(from_script(text)) == text


def test_a_symbolic_function_stays_a_call() -> None:
    bb = BlockBuilder()
    x = Var("x", tensor_type(("n", 8)))
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit_te(te_relu, x))
    main = bb.get()["main"]
    assert isinstance(main, Function) and optimize(main) is main
