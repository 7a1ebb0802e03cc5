"""tensorize: what matches becomes the intrinsic, what does not is refused with the difference."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import Schedule, ScheduleError, te
from mlc_deploy.ir import PrimFunc, Stmt, Store, const, not_, numpy_dtype, select
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import lower
from mlc_deploy.schedule import TensorIntrin, register_intrin, registered_intrins, tensor_intrin
from mlc_deploy.script import from_script
from tests.schedule.portable_intrins import INTRINS, flip, flipped, tile, total

Golden = Callable[..., None]


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, intrin in INTRINS.items():
        monkeypatch.setitem(tensor_intrin._REGISTRY, name, intrin)


def matmul(
    n: int = 8, m: int = 8, depth: int = 4, dtype: str = "float32", transposed: bool = False
) -> PrimFunc:
    a = te.placeholder((n, depth), dtype, "A")
    b = te.placeholder((m, depth) if transposed else (depth, m), dtype, "B")
    k = te.reduce_axis((0, depth), "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[i, k] * (b[j, k] if transposed else b[k, j]), k)

    return te.create_prim_func([a, b, te.compute((n, m), element, name="C")])


def tiled(func: PrimFunc, i: int = 4, j: int = 4, k: int = 2, decompose: bool = True) -> Schedule:
    """A schedule with the loops i_1, j_1, k_1 of a tile innermost."""
    sch = Schedule(func)
    loops = [sch.split(o, [None, n]) for o, n in zip(sch.get_loops("C"), (i, j, k), strict=True)]
    sch.reorder(*(outer for outer, _ in loops), *(inner for _, inner in loops))
    if decompose:
        sch.decompose_reduction("C", loops[2][0])
    return sch


def check(sch: Schedule, program: PrimFunc) -> None:
    """Scheduled program and flat loops compute what the program does."""
    rng = np.random.default_rng(0)
    given = [
        rng.integers(-4, 5, [int(n) for n in b.shape]).astype(numpy_dtype(b.dtype))  # type: ignore[arg-type]
        for b in program.buffers
    ]
    expected = [a.copy() for a in given]
    run(program, *expected)
    for func in (sch.func, lower(sch.func).body):
        actual = [a.copy() for a in given]
        run(func, *actual)
        for x, y in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(x, y, str(func))


def test_a_tile(golden: Golden) -> None:
    sch = tiled(matmul())
    assert sch.tensorize("i_1", "tile") == "C_o"
    check(sch, matmul())
    golden(str(sch.func), "tensorize_tile")


def test_a_tile_with_its_init(golden: Golden) -> None:
    program = matmul(depth=2)
    sch = tiled(program, decompose=False)
    sch.tensorize(sch.blockize("i_1"), "whole_tile")
    check(sch, program)
    sch.parallel(sch.fuse("i_0", "j_0"))  # the block is complete: no reduction is left to carry
    golden(str(sch.func), "tensorize_tile_with_init")


def test_integers_match_in_any_order() -> None:
    text = """
@T.prim_func
def main(X: T.Buffer((3, 12), "int16"), Y: T.Buffer((12,), "int32")):
    for i in range(12):
        with T.block("Y"):
            v_i = T.axis.spatial(12, i)
            Y[v_i] = 1 + T.Cast("int32", X[2, v_i]) * T.Cast("int32", X[2, v_i])
"""
    program = from_script(text)
    assert isinstance(program, PrimFunc)
    sch = Schedule(program)
    sch.tensorize(sch.split("i", [None, 4])[1], "squares")
    check(sch, program)


def test_lanes_in_two_dimensions() -> None:
    """A vector of indices that are no Ramp, of a scratch buffer that is compacted before."""
    x = te.placeholder((8, 4, 4), name="X")
    copy = te.compute((8, 4, 4), lambda t, i, j: x[t, i, j] + 1, name="S")
    y = te.compute((8, 4, 4), lambda t, i, j: copy[t, j, i], name="C")
    program = te.create_prim_func([x, y])
    sch = Schedule(program)
    t, i, _ = sch.get_loops("C")
    sch.compute_at("S", t)
    sch.set_scope("S", 0, "local")
    sch.tensorize(i, "flipped")
    check(sch, program)
    (scratch,) = lower(sch.func).scratch
    assert scratch.shape == (16,)


def chosen(condition: Callable[[Any, Any], Any] | None = None, value: Any = te.sqrt) -> PrimFunc:
    x, y = te.placeholder((12,), name="X"), te.placeholder((12,), name="Y")
    test = condition or (lambda a, b: not_(a < b))

    def element(i: Any) -> Any:
        return select(test(x[i], y[i]), value(x[i]) - y[i], 0)

    return te.create_prim_func([x, y, te.compute((12,), element, name="C")])


def test_a_choice() -> None:
    """Conditions, calls and choices match part by part; roots of negatives are not taken."""
    program = chosen()
    sch = Schedule(program)
    sch.tensorize(sch.split("i", [None, 4])[1], "choice")
    x, y = np.arange(12, dtype=np.float32) ** 2, np.linspace(0, 99, 12, dtype=np.float32)
    results = []
    for func in (program, sch.func, lower(sch.func).body):
        results.append(np.empty(12, np.float32))
        run(func, x, y, results[-1])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_block_that_has_no_spatial_iteration() -> None:
    program = total()
    sch = Schedule(program)
    sch.tensorize("k", "total")
    check(sch, program)
    assert [i.kind for i in sch.block("C_o").iters] == ["spatial"]


def test_compiled_for_this_machine() -> None:
    program = matmul(16, 12, 6, "int32")
    sch = tiled(program)
    sch.tensorize("i_1", "tile_of_int")
    sch.parallel("i_0")
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-99, 99, s).astype(np.int32) for s in ((16, 6), (6, 12)))
    with mlc.connect("local://") as board:
        c = board.empty((16, 12), "int32")
        board.load(mlc.build(sch, target="host", name="main"))["main"](
            board.tensor(a), board.tensor(b), c
        )
        np.testing.assert_array_equal(c.numpy(), a @ b)


@pytest.mark.parametrize("seed", range(40))
def test_random_tiles_of_random_products(seed: int) -> None:
    """Whatever is around the tile, the result is the unscheduled program's."""
    rng = Random(seed)
    n, m, depth = 4 * rng.randint(1, 3), 4 * rng.randint(1, 3), 2 * rng.randint(1, 4)
    program = matmul(n, m, depth, rng.choice(("float32", "int32")))
    intrin = "tile" if program.buffers[0].dtype == "float32" else "tile_of_int"
    sch = Schedule(program)
    if rng.random() < 0.5:  # packed operands
        for operand in rng.sample((0, 1), rng.randint(1, 2)):
            packed = sch.cache_read("C", operand, rng.choice(("global", "local")))
            maps = ("lambda i, k: [i // 4, k, i % 4]", "lambda k, j: [j // 4, k, j % 4]")
            if operand == 1:
                sch.transform_layout(packed, ("write", 0), maps[1])
    store = sch.cache_write("C", 0, "local") if rng.random() < 0.5 else None
    loops = [
        sch.split(o, [None, size]) for o, size in zip(sch.get_loops("C"), (4, 4, 2), strict=True)
    ]
    outer = [o for o, _ in loops]
    rng.shuffle(outer)
    sch.reorder(*outer, *(inner for _, inner in loops))
    reduced = loops[2][0]
    before = rng.random() < 0.5
    block = None if before else sch.blockize(loops[0][1])
    if store and rng.random() < 0.7 and outer.index(reduced) > 0:
        spatial = outer[outer.index(reduced) - 1]
        if before:
            sch.reverse_compute_at(store, spatial)
    sch.decompose_reduction(block or "C", outer[rng.randint(0, outer.index(reduced))])
    sch.tensorize(block or loops[0][1], intrin)
    for loop in outer:
        if rng.random() < 0.3:
            sch.unroll(loop)
        elif loop is outer[0] and loop != reduced and rng.random() < 0.5:
            sch.parallel(loop)
    check(sch, program)


def test_a_trace_replays_it() -> None:
    program = matmul()
    sch = tiled(program)
    sch.tensorize(sch.blockize("i_1"), "tile")
    again = Schedule(program)
    sch.trace.apply(again)
    assert str(again.func) == str(sch.func)
    assert "sch.tensorize(at=b" in str(sch.trace)


# ---------------------------------------------------------------------------------------- refusals


def elementwise(value: Callable[[Any], Any], dtype: str = "int16", size: int = 12) -> Schedule:
    """Y[i] = value(X[.]), i cut by four."""
    x = te.placeholder((2 * size,), dtype, "X")
    y = te.compute((size,), lambda i: value(lambda n: x[i * 1 + n]), name="Y")
    sch = Schedule(te.create_prim_func([x, y]))
    sch.split("i", [None, 4])
    return sch


def wide(e: Any) -> Any:
    return e.astype("int32")


def in_place() -> Schedule:
    text = """
@T.prim_func
def main(X: T.Buffer((8, 4, 4), "float32")):
    for t, i, j in T.grid(4, 4, 4):
        with T.block("C"):
            v_t, v_i, v_j = T.axis.remap("SSS", [t, i, j])
            X[v_t, v_i, v_j] = X[v_t + 4, v_j, v_i]
"""
    program = from_script(text)
    assert isinstance(program, PrimFunc)
    return Schedule(program)


def transposed(rows: int) -> Schedule:
    x = te.placeholder((8, 8), name="X")
    y = te.compute((8, 8), lambda i, j: x[j, i], name="C")
    sch = Schedule(te.create_prim_func([x, y]))
    (i, i1), (j, j1) = (sch.split(o, [None, rows]) for o in sch.get_loops("C"))
    sch.reorder(i, j, i1, j1)
    return sch


def marked() -> Schedule:
    sch = tiled(matmul())
    sch.tensorize("i_1", "tile")
    return sch


def in_vector_loop() -> Schedule:
    sch = Schedule(te.create_prim_func([
        x := te.placeholder((3, 4, 4), name="X"),
        te.compute((3, 4, 4), lambda t, i, j: x[t, j, i], name="C"),
    ]))  # fmt: skip
    sch.vectorize("t")
    return sch


def cut(func: PrimFunc) -> Schedule:
    sch = Schedule(func)
    sch.split("i", [None, 4])
    return sch


def flat() -> Schedule:
    x = te.placeholder((16,), name="X")
    y = te.compute((4, 4), lambda i, j: x[j * 4 + i], name="C")
    return Schedule(te.create_prim_func([x, y]))


def guarded() -> Schedule:
    sch = tiled(matmul())
    sch.blockize("i_1")
    sch.split("i_1", [None, 3])
    return sch


MISTAKES: list[tuple[Callable[[], Schedule], str, tuple[Any, ...]]] = [
    (lambda: tiled(matmul()), "tensorize", ("i_1", "aarch64.sdot_lane")),
    (lambda: tiled(matmul()), "tensorize", ("i_9", "tile")),
    (lambda: tiled(matmul(), i=8), "tensorize", ("i_1", "tile")),
    (lambda: tiled(matmul()), "tensorize", ("j_1", "tile")),
    (lambda: tiled(matmul(dtype="int32")), "tensorize", ("i_1", "tile")),
    (lambda: tiled(matmul(transposed=True)), "tensorize", ("i_1", "tile")),
    (lambda: tiled(matmul(), decompose=False), "tensorize", ("i_1", "tile")),
    (lambda: tiled(matmul()), "tensorize", ("i_1", "whole_tile")),
    (lambda: tiled(matmul(), decompose=False), "tensorize", ("i_1", "whole_tile")),
    (lambda: elementwise(lambda x: wide(x(0)) * wide(x(0)) + 2), "tensorize", ("i_1", "squares")),
    (lambda: elementwise(lambda x: wide(x(0)) * wide(x(3)) + 1), "tensorize", ("i_1", "squares")),
    (lambda: elementwise(lambda x: wide(x(0)) - wide(x(0)) + 1), "tensorize", ("i_1", "squares")),
    (lambda: elementwise(lambda x: wide(x(0) * x(0)) + 1), "tensorize", ("i_1", "squares")),
    (
        lambda: elementwise(lambda x: wide(x(0)) * wide(x(0)) + 1, "int8"),
        "tensorize",
        ("i_1", "squares"),
    ),
    (lambda: transposed(4), "tensorize", ("i_1", "flipped")),
    (in_place, "tensorize", ("i", "flipped")),
    (lambda: elementwise(lambda x: x(0), "float32"), "tensorize", ("i_1", "flipped")),
    (in_vector_loop, "tensorize", ("i", "flipped")),
    (marked, "tensorize", ("C_o", "tile")),
    (marked, "vectorize", ("j_0",)),
    (guarded, "tensorize", ("C_o", "tile")),
    (lambda: Schedule(matmul(6, 6)), "tensorize", ("k", "tile")),
    (lambda: elementwise(lambda x: wide(x(0)) + 1), "tensorize", ("i_1", "squares")),
    (lambda: cut(chosen(lambda a, b: not_(a <= b))), "tensorize", ("i_1", "choice")),
    (lambda: cut(chosen(lambda a, b: a < b)), "tensorize", ("i_1", "choice")),
    (lambda: cut(chosen(value=te.floor)), "tensorize", ("i_1", "choice")),
    (lambda: cut(chosen(value=lambda a: a)), "tensorize", ("i_1", "choice")),
    (flat, "tensorize", ("i", "flipped")),
]


def test_refusals(golden: Golden) -> None:
    texts = []
    for make, primitive, args in MISTAKES:
        sch = make()
        before = sch.func
        with pytest.raises(ScheduleError) as error:
            getattr(sch, primitive)(*args)
        assert sch.func is before
        texts.append(f"{primitive}{args}\n{error.value}")
    golden("\n\n".join(texts), "refusals_tensorize")


def looping(a: Any, c: Any) -> Stmt:
    return te.create_prim_func([x := te.placeholder((4,)), te.compute((4,), lambda i: x[i])]).body


def outside(a: Any, c: Any) -> Stmt:
    return Store(c, (const(4), const(0)), a[0, 0])


def test_intrinsics_that_are_none(golden: Golden) -> None:
    x = te.placeholder((4,), name="X")
    two = te.compute((4,), lambda i: x[i] + 1, name="P")
    stages = te.create_prim_func([x, te.compute((4,), lambda i: two[i] * 2, name="Q")])
    stray, c_at = flipped().buffers[0], (const(0),) * 2
    texts = []
    for intrin in (
        TensorIntrin("two blocks", stages, flip, {}),
        TensorIntrin("loops", flipped(), looping, {}),
        TensorIntrin("outside", flipped(), outside, {}),
        TensorIntrin("other type", flipped(), lambda a, c: Store(c, (const(0),) * 2, const(1)), {}),
        TensorIntrin("nowhere", flipped(), lambda a, c: Store(stray, (const(0),) * 2, a[0, 0]), {}),
        TensorIntrin("from nowhere", flipped(), lambda a, c: Store(c, c_at, stray[0, 0]), {}),
        INTRINS["tile"],
    ):
        with pytest.raises(ScheduleError) as error:
            register_intrin(intrin)
        texts.append(str(error.value))
    golden("\n\n".join(texts), "refusals_register_intrin")
    assert "two blocks" not in [i.name for i in registered_intrins()]


def test_an_implementation_may_be_a_function_of_the_same_parameters() -> None:
    implementation = from_script(
        """
@T.prim_func
def body(X: T.Buffer((4, 4), "float32"), Y: T.Buffer((4, 4), "float32")):
    for i in T.serial(1):
        Y[0, 0] = X[0, 0]
"""
    )
    assert isinstance(implementation, PrimFunc)
    with pytest.raises(ScheduleError, match="more than stores"):
        _ = TensorIntrin("f", flipped(), implementation, {}).statements
    straight = from_script(
        """
@T.prim_func
def body(X: T.Buffer((4, 4), "float32"), Y: T.Buffer((4, 4), "float32")):
    Y[0, 0] = X[0, 0]
"""
    )
    assert isinstance(straight, PrimFunc)
    intrin = TensorIntrin("g", flipped(), straight, {})
    assert str(intrin.statements) == "C[0, 0] = A[0, 0]"


def test_tile_is_described_as_the_program_says(golden: Golden) -> None:
    golden(str(tile()), "tensor_intrin_description")
