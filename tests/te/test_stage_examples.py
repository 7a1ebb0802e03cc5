"""The classic examples of scheduling tensor expressions: their loops as text, and their numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir import Dim
from mlc_deploy.schedule import tensor_intrin
from mlc_rpc import Session
from tests.schedule.portable_intrins import INTRINS
from tests.te.stage_programs import Array, check, run_on, small_integers

Golden = Callable[..., None]
Loops = Callable[[str], None]


@pytest.fixture
def loops(golden: Golden, request: pytest.FixtureRequest) -> Loops:
    """Compares loops with those of the golden file `stage_<test>`."""
    name = request.node.name.removeprefix("test_")
    return lambda text: golden(text, f"stage_{name}")


def doubled(*shape: Dim) -> tuple[te.Tensor, te.Tensor]:
    """B = 2 A, of one dimension or two."""
    a = te.placeholder(shape, name="A")
    if len(shape) == 1:
        return a, te.compute(shape, lambda i: a[i] * 2, name="B")
    return a, te.compute(shape, lambda i, j: a[i, j] * 2, name="B")


def chain(m: Dim) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """C = B + 1 = 2 A + 1."""
    a, b = doubled(m)
    return a, b, te.compute((m,), lambda i: b[i] + 1, name="C")


# ------------------------------------------------------------------------------------ loops


@pytest.mark.parametrize("m", [1, 31, 32, 33, 100])
def test_split_guards_what_the_factor_does_not_divide(
    golden: Golden, local: Session, m: int
) -> None:
    a, b = doubled(te.var("m"))
    s = te.create_schedule(b.op)
    s[b].split(b.op.axis[0], factor=32)
    text = check(s, [a, b], [small_integers((m,), 0)], lambda x: x * 2, local)
    assert "if T.likely(i_0 * 32 + i_1 < m):" in text
    golden(text, "stage_split")


def test_split_in_parts(loops: Loops, local: Session) -> None:
    a, b = doubled(te.var("m"))
    s = te.create_schedule(b.op)
    outer, _ = s[b].split(b.op.axis[0], nparts=5)
    assert str(outer.extent) == "5"
    loops(check(s, [a, b], [small_integers((33,), 0)], lambda x: x * 2, local))


def test_tile_10_5(loops: Loops, local: Session) -> None:
    a, b = doubled(te.var("m"), te.var("n"))
    s = te.create_schedule(b.op)
    axes = s[b].tile(b.op.axis[0], b.op.axis[1], x_factor=10, y_factor=5)
    assert s[b].leaf_iter_vars == axes
    loops(check(s, [a, b], [small_integers((23, 19), 0)], lambda x: x * 2, local))


def test_reorder(loops: Loops, local: Session) -> None:
    a, b = doubled(20, 25)
    s = te.create_schedule(b.op)
    xo, yo, xi, yi = s[b].tile(b.op.axis[0], b.op.axis[1], x_factor=10, y_factor=5)
    s[b].reorder(xi, yo, xo, yi)
    loops(check(s, [a, b], [small_integers((20, 25), 0)], lambda x: x * 2, local))


def test_fuse_is_the_inverse_of_split() -> None:
    a, b = doubled(64)
    s = te.create_schedule(b.op)
    s[b].fuse(*s[b].split(b.op.axis[0], factor=16))
    fused = mlc.lower(s, [a, b], simple_mode=True)
    plain = mlc.lower(te.create_schedule(b.op), [a, b], simple_mode=True)
    assert str(fused).replace("i_0_i_1_fused", "i") == str(plain)


def test_kinds_of_loops(loops: Loops, local: Session) -> None:
    a, b = doubled(12, 64)
    s = te.create_schedule(b.op)
    x, y = b.op.axis
    yo, yi = s[b].split(y, factor=16)
    yo, ym = s[b].split(yo, factor=2)
    s[b].parallel(x)
    s[b].unroll(ym)
    s[b].vectorize(yi)
    s[b].prefetch(a, yo, 2)
    loops(check(s, [a, b], [small_integers((12, 64), 0)], lambda x: x * 2, local))


# ------------------------------------------------------------------------------------ places


def test_compute_at_and_compute_root_undoing_it(loops: Loops, local: Session) -> None:
    a, b, c = chain(te.var("m"))
    s = te.create_schedule(c.op)
    plain = str(mlc.lower(s, [a, c], simple_mode=True))
    s[b].compute_at(s[c], c.op.axis[0])
    loops(check(s, [a, c], [small_integers((9,), 0)], lambda x: x * 2 + 1, local))
    s[b].compute_root()
    assert str(mlc.lower(s, [a, c], simple_mode=True)) == plain
    assert plain.count("for ") == 2


def test_compute_inline_leaves_one_loop(loops: Loops, local: Session) -> None:
    a, b, c = chain(te.var("m"))
    s = te.create_schedule(c.op)
    s[b].compute_inline()
    text = check(s, [a, c], [small_integers((9,), 0)], lambda x: x * 2 + 1, local)
    assert text.count("for ") == 1
    loops(text)


def test_a_stage_is_scheduled_where_it_is_computed(loops: Loops, local: Session) -> None:
    """The producer's axes run over what one tile of its consumer needs."""
    a = te.placeholder((34, 34), name="A")
    b = te.compute((34, 34), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute((32, 32), lambda i, j: b[i, j] + b[i + 2, j + 2], name="C")
    s = te.create_schedule(c.op)
    _, yo, _, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 8, 16)
    s[c].vectorize(yi)
    s[b].compute_at(s[c], yo)
    x, y = b.op.axis
    xo, xi = s[b].split(x, factor=5)
    s[b].reorder(y, xi, xo)
    text = check(
        s,
        [a, c],
        [small_integers((34, 34), 0)],
        lambda x: x[:32, :32] * 2 + x[2:, 2:] * 2,
        local,
    )
    loops(text)


def test_an_intermediate_may_be_an_argument(local: Session) -> None:
    a, b, c = chain(10)
    func = te.create_prim_func([a, b, c])
    assert [p.name for p in func.buffers] == ["A", "B", "C"]
    assert [p.name for p in te.create_prim_func([a, c]).buffers] == ["A", "C"]
    s = te.create_schedule(c.op)
    s[c].split(c.op.axis[0], factor=3)
    x = small_integers((10,), 0)
    arrays = [x, np.zeros_like(x), np.zeros_like(x)]
    run_on(local, mlc.build(s, [a, b, c], "host"), arrays)
    np.testing.assert_array_equal(arrays[-1], x * 2 + 1)
    with pytest.raises(mlc.ScheduleError, match="block 'B' writes output 'B'"):
        s[b].compute_inline()
        mlc.lower(s, [a, b, c])


def test_arguments_may_be_left_out() -> None:
    *_, c = chain(10)
    s = te.create_schedule(c.op)
    assert [p.name for p in mlc.lower(s).params] == ["A", "C"]
    assert mlc.build(s, target="host").kernels[0].outputs == ("C",)


# -------------------------------------------------------------------------------- reductions


def test_reduction_over_two_axes(loops: Loops, local: Session) -> None:
    a = te.placeholder((8, 9, 10), name="A")
    k, r = te.reduce_axis((0, 9), "k"), te.reduce_axis((0, 10), "r")
    b = te.compute((8,), lambda i: te.sum(a[i, k, r], axis=[k, r]), name="B")
    s = te.create_schedule(b.op)
    ko, ki = s[b].split(k, factor=4)
    s[b].reorder(ko, r, b.op.axis[0], ki)
    loops(check(s, [a, b], [small_integers((8, 9, 10), 0)], lambda x: x.sum((1, 2)), local))


@pytest.mark.parametrize("shape", [(40, 50), (7, 16), (33, 3)])
def test_rfactor(golden: Golden, local: Session, shape: tuple[int, int]) -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="B")
    s = te.create_schedule(b.op)
    _, ki = s[b].split(b.op.reduce_axis[0], factor=16)
    bf = s.rfactor(b, ki)
    assert [stage.name for stage in s.stages] == ["A", "B_rf", "B"]
    s[b].split(s[b].op.axis[0], factor=32)
    s[bf].compute_at(s[b], s[b].op.reduce_axis[0])
    golden(check(s, [a, b], [small_integers(shape, 0)], lambda x: x.sum(1), local), "stage_rfactor")


def test_rfactor_of_a_whole_reduction_into_vectors(loops: Loops, local: Session) -> None:
    a = te.placeholder((64, 6), name="A")
    k = te.reduce_axis((0, 64), "k")
    b = te.compute((6,), lambda i: te.max(a[k, i], axis=k), name="B")
    s = te.create_schedule(b.op)
    _, ki = s[b].split(k, factor=4)
    bf = s.rfactor(b, ki, factor_axis=-1)
    s[bf].vectorize(s[bf].op.axis[1])
    loops(check(s, [a, b], [small_integers((64, 6), 0)], lambda x: x.max(0), local))


# ------------------------------------------------------------------------------------ matmul

SIZE, BLOCK = 64, 16


def matmul() -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a = te.placeholder((SIZE, SIZE), name="A")
    b = te.placeholder((SIZE, SIZE), name="B")
    k = te.reduce_axis((0, SIZE), "k")
    c = te.compute((SIZE, SIZE), lambda m, n: te.sum(a[m, k] * b[k, n], axis=k), name="C")
    return a, b, c


def squares() -> list[Array]:
    return [small_integers((SIZE, SIZE), seed) for seed in (0, 1)]


def blocked(
    permuted: bool = False, vectorized: bool = False
) -> tuple[te.StageSchedule, list[te.Tensor]]:
    a, b, c = matmul()
    s = te.create_schedule(c.op)
    mo, no, mi, ni = s[c].tile(c.op.axis[0], c.op.axis[1], BLOCK, BLOCK)
    (kaxis,) = s[c].op.reduce_axis
    ko, ki = s[c].split(kaxis, factor=4)
    s[c].reorder(*((mo, no, ko, mi, ki, ni) if permuted else (mo, no, ko, ki, mi, ni)))
    if vectorized:
        s[c].vectorize(ni)
    return s, [a, b, c]


@pytest.mark.parametrize("step", ["blocking", "vectorization", "permutation"])
def test_matmul(loops: Loops, local: Session, step: str) -> None:
    s, args = blocked(permuted=step == "permutation", vectorized=step != "blocking")
    loops(check(s, args, squares(), np.matmul, local))


def packed() -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    a, b, _ = matmul()
    k = te.reduce_axis((0, SIZE), "k")
    packed_b = te.compute(
        (SIZE // BLOCK, SIZE, BLOCK), lambda x, y, z: b[y, x * BLOCK + z], name="packedB"
    )
    c = te.compute(
        (SIZE, SIZE),
        lambda m, n: te.sum(a[m, k] * packed_b[n // BLOCK, k, n % BLOCK], axis=k),
        name="C",
    )
    return a, b, packed_b, c


def test_matmul_array_packing(loops: Loops, local: Session) -> None:
    a, b, packed_b, c = packed()
    s = te.create_schedule(c.op)
    mo, no, mi, ni = s[c].tile(c.op.axis[0], c.op.axis[1], BLOCK, BLOCK)
    (kaxis,) = s[c].op.reduce_axis
    ko, ki = s[c].split(kaxis, factor=4)
    s[c].reorder(mo, no, ko, mi, ki, ni)
    s[c].vectorize(ni)
    big_n, _, little_n = s[packed_b].op.axis
    s[packed_b].vectorize(little_n)
    s[packed_b].parallel(big_n)
    loops(check(s, [a, b, c], squares(), np.matmul, local))


def test_matmul_write_cache_in_parallel(loops: Loops, local: Session, aarch64: Session) -> None:
    a, b, packed_b, c = packed()
    s = te.create_schedule(c.op)
    cc = s.cache_write(c, "global")
    mo, no, _, _ = s[c].tile(c.op.axis[0], c.op.axis[1], BLOCK, BLOCK)
    s[cc].compute_at(s[c], no)
    mc, nc = s[cc].op.axis
    (kaxis,) = s[cc].op.reduce_axis
    ko, ki = s[cc].split(kaxis, factor=4)
    s[cc].reorder(ko, mc, ki, nc)
    s[cc].vectorize(nc)
    s[cc].unroll(ki)
    s[c].parallel(mo)
    big_n, _, little_n = s[packed_b].op.axis
    s[packed_b].vectorize(little_n)
    s[packed_b].parallel(big_n)
    loops(check(s, [a, b, c], squares(), np.matmul, local))
    check(s, [a, b, c], squares(), np.matmul, aarch64, "aarch64")


def test_matmul_read_cache(loops: Loops, local: Session) -> None:
    a, b, c = matmul()
    s = te.create_schedule(c.op)
    bb = s.cache_read(b, "local", [c])
    mo, no, mi, ni = s[c].tile(c.op.axis[0], c.op.axis[1], BLOCK, BLOCK)
    (kaxis,) = s[c].op.reduce_axis
    ko, ki = s[c].split(kaxis, factor=8)
    s[c].reorder(mo, no, ko, ki, mi, ni)
    s[bb].compute_at(s[c], ko)
    s[bb].vectorize(s[bb].op.axis[1])
    loops(check(s, [a, b, c], squares(), np.matmul, local))


def test_matmul_bias_and_relu_fused(loops: Loops, local: Session) -> None:
    a, b, c = matmul()
    bias = te.placeholder((SIZE,), name="bias")
    d = te.compute((SIZE, SIZE), lambda m, n: c[m, n] + bias[n], name="D")
    e = te.compute((SIZE, SIZE), lambda m, n: te.maximum(d[m, n], 0), name="E")
    s = te.create_schedule(e.op)
    s[d].compute_inline()
    _, no, _, ni = s[e].tile(e.op.axis[0], e.op.axis[1], 8, BLOCK)
    s[e].vectorize(ni)
    s[c].compute_at(s[e], no)
    m, n = s[c].op.axis
    (k,) = s[c].op.reduce_axis
    s[c].reorder(k, m, n)
    s[c].vectorize(n)
    s[c].set_scope("local")
    text = check(
        s,
        [a, b, bias, e],
        [*squares(), small_integers((SIZE,), 2)],
        lambda a, b, bias: np.maximum(a @ b + bias, 0),
        local,
    )
    loops(text)


def test_conv_with_its_padding_in_the_tile(loops: Loops, local: Session) -> None:
    size, channels, filters = 14, 4, 16
    data = te.placeholder((channels, size, size), name="data")
    weight = te.placeholder((filters, channels, 3, 3), name="weight")
    padded = te.compute(
        (channels, size + 2, size + 2),
        lambda c, y, x: te.if_then_else(
            te.all_of(y >= 1, y < size + 1, x >= 1, x < size + 1), data[c, y - 1, x - 1], 0.0
        ),
        name="padded",
    )
    axes = [te.reduce_axis((0, n), name) for n, name in ((channels, "c"), (3, "ky"), (3, "kx"))]
    c, ky, kx = axes
    out = te.compute(
        (filters, size, size),
        lambda f, y, x: te.sum(padded[c, y + ky, x + kx] * weight[f, c, ky, kx], axis=axes),
        name="out",
    )
    s = te.create_schedule(out.op)
    f, y, x = s[out].op.axis
    fo, fi = s[out].split(f, factor=4)
    yo, yi = s[out].split(y, factor=2)
    s[out].reorder(fo, yo, *axes, yi, fi, x)
    s[padded].compute_at(s[out], yo)
    s[out].unroll(fi)
    s[out].parallel(fo)

    def reference(data: Array, weight: Array) -> Array:
        wide = np.pad(data, ((0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))
        return np.asarray(np.einsum("cyxij,fcij->fyx", windows, weight), "float32")

    inputs = [
        small_integers((channels, size, size), 0),
        small_integers((filters, channels, 3, 3), 1),
    ]
    loops(check(s, [data, weight, out], inputs, reference, local))


def test_matmul_tensorized(loops: Loops, local: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, intrin in INTRINS.items():
        monkeypatch.setitem(tensor_intrin._REGISTRY, name, intrin)
    a, b, c = matmul()
    s = te.create_schedule(c.op)
    mo, no, mi, ni = s[c].tile(c.op.axis[0], c.op.axis[1], 4, 4)
    ko, ki = s[c].split(s[c].op.reduce_axis[0], factor=2)
    s[c].reorder(mo, no, ko, mi, ni, ki)
    s[c].tensorize(mi, "tile")
    loops(check(s, [a, b, c], squares(), np.matmul, local))
