"""TVM's words of tensor expressions: shapes, slices, tags, operators of tensors, functions,
reductions of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir import PrimFunc, structural_equal
from mlc_deploy.ir.interp import run
from mlc_deploy.script import from_script
from mlc_deploy.te import Tensor

Array = np.ndarray


def computed(args: list[Any], *given: Array) -> list[Array]:
    """The outputs of a function of inputs and outputs; its text reads back."""
    func = te.create_prim_func(args)
    again = from_script(func.script())
    assert isinstance(again, PrimFunc) and structural_equal(func, again), func.script()
    outs = [np.zeros([int(e) for e in a.shape], a.dtype) for a in args[len(given) :]]
    run(func, *given, *outs)
    return outs


def random(*shape: int) -> Array:
    return np.random.default_rng(0).random(shape).astype(np.float32)


def test_one_number_or_variable_is_a_shape() -> None:
    n = te.var("n")
    a = te.placeholder(n, name="A")
    b = te.compute(n, lambda i: a[i] * 2, name="B")
    out = np.zeros(5, np.float32)
    run(te.create_prim_func([a, b]), x := random(5), out)
    np.testing.assert_array_equal(out, x * 2)
    assert te.placeholder(8).shape == (8,)
    assert te.placeholder(n + 2).ndim == 1


def test_slices() -> None:
    a: Any = te.placeholder((4, 9), name="A")
    x = random(4, 9)
    (out,) = computed([a, te.compute(9, lambda j: a[0][j] + a[3][j], name="B")], x)
    np.testing.assert_array_equal(out, x[0] + x[3])
    with pytest.raises(TypeError, match=r"no expression or number but TensorSlice"):
        te.compute(4, lambda i: a[i])


def test_tags() -> None:
    a = te.placeholder(8, name="A")

    @te.tag_scope(tag="twice")
    def twice(x: Tensor) -> Tensor:
        made: Tensor = te.compute(8, lambda i: x[i] * 2)
        return made

    with te.tag_scope(tag="gemm"):
        b = te.compute(8, lambda i: a[i])
    assert (b.op.tag, twice(a).op.tag) == ("gemm", "twice")
    assert te.compute(8, lambda i: a[i], tag="mine", attrs={"x": 1}).op.tag == "mine"
    assert te.compute(8, lambda i: a[i]).op.tag == ""
    with pytest.raises(ValueError) as refused, te.tag_scope("outer"):
        twice(a)
    assert str(refused.value) == (
        "tag_scope 'twice' is inside of tag_scope 'outer'\n  try: one tag for an operation"
    )
    with te.tag_scope("again"):
        pass


def test_operators_of_tensors() -> None:
    a, row, n = te.placeholder((4, 9), name="A"), te.placeholder(9, name="B"), te.var("n")
    x, y = random(4, 9), random(9) + 1
    (out,) = computed([a, row, 2 * a - row / 3 + a * row - 1], x, y)
    np.testing.assert_allclose(out, 2 * x - y / 3 + x * y - 1, rtol=1e-6)
    (out,) = computed([a, (-a).astype("int32")], x * 9)
    np.testing.assert_array_equal(out, (-(x * 9)).astype(np.int32))
    assert (a + 1).op.tag == "elemwise" and (a + row).op.tag == "broadcast"
    assert all(isinstance(t, Tensor) for t in (n + a, a + n, n * a, a[0, 0] + a, a + a[0, 0]))
    assert a == a and a != row
    with pytest.raises(ValueError) as refused:
        a + te.placeholder(8)
    assert str(refused.value) == ("the shapes (4, 9) and (8,) do not broadcast\n  try: te.compute")


@pytest.mark.parametrize(
    "ask, what",
    [
        (lambda a: a == 3, "tensor 'A' is compared with 3\n  try: elements, such as A[i] == 3"),
        (lambda a: a != 3, "tensor 'A' is compared with 3\n  try: elements, such as A[i] == 3"),
        (bool, "tensor 'A' has no truth\n  try: is None, or is not None"),
        (list, "tensor 'A' has no elements in order\n  try: te.compute"),
        (lambda a: list(a[0]), "A[0] has no elements in order\n  try: its indices"),
    ],
)
def test_what_tensors_refuse(ask: Callable[[Any], object], what: str) -> None:
    with pytest.raises(TypeError) as refused:
        ask(te.placeholder((4, 9), name="A"))
    assert str(refused.value) == what


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Array]] = {
    **{name: (getattr(np, name), np.linspace(-3, 3, 50)) for name in ("sinh", "cosh", "isnan")},
    "asinh": (np.arcsinh, np.linspace(-3, 3, 50)),
    "acosh": (np.arccosh, np.linspace(1, 9, 50)),
    "atan": (np.arctan, np.linspace(-5, 5, 50)),
    "asin": (np.arcsin, np.linspace(-0.99, 0.99, 50)),
    "acos": (np.arccos, np.linspace(-0.99, 0.99, 50)),
    "atanh": (np.arctanh, np.linspace(-0.9, 0.9, 50)),
    "log2": (np.log2, np.linspace(0.1, 9, 50)),
    "log10": (np.log10, np.linspace(0.1, 9, 50)),
    "log1p": (np.log1p, np.linspace(-0.5, 9, 50)),
    "isinf": (np.isinf, np.array([math.inf, -math.inf, math.nan, 0.0])),
    "isfinite": (np.isfinite, np.array([math.inf, -math.inf, math.nan, 0.0])),
    "nearbyint": (np.rint, np.linspace(-3, 3, 49)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    numpys, x = FUNCTIONS[name]
    x = x.astype(np.float32)
    a = te.placeholder(len(x), name="A")
    (out,) = computed([a, te.compute(len(x), lambda i: getattr(te, name)(a[i]))], x)
    np.testing.assert_allclose(out, numpys(x), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint64"])
def test_popcount(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2, (64, np.dtype(dtype).itemsize * 8)).astype(bool)
    words = np.packbits(x, axis=1).view(dtype)[:, 0]
    a = te.placeholder(64, dtype, name="A")
    (out,) = computed([a, te.compute(64, lambda i: te.popcount(a[i]))], words)
    np.testing.assert_array_equal(out, x.sum(1))


def test_operators_by_name() -> None:
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    a, b = te.placeholder(4, "int32", "A"), te.placeholder(4, "int32", "B")
    names: dict[str, Array] = {
        "add": x + y, "subtract": x - y, "multiply": x * y, "div": np.array([3, -3, -3, 3]),
        "floordiv": x // y, "floormod": x % y, "indexdiv": x // y, "indexmod": x % y,
        "truncdiv": np.array([3, -3, -3, 3]), "truncmod": np.fmod(x, y),
    }  # fmt: skip
    for name, wanted in names.items():
        made = te.compute(4, partial(lambda f, i: f(a[i], b[i]), getattr(te, name)))
        np.testing.assert_array_equal(computed([a, b, made], x, y)[0], wanted, name)
    assert te.div(te.var("x", "float32"), 2).dtype == "float32"
    assert te.power(te.var("x", "float32"), 3).dtype == "float32"


def argmax() -> Any:
    def better(x: Any, y: Any) -> Any:
        keep = te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] < y[0]))
        return te.select(keep, x[0], y[0]), te.select(keep, x[1], y[1])

    def identity(index: str, value: str) -> Any:
        return te.const(2**31 - 1, index), te.min_value(value)

    return te.comm_reducer(better, identity, name="argmax")


@pytest.mark.parametrize("both", [True, False])
def test_argmax(both: bool) -> None:
    """Two values that are reduced together, through a schedule and on this machine."""
    place, value = te.placeholder((6, 9), "int32", name="I"), te.placeholder((6, 9), name="V")
    k = te.reduce_axis((0, 9), "k")
    made = te.compute((6,), lambda i: argmax()((place[i, k], value[i, k]), axis=k), name="best")
    x = np.round(random(6, 9) * 4)
    numbers = np.tile(np.arange(9, dtype=np.int32), (6, 1))
    wanted = [x.argmax(1), x.max(1)][: 1 + both]
    args = [place, value, *made[: 1 + both]]
    for actual, expected in zip(computed(args, numbers, x), wanted, strict=True):
        np.testing.assert_array_equal(actual, expected)
    sch = mlc.Schedule(te.create_prim_func(args))
    sch.split("i", (None, 4))
    sch.decompose_reduction("best", "k")
    sch.parallel("i_0")
    outs = [np.zeros(6, t.dtype) for t in args[2:]]
    run(sch.func, numbers, x, *outs)
    for actual, expected in zip(outs, wanted, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_reductions_of_ones_own() -> None:
    total = te.comm_reducer(lambda x, y: x + y, lambda t: te.const(0, t), name="total")
    a, k = te.placeholder((4, 9), name="A"), te.reduce_axis((0, 9), "k")
    made = te.compute(4, lambda i: total(a[i, k], axis=k, where=k < 5), name="B")
    x = random(4, 9)
    np.testing.assert_allclose(computed([a, made], x)[0], x[:, :5].sum(1), rtol=1e-6)
    n, m = te.var("n"), te.var("m")
    assert str(total(n, m)) == "n + m"
    assert str(total(n, m, None, None, n)) == "n + m + n"
    two = te.comm_reducer(lambda x, y: (x[0], y[1], x[0]), lambda a, b: (1, 2))
    with pytest.raises(TypeError) as refused:
        te.compute(4, lambda i: two((a[i, k], a[i, k]), axis=k))
    assert str(refused.value) == "reduce: 3 results of 2 values"


def test_an_axis_may_depend_on_one_before_it() -> None:
    """A triangle: the text reads back, and a stage schedule lowers it."""
    a = te.placeholder((8, 8), name="A")

    def row(i: Any) -> Any:
        k = te.reduce_axis((0, i + 1), "k")
        return te.sum(a[i, k], k)

    b = te.compute(8, row, name="B")
    x = random(8, 8)
    np.testing.assert_allclose(computed([a, b], x)[0], np.tril(x).sum(1), rtol=1e-6)
    assert "k in range(i + 1)" in str(te.lower(te.create_schedule(b.op), [a, b]))


def test_attributes_that_are_tensors_read_back() -> None:
    a, w = te.placeholder(8, name="A"), te.placeholder(8, name="W")
    attrs = {"layout_free_placeholders": [w]}
    made = te.compute(8, lambda i: a[i] * w[i], attrs=attrs)
    computed([a, w, made], random(8), random(8))
    assert '"layout_free_placeholders": [W]' in te.create_prim_func([a, w, made]).script()


def test_main_is_a_name_of_the_only_function() -> None:
    a = te.placeholder(8, name="A")
    func = te.create_prim_func([a, te.compute(8, lambda i: a[i])], name="copy")
    assert mlc.Schedule(func).mod["main"] is mlc.Schedule(func).mod["copy"]
