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
from mlc_deploy.ir import Const, For, If, Let, Store, statements
from mlc_deploy.ir.interp import run
from mlc_deploy.ops.cpu import default_schedule
from mlc_rpc import RpcError, Session
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


def images() -> Program:
    """A convolution over symbolic numbers of images and columns."""
    n, w = te.var("n"), te.var("w")
    data = te.placeholder((n, 3, 8, w), name="data")
    weight = te.placeholder((4, 3, 3, 3), name="weight")
    axes = [te.reduce_axis((0, 3), name) for name in ("c", "ky", "kx")]
    c, ky, kx = axes
    out = te.compute(
        (n, 4, 6, w - 2),
        lambda b, f, y, x: te.sum(data[b, c, y + ky, x + kx] * weight[f, c, ky, kx], axis=axes),
        name="out",
    )
    return Program(
        [data, weight, out],
        lambda n, w: [(n, 3, 8, w), (4, 3, 3, 3), (n, 4, 6, w - 2)],
        [(1, 3), (2, 8), (3, 21)],
        lambda data, weight: np.einsum(
            "ncyxij,fcij->nfyx",
            np.lib.stride_tricks.sliding_window_view(data, (3, 3), (2, 3)),
            weight,
        ).astype("float32"),
    )


PROGRAMS = [add, add_bytes, bias_and_relu, matmul, sums_of_rows, images]


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
    main, fours = [s for s in statements(mlc.lower(func).body) if isinstance(s, Let)]
    hot = next(s for s in statements(main) if isinstance(s, For))
    assert str(hot.extent) == (main if make is matmul else fours).var.name
    assert not any(isinstance(s, If) for s in statements(hot))
    lanes = {s.value.dtype for s in statements(hot) if isinstance(s, Store)}
    assert lanes == {"int8x16" if make is add_bytes else "float32x4"}
    unrolled = next(s for s in statements(fours) if isinstance(s, For))
    assert sum(isinstance(s, Store) for s in statements(unrolled)) == 4


def test_tasks_stand_for_turns_of_the_parallel_loop() -> None:
    """A number, or a dimension: the runtime computes nothing."""
    tasks = {
        make.__name__: metadata(mlc.build(make().args, target="aarch64"))["kernels"][0]["tasks"]
        for make in (add, matmul)
    }
    assert tasks == {"add": "n", "matmul": "m"}


def test_ranges_of_tasks_are_ranges_of_turns(local: Session) -> None:
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
        run_on(local, mlc.build(s, [a, b], "host"), arrays)
        np.testing.assert_array_equal(arrays[-1], x * 2)


def test_sizes_that_do_not_agree_are_refused(local: Session) -> None:
    kernel = local.load(mlc.build(add().args, target="host", name="add"))["add"]
    short, long = (local.tensor(small_integers((n,), 0)) for n in (4, 5))
    with pytest.raises(RpcError, match="n"):
        kernel(short, long, short)


def test_random_splits_of_symbolic_loops() -> None:
    """Guards fall away in the main part only where they hold."""
    assert sum(_random_splits(seed) for seed in range(40)) > 30


def _random_splits(seed: int) -> bool:
    """Whether the engine took the schedule of that seed; then it is right for all sizes."""
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
        how = "factor" if rng.random() < 0.8 else "nparts"
        s[b].split(axis, **{how: rng.choice((2, 3, 4, 8))})
    s[b].reorder(*rng.sample(s[b].leaf_iter_vars, len(s[b].leaf_iter_vars)))
    inner = s[b].leaf_iter_vars[-1]
    if isinstance(inner.extent, Const) and inner.kind == "spatial":
        s[b].vectorize(inner)

    def reference(x: Array) -> Array:
        kept = np.arange(x.shape[1]) < x.shape[1] - 2
        return (x.sum(1) if whole else np.where(kept, x, -1)).astype("int32")

    try:
        mlc.lower(s, [a, b])
    except mlc.ScheduleError:
        return False
    shapes = [(1, 1), (2, 9), (7, 5), (16, 24), (17, 11)]
    first, *more = ([small_integers(shape, seed, "int32")] for shape in shapes)
    check(s, [a, b], first, reference, more=more)
    return True


def test_strides_are_arguments(local: Session) -> None:
    """The first m of s columns; s is told by the tensor that is passed."""
    n, m, stride = te.var("n"), te.var("m"), te.var("stride")
    a = te.placeholder((n, m), name="A", strides=(stride, 1))
    b = te.compute((n, m), lambda i, j: a[i, j] * 2, name="B")
    library = mlc.build([a, b], target="host")
    shapes = [p["shape"] for p in metadata(library)["kernels"][0]["params"]]
    assert shapes == [["n", "stride"], ["n", "m"]]
    for rows, columns, pitch in [(1, 1, 1), (3, 5, 5), (4, 17, 40), (2, 3, 4)]:
        x = small_integers((rows, pitch), 0)
        arrays = [x, np.zeros((rows, columns), "float32")]
        run_on(local, library, arrays)
        np.testing.assert_array_equal(arrays[-1], x[:, :columns] * 2)
    with pytest.raises(RpcError, match="status 2"):
        run_on(local, library, [small_integers((2, 3), 0), small_integers((2, 4), 0)])


def test_dimensions_that_do_not_fit_each_other_are_refused(local: Session) -> None:
    library = mlc.build(images().args, target="host")
    data, weight = small_integers((1, 3, 8, 9), 0), small_integers((4, 3, 3, 3), 1)
    with pytest.raises(RpcError, match="status 2"):
        run_on(local, library, [data, weight, np.zeros((1, 4, 6, 8), "float32")])


def test_dimensions_that_nothing_tells() -> None:
    n = te.var("n")
    a = te.placeholder((n + 1,), name="A")
    b = te.compute((n + 1,), lambda i: a[i] * 2, name="B")
    with pytest.raises(mlc.LowerError) as caught:
        mlc.build([a, b], target="host")
    assert str(caught.value) == (
        "no argument's size tells what 'n' is\n"
        "  in:  main\n"
        "  try: an argument of which 'n' by itself is a dimension"
    )


def test_strides_of_no_dense_tensor() -> None:
    a = te.placeholder((4, 4), name="A", strides=(1, 4))
    b = te.compute((4, 4), lambda i, j: a[i, j] * 2, name="B")
    with pytest.raises(mlc.LowerError) as caught:
        mlc.build([a, b], target="host")
    assert str(caught.value) == (
        "strides (1, 4) of buffer 'A' are not those of a part of a dense tensor\n"
        "  in:  main\n"
        "  try: each stride a multiple of the next, the last one 1"
    )


@pytest.mark.parametrize("order", ["ik", "ki"])
def test_a_reduction_without_steps_is_its_init(order: str, local: Session) -> None:
    """Also where the schedule leaves the init in the loop."""
    n, m = te.var("n"), 5
    x = te.placeholder((m, n), "int32", "x")
    k = te.reduce_axis((0, n), "k")
    y = te.compute((m,), lambda i: te.max(x[i, k], axis=k), "y")
    sch = mlc.Schedule(te.create_prim_func([x, y], "most_of_rows"))
    i_loop, k_loop = sch.get_loops("y")
    if order == "ki":
        sch.reorder(k_loop, i_loop)
    kernel, library = mlc.lower(sch.func), mlc.build(sch.func, target="host")
    for size in (0, 1, 4):
        given = small_integers((m, size), size, "int32")
        right = given.max(axis=1, initial=np.iinfo(np.int32).min)
        for way in (
            lambda arrays: run(sch.func, *arrays),
            lambda arrays: run_flat(kernel, arrays),
            lambda arrays: run_on(local, library, arrays),
        ):
            arrays = [given, np.zeros(m, np.int32)]
            way(arrays)
            np.testing.assert_array_equal(arrays[-1], right)
