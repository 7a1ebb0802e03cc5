"""What TVM's texts ask of stages beyond loops: arguments that are computed at a loop, aligned and
doubled buffers, prefetches, pragmas, intrinsics that are declared."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.codegen.signature import scratch_layout
from mlc_deploy.ir import Buffer, Dim, Expr, Stmt
from mlc_deploy.schedule import Schedule
from mlc_deploy.schedule.stages import stage_program
from mlc_rpc import Session
from tests.sessions import TARGETS, board_named
from tests.te.stage_programs import Array, check, run_flat, run_on, small_integers

Golden = Callable[..., None]


def chain(*shape: Dim) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """C = 2 B = 2 (A + 1)."""
    a = te.placeholder(shape, name="A")
    b = te.compute(shape, lambda *i: a[i] + 1, name="B")
    return a, b, te.compute(shape, lambda *i: b[i] * 2, name="C")


# --------------------------------------------------------------------------------- two scalars


def test_the_larger_and_the_smaller_of_two_scalars(local: Session) -> None:
    a = te.placeholder((4, 9), name="A")
    b = te.compute((4, 9), lambda i, j: te.min(te.max(a[i, j], 0), a[i, j] * 0 + 3), name="B")
    s = te.create_schedule(b.op)
    check(s, [a, b], [small_integers((4, 9), 0)], lambda x: np.clip(x, 0, 3), local)


def test_what_is_no_axis_is_refused_by_sums() -> None:
    a = te.placeholder((4,), name="A")
    with pytest.raises(TypeError) as caught:
        te.compute((4,), lambda i: te.sum(a[i], 0), name="B")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "te.sum over 0, which is not an axis\n  try: axis=te.reduce_axis((0, n)), or a + b for two "
        "scalars"
    )


# --------------------------------------------------------------- arguments computed at a loop


def both(s: te.StageSchedule, args: Sequence[te.Tensor], x: Array, *wanted: Array) -> None:
    """Every output among the arguments is right, in the interpreter's flat loops."""
    arrays = [x, *(np.full_like(w, 77) for w in wanted)]
    run_flat(mlc.lower(s, args), arrays)
    for found, right in zip(arrays[1:], wanted, strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("size", [1, 31, 32, 100])
def test_an_argument_at_a_loop(size: int, local: Session) -> None:
    a, b, c = chain(te.var("m"))
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.axis[0], factor=32)
    s[b].compute_at(s[c], outer)
    x = small_integers((size,), 0)
    both(s, [a, b, c], x, x + 1, (x + 1) * 2)
    check(s, [a, b, c], [x, np.zeros_like(x)], lambda x, _: (x + 1) * 2, local)
    assert mlc.lower(s, [a, b, c], simple_mode=True).buffers[1].name == "B"


def test_a_reduction_that_is_an_argument_at_a_tile() -> None:
    a = te.placeholder((12, 7), name="A")
    k = te.reduce_axis((0, 7), "k")
    b = te.compute((12,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((12,), lambda i: b[i] + 1, name="C")
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.axis[0], factor=5)
    s[b].compute_at(s[c], outer)
    x = small_integers((12, 7), 0)
    both(s, [a, b, c], x, x.sum(1), x.sum(1) + 1)


# -------------------------------------------------------------------------------- the buffers


def turned(n: int = 20, m: int = 24) -> tuple[te.StageSchedule, list[te.Tensor], te.Tensor]:
    """C = the transpose of B = A + 1, by rows of tiles in a buffer."""
    a = te.placeholder((n, m), name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((m, n), lambda i, j: b[j, i] * 2, name="C")
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.axis[0], factor=8)
    s[b].compute_at(s[c], outer)
    return s, [a, c], b


def turned_back(x: Array) -> Array:
    return np.ascontiguousarray(x.T + 1) * 2


def scratch(s: te.StageSchedule, args: Sequence[te.Tensor]) -> Buffer:
    (buffer,) = mlc.lower(s, args).scratch
    return buffer


def test_rows_are_aligned(golden: Golden, local: Session) -> None:
    s, args, b = turned()
    assert scratch(s, args).shape == (20 * 8,)
    s[b].storage_align(b.op.axis[0], 8, 3)
    text = check(s, args, [small_integers((20, 24), 0)], turned_back, local)
    assert scratch(s, args).shape == (19 * 11 + 8,)  # rows of 8, 11 apart
    assert scratch_layout(mlc.lower(s, args))[1] == -(-(19 * 11 + 8) * 4 // 64) * 64
    golden(text, "stage_storage_align")


@pytest.mark.parametrize("m", [8, 16, 24, 23])
def test_buffers_are_doubled(m: int, golden: Golden, local: Session) -> None:
    s, args, b = turned(m=m)
    s[b].double_buffer()
    s[b].storage_align(b.op.axis[0], 8, 1)
    text = check(s, args, [small_integers((20, m), 0)], turned_back, local)
    if m == 24:
        assert scratch(s, args).shape == (2 * (19 * 9 + 8),)
        golden(text, "stage_double_buffer")


def test_doubled_for_any_number_of_turns(local: Session) -> None:
    a, b, c = chain(te.var("n"), 8)
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].double_buffer()
    for n in (1, 2, 5):
        check(s, [a, c], [small_integers((n, 8), 0)], lambda x: (x + 1) * 2, local)


def test_a_reduction_with_both_operands_doubled(local: Session) -> None:
    a, b = (te.placeholder((16, 16), name=name) for name in "AB")
    k = te.reduce_axis((0, 16), "k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    aa, bb = s.cache_read(a, "global", [c]), s.cache_read(b, "global", [c])
    ko, ki = s[c].split(k, factor=4)
    s[c].reorder(ko, *c.op.axis, ki)
    for cached in (aa, bb):
        s[cached].compute_at(s[c], ko)
        s[cached].double_buffer()
    x, y = small_integers((16, 16), 0), small_integers((16, 16), 1)
    check(s, [a, b, c], [x, y], np.matmul, local)


def not_doubled() -> list[Callable[[], Any]]:
    def apart() -> Any:
        a, b, c = chain(8, 8)
        s = te.create_schedule(c.op)
        s[b].double_buffer()
        return mlc.lower(s, [a, c])

    def noted_apart() -> Any:
        sch = Schedule(te.create_prim_func(list(chain(8, 8))[::2]))
        sch.annotate("B", "double_buffer_scope", 0)

    def on_threads() -> Any:
        s, args, b = turned()
        s[args[1]].parallel(s[args[1]].leaf_iter_vars[0])
        s[b].double_buffer()
        return mlc.lower(s, args)

    def of_the_same_turn() -> Any:
        a = te.placeholder((8, 8), name="A")
        b = te.compute((8, 8), lambda i, j: a[i, j] + 1, name="B")
        c = te.compute((8, 8), lambda i, j: b[i, j] * 2, name="C")
        d = te.compute((8, 8), lambda i, j: b[i, j] + c[i, 7 - j], name="D")
        s = te.create_schedule(d.op)
        for stage in (c, b):
            s[stage].compute_at(s[d], d.op.axis[0])
        s[c].double_buffer()
        return mlc.lower(s, [a, d])

    def handed_on() -> Any:
        """A window that keeps what the last turn made, written by hand."""
        text = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            T.block_attr({"double_buffer_scope": 0})
            B[vi] = A[vi] + T.float32(1)
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi // 2]
"""
        func = mlc.from_script(text)
        assert isinstance(func, mlc.PrimFunc)
        return mlc.lower(func)

    return [apart, noted_apart, on_threads, of_the_same_turn, handed_on]


def test_what_is_not_doubled(golden: Golden) -> None:
    messages = []
    for mistake in not_doubled():
        with pytest.raises((mlc.LowerError, mlc.ScheduleError)) as caught:
            mistake()
        messages.append(re.sub(re.escape(__file__) + r":\d+", "user.py:1", str(caught.value)))
    golden("\n\n".join(messages), "double_buffer_refusals")


# --------------------------------------------------------------------------------- prefetches


@pytest.mark.parametrize(
    ("board", "instruction"), [("local", "prefetch"), ("armv7", "pld"), ("aarch64", "prfm")]
)
def test_prefetch(
    board: str, instruction: str, golden: Golden, request: pytest.FixtureRequest
) -> None:
    """Rows of 100 floats are seven cache lines; the last turn's lie outside of the tensor."""
    a, b, c = chain(9, 100)
    s = te.create_schedule(c.op)
    s[b].prefetch(a, b.op.axis[0], 1)
    library = mlc.build(s, [a, c], TARGETS[board])
    assert instruction in library.assembly
    x = small_integers((9, 100), 0)
    session: Session = board_named(request, board)
    arrays = [x, np.zeros_like(x)]
    run_on(session, library, arrays)
    np.testing.assert_array_equal(arrays[-1], (x + 1) * 2)
    golden(str(mlc.lower(s, [a, c])), "stage_prefetch")
    assert "mlc_prefetch((uintptr_t)A + " in library.get_source("c")


def test_a_prefetch_leaves_results_and_bound_checks_alone(local: Session) -> None:
    a, b, c = chain(te.var("n"), 30)
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].prefetch(b, c.op.axis[1], -3)
    s[b].prefetch(a, b.op.axis[1], 500)
    with mlc.PassContext(config={"lower.bound_check": True}):
        check(s, [a, c], [small_integers((5, 30), 0)], lambda x: (x + 1) * 2, local)


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_what_comes_next_is_fetched_bit_by_bit(
    board: str, golden: Golden, request: pytest.FixtureRequest
) -> None:
    """Six rows read the same 32 columns of B, and each asks for a part of the next 32."""
    a, b = te.placeholder((6, 16), name="A"), te.placeholder((3, 16, 32), name="B")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((3, 6, 32), lambda p, i, j: te.sum(a[i, k] * b[p, k, j], axis=k), name="C")
    sch = Schedule(te.create_prim_func([a, b, c]))
    panel, _, column, over = sch.get_loops("C")
    sch.reorder(over, column)
    sch.vectorize(column)
    sch.annotate(panel, "prefetch_next", ["B"])
    library = mlc.build(sch, target=TARGETS[board])
    x, w = small_integers((6, 16), 0), small_integers((3, 16, 32), 1)
    arrays = [x, w, np.zeros((3, 6, 32), np.float32)]
    run_on(board_named(request, board), library, arrays)
    np.testing.assert_array_equal(arrays[-1], x @ w)
    golden(str(mlc.lower(sch)), "prefetch_next")


def test_prefetch_refusals(golden: Golden) -> None:
    sch = Schedule(te.create_prim_func(list(chain(8, 3000))))
    messages = []
    for loop, key, what in (
        (str(sch.get_loops("B")[0]), "prefetch", [["X", 1]]),
        (str(sch.get_loops("C")[0]), "prefetch", [["A", 1]]),
        (str(sch.get_loops("C")[0]), "prefetch_next", ["A"]),
    ):
        sch.annotate(loop, key, what)
        with pytest.raises(mlc.LowerError) as caught:
            mlc.lower(sch)
        messages.append(str(caught.value))
        sch.unannotate(loop, key)
    a = te.placeholder((8, te.var("n")), name="A")
    s = te.create_schedule(b := te.compute(a.shape, lambda i, j: a[i, j] + 1, name="B"))
    s[b].prefetch(a, b.op.axis[0], 1)
    with pytest.raises(mlc.LowerError) as caught:
        mlc.lower(s, [a, b])
    golden("\n\n".join([*messages, str(caught.value)]), "prefetch_refusals")


# ------------------------------------------------------------------------------------ pragmas


def rows(explicit: bool | None, most: int = 16) -> str:
    a, b, c = chain(6, 4, 8)
    s = te.create_schedule(c.op)
    s[b].compute_inline()
    i, _, k = c.op.axis
    s[c].vectorize(k)
    s[c].pragma(i, "auto_unroll_max_step", most)
    if explicit is not None:
        s[c].pragma(i, "unroll_explicit", explicit)
    check(s, [a, c], [small_integers((6, 4, 8), 0)], lambda x: (x + 1) * 2)
    return str(mlc.lower(s, [a, c]))


def test_auto_unroll() -> None:
    assert rows(None, 3).count("C[") == 1  # no loop has as few statements
    assert rows(None, 4).count("C[") == 4 and "for i" in rows(None, 4)
    assert rows(None, 24).count("C[") == 24 and "for " not in rows(None, 24)
    assert rows(True).count("C[") == 4
    assert rows(False).count("C[") == 1


def test_a_region_is_skipped() -> None:
    a, b, c = chain(6)
    s = te.create_schedule(c.op)
    s[b].pragma(b.op.axis[0], "debug_skip_region")
    assert str(mlc.lower(s, [a, b, c])).count(" = ") == 1


# ----------------------------------------------------------------------- declared intrinsics


def gemv(m: int, size: int, parts: bool) -> te.DeclaredIntrin:
    """c[i] = sum over k of a[k] * b[i, k], in vectors of b's rows' columns."""
    a, b = te.placeholder((size,), name="a"), te.placeholder((m, size), name="b")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((m,), lambda i: te.sum(a[k] * b[i, k], axis=k), name="c")
    apart = te.decl_buffer(b.shape, b.dtype, strides=[te.var("s"), 1])

    def function(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        aa, bb = ins
        cc = outs[0]

        def sums(i: int, total: Expr) -> Stmt:
            for n in range(size):
                total = total + aa[n] * bb[i, n]
            stored: Stmt = cc.vstore(i, total)
            return stored

        def written(begin: Callable[[int], Expr]) -> Stmt:
            ib = te.ir_builder.create()
            for i in range(m):
                ib.emit(sums(i, begin(i)))
            return ib.get()

        whole = written(lambda i: te.vector_const(0, "float32"))
        if not parts:
            return whole
        reset = cc.vstore(0, te.vector_const(0, f"float32x{m}"))
        return whole, reset, written(lambda i: cc[i])

    return te.decl_tensor_intrin(c.op, function, "gemv", binds={b: apart})


def product(size: int = 8) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((12, size), name="A"), te.placeholder((16, size), name="B")
    k = te.reduce_axis((0, size), "k")
    return a, b, te.compute((12, 16), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("as_function", [False, True])
def test_a_declared_intrinsic(parts: bool, as_function: bool, local: Session) -> None:
    a, b, c = product()
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], factor=4)
    declared = gemv(4, 8, parts)
    s[c].tensorize(inner, (lambda: declared) if as_function else declared)
    data = [small_integers((12, 8), 0), small_integers((16, 8), 1)]
    check(s, [a, b, c], data, lambda x, y: np.ascontiguousarray(x @ y.T), local)
    assert "gemv" in str(stage_program(s, [a, b, c]))


def test_a_reduction_goes_on_outside_of_an_intrinsic(golden: Golden, local: Session) -> None:
    a, b, c = product(24)
    s = te.create_schedule(c.op)
    jo, ji = s[c].split(c.op.axis[1], factor=4)
    ko, ki = s[c].split(s[c].op.reduce_axis[0], factor=8)
    s[c].reorder(c.op.axis[0], jo, ko, ji, ki)
    s[c].tensorize(ji, gemv(4, 8, parts=True))
    data = [small_integers((12, 24), 0), small_integers((16, 24), 1)]
    check(s, [a, b, c], data, lambda x, y: np.ascontiguousarray(x @ y.T), local)
    text = str(stage_program(s, [a, b, c]))
    assert "gemv.update." in text and "gemv.reset." in text
    again = te.create_schedule(c.op)
    jo, ji = again[c].split(c.op.axis[1], factor=4)
    ko, ki = again[c].split(again[c].op.reduce_axis[0], factor=8)
    again[c].reorder(c.op.axis[0], jo, ko, ji, ki)
    again[c].tensorize(ji, gemv(4, 8, parts=False))
    with pytest.raises(mlc.ScheduleError, match="says only what the whole is\n"):
        mlc.lower(again, [a, b, c])


def test_instructions_by_short_names(armv7: Session) -> None:
    """vpadd of int16, by LLVM's name without its types."""
    x = te.placeholder((8,), "int16", "x")
    k = te.reduce_axis((0, 2), "k")
    y = te.compute((4,), lambda i: te.sum(x[i * 2 + k], axis=k), name="y")

    def function(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        halves = [ins[0].vload(4 * n, "int16x4") for n in range(2)]
        pairs = te.call_llvm_pure_intrin("int16x4", "llvm.arm.neon.vpadd", *halves)
        return outs[0].vstore(0, pairs)

    a = te.placeholder((6, 8), "int16", "A")
    j = te.reduce_axis((0, 2), "j")
    b = te.compute((6, 4), lambda r, i: te.sum(a[r, i * 2 + j], axis=j), name="B")
    s = te.create_schedule(b.op)
    s[b].tensorize(b.op.axis[1], te.decl_tensor_intrin(y.op, function, "pairs"))
    library = mlc.build(s, [a, b], "armv7a")
    assert "vpadd.i16" in library.assembly
    data = small_integers((6, 8), 0, "int16")
    arrays = [data, np.zeros((6, 4), "int16")]
    run_on(armv7, library, arrays)
    np.testing.assert_array_equal(arrays[-1], data.reshape(6, 4, 2).sum(2))
    with pytest.raises(mlc.CodegenError, match="is an instruction of arm"):
        mlc.build(s, [a, b], "aarch64").assembly  # noqa: B018


def test_declarations_that_are_none(golden: Golden) -> None:
    a, b, c = product()
    messages = []
    wrong: list[Callable[[Any, Any], Any]] = [
        lambda ins, outs: "text",
        lambda ins, outs: outs[0].access_ptr("w"),
        lambda ins, outs: te.ir_builder.create().emit(3),  # type: ignore[arg-type]
    ]
    for function in wrong:
        s = te.create_schedule(c.op)
        with pytest.raises((mlc.ScheduleError, TypeError)) as caught:
            s[c].tensorize(c.op.axis[1], te.decl_tensor_intrin(c.op, function))
            mlc.lower(s, [a, b, c])
        messages.append(re.sub(re.escape(__file__) + r":\d+", "user.py:1", str(caught.value)))
    for declare in (
        lambda: te.decl_tensor_intrin(a.op, wrong[0]),
        lambda: te.decl_tensor_intrin(c.op, wrong[0], default_buffer_params={"scope": "local"}),
    ):
        with pytest.raises(TypeError) as error:
            declare()
        messages.append(str(error.value))
    golden("\n\n".join(messages), "declared_intrinsic_refusals")
