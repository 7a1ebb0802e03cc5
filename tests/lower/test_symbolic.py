"""Symbolic shapes: one compiled function serves all sizes, and its hot loops have no guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen import metadata
from mlc_deploy.ir import Const, For, If, Let, Stmt, Store, statements
from mlc_deploy.ops.cpu import default_schedule
from mlc_rpc import RpcError
from tests.sessions import TARGETS, board_named
from tests.te.stage_programs import Array, check, run_flat, run_on, small_integers

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A computation over symbolic dimensions, its shapes for given sizes, and what it is."""

    args: Sequence[te.Tensor]
    shapes: Callable[..., list[Shape]]
    sizes: Sequence[Shape]
    reference: Callable[..., Array]


def add(dtype: str = "float32") -> Program:
    n = te.var("n")
    a, b = (te.placeholder((n,), dtype, name) for name in "AB")
    c = te.compute((n,), lambda i: a[i] + b[i], name="C")
    sizes = [(n,) for n in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33, 4095, 4096, 4097, 9001)]
    return Program([a, b, c], lambda n: [(n,)] * 3, sizes, np.add)


def add_bytes() -> Program:
    return add("int8")


def bias_and_relu() -> Program:
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m,), name="B")
    c = te.compute((n, m), lambda i, j: te.maximum(a[i, j] + b[j], 0), name="C")
    return Program(
        [a, b, c],
        lambda n, m: [(n, m), (m,), (n, m)],
        [(n, m) for n in (1, 3, 8) for m in (1, 3, 4, 5, 16, 33)],
        lambda a, b: np.maximum(a + b, 0),
    )


def matmul() -> Program:
    m, n, k = te.var("m"), te.var("n"), te.var("k")
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return Program(
        [a, b, c],
        lambda m, n, k: [(m, k), (k, n), (m, n)],
        [(m, n, k) for m in (1, 5) for n in (1, 3, 4, 5, 17, 32) for k in (1, 2, 9)],
        np.matmul,
    )


def sums_of_rows() -> Program:
    n, k = te.var("n"), te.var("k")
    a = te.placeholder((n, k), name="A")
    r = te.reduce_axis((0, k), "r")
    b = te.compute((n,), lambda i: te.sum(a[i, r], axis=r), name="B")
    return Program(
        [a, b], lambda n, k: [(n, k), (n,)], [(1, 1), (3, 17), (8, 4)], lambda a: a.sum(1)
    )


def batch_of_images() -> Program:
    """A convolution of which the batch and the width are symbolic."""
    n, w = te.var("n"), te.var("w")
    data = te.placeholder((n, 3, 8, w + 2), name="data")
    width = te.placeholder((w,), name="width")
    weight = te.placeholder((4, 3, 3, 3), name="weight")
    axes = [te.reduce_axis((0, 3), name) for name in ("c", "ky", "kx")]
    c, ky, kx = axes
    out = te.compute(
        (n, 4, 6, w),
        lambda b, f, y, x: te.sum(data[b, c, y + ky, x + kx] * weight[f, c, ky, kx], axis=axes),
        name="out",
    )
    del width
    return Program(
        [data, weight, out],
        lambda n, w: [(n, 3, 8, w + 2), (4, 3, 3, 3), (n, 4, 6, w)],
        [(1, 1), (2, 6), (3, 17)],
        lambda data, weight: np.einsum(
            "ncyxij,fcij->nfyx",
            np.lib.stride_tricks.sliding_window_view(data, (3, 3), (2, 3)),
            weight,
        ).astype("float32"),
    )


PROGRAMS = [add, add_bytes, bias_and_relu, matmul, sums_of_rows]


def data_of(program: Program, size: Shape) -> tuple[list[Array], Array]:
    """(inputs and an output that holds something else, what it should hold)."""
    inputs = [
        small_integers(shape, seed, t.dtype)
        for seed, (t, shape) in enumerate(zip(program.args, program.shapes(*size), strict=True))
    ][:-1]
    wanted = program.reference(*inputs)
    return [*inputs, np.full_like(wanted, 77)], wanted


@pytest.mark.parametrize("board", ["local", "armv7", "armv7_scalar", "aarch64"])
@pytest.mark.parametrize("make", PROGRAMS)
def test_one_function_serves_all_sizes(
    make: Callable[[], Program], board: str, request: pytest.FixtureRequest
) -> None:
    program = make()
    session = board_named(request, board)
    library = mlc.build(program.args, target=TARGETS[board], name="program")
    kernel = session.load(library)["program"]
    for size in program.sizes:
        arrays, wanted = data_of(program, size)
        tensors = [session.tensor(a) for a in arrays]
        kernel(*tensors)
        np.testing.assert_array_equal(tensors[-1].numpy(), wanted, err_msg=f"sizes {size}")


@pytest.mark.parametrize("make", PROGRAMS)
def test_flat_loops(make: Callable[[], Program]) -> None:
    """In the interpreter, which checks every index."""
    program = make()
    for short in ("armv7a", "x86_64"):
        func = default_schedule(te.create_prim_func(program.args), mlc.Target(short))
        for size in program.sizes[:8]:
            arrays, wanted = data_of(program, size)
            run_flat(mlc.lower(func), arrays)
            np.testing.assert_array_equal(arrays[-1], wanted, err_msg=f"{size} {func}")


@pytest.mark.parametrize("make", [add, add_bytes, bias_and_relu, matmul])
def test_hot_loops_are_vectors_without_guards(make: Callable[[], Program]) -> None:
    func = default_schedule(te.create_prim_func(make().args), mlc.Target("aarch64"))
    mains = [s for s in statements(mlc.lower(func).body) if isinstance(s, Let)]
    assert len(mains) == 1
    hot = next(s for s in statements(mains[0]) if isinstance(s, For))
    assert str(hot.extent) == mains[0].var.name
    assert not any(isinstance(s, If) for s in statements(hot))
    lanes = {s.value.dtype for s in statements(hot) if isinstance(s, Store)}
    assert lanes == {"int8x16" if make is add_bytes else "float32x4"}


def test_tasks_stand_for_turns_of_the_parallel_loop() -> None:
    """A number, or a dimension: the runtime computes nothing."""
    tasks = {
        make.__name__: metadata(mlc.build(make().args, target="aarch64"))["kernels"][0]["tasks"]
        for make in (add, matmul)
    }
    assert tasks == {"add": "n", "matmul": "m"}


def test_ranges_of_tasks_are_ranges_of_turns(local: object, request: pytest.FixtureRequest) -> None:
    """A loop of (3 n + 1) // 2 turns, all of which run whatever their number."""
    n = te.var("n")
    a = te.placeholder((n, 3), name="A")
    b = te.compute((n, 3), lambda i, j: a[i, j] * 2, name="B")
    s = te.create_schedule(b.op)
    outer, _ = s[b].split(s[b].fuse(*b.op.axis), factor=2)
    s[b].parallel(outer)
    kernel = mlc.lower(s, [a, b])
    assert kernel.parallel is not None
    assert not isinstance(kernel.parallel.extent, Const)
    for size in (1, 2, 5):
        x = small_integers((size, 3), 0)
        arrays = [x, np.zeros_like(x)]
        run_on(board_named(request, "local"), mlc.build(s, [a, b], "host"), arrays)
        np.testing.assert_array_equal(arrays[-1], x * 2)


def test_sizes_that_do_not_agree_are_refused(request: pytest.FixtureRequest) -> None:
    board = board_named(request, "local")
    kernel = board.load(mlc.build(add().args, target="host", name="add"))["add"]
    short, long = (board.tensor(small_integers((n,), 0)) for n in (4, 5))
    with pytest.raises(RpcError, match="n"):
        kernel(short, long, short)


@pytest.mark.parametrize("seed", range(40))
def test_random_splits_of_symbolic_loops(seed: int) -> None:
    """Guards fall away in the main part only where they hold."""
    rng = Random(seed)
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), "int32", "A")
    k = te.reduce_axis((0, m), "k")
    whole = rng.random() < 0.4
    b = (
        te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="B")
        if whole
        else te.compute((n, m), lambda i, j: te.if_then_else(j < m - 2, a[i, j], -1), name="B")
    )
    s = te.create_schedule(b.op)
    for _ in range(rng.randint(1, 3)):
        axis = rng.choice(s[b].leaf_iter_vars)
        if rng.random() < 0.8:
            s[b].split(axis, factor=rng.choice((2, 3, 4, 8)))
        else:
            s[b].split(axis, nparts=rng.choice((2, 3)))
    s[b].reorder(*rng.sample(s[b].leaf_iter_vars, len(s[b].leaf_iter_vars)))
    inner = s[b].leaf_iter_vars[-1]
    if isinstance(inner.extent, Const) and inner.kind == "spatial":
        s[b].vectorize(inner)
    for shape in [(1, 1), (2, 9), (7, 5), (16, 24), (17, 11)]:
        x = small_integers(shape, seed, "int32")
        columns = np.arange(shape[1])
        wanted = x.sum(1, dtype="int32") if whole else np.where(columns < shape[1] - 2, x, -1)
        check(s, [a, b], [x], lambda _, wanted=wanted: wanted.astype("int32"))  # type: ignore[misc]


def _guards(s: Stmt) -> int:
    return sum(isinstance(n, If) for n in statements(s))
