"""From tensor expressions to loops: printed programs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mlc_deploy import te
from mlc_deploy.ir import PrimFunc, Var
from mlc_deploy.ir.interp import run
from mlc_deploy.te import Tensor


def multi_stage() -> list[Tensor]:
    x, w = te.placeholder((4, 6), name="x"), te.placeholder((6, 5), name="w")
    bias = te.placeholder((5,), name="bias")
    k = te.reduce_axis(6, "k")
    product = te.compute((4, 5), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="product")
    total = te.compute((4, 5), lambda i, j: product[i, j] + bias[j], name="total")
    return [x, w, bias, te.compute((4, 5), lambda *i: te.maximum(total[i], 0), name="relu")]


def with_the_intermediate() -> list[Tensor]:
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1, name="b")
    return [a, b, te.compute((8,), lambda i: b[i] * 2, name="c")]


def scalar() -> list[Tensor]:
    a = te.placeholder((8,), name="a")
    k = te.reduce_axis(8, "k")
    return [a, te.compute((), lambda: te.sum(a[k], k), name="total")]


def scalar_input() -> list[Tensor]:
    a, s = te.placeholder((8,), name="a"), te.placeholder((), name="s")
    return [a, s, te.compute((8,), lambda i: a[i] * s[()], name="scaled")]


def several_outputs() -> list[Tensor]:
    a = te.placeholder((8,), name="a")
    return [a, *te.compute((8,), lambda i: (a[i] + 1, a[i].astype("int32")), name="pair")]


def where() -> list[Tensor]:
    a = te.placeholder((4, 4), name="a")
    k = te.reduce_axis(4, "k")
    return [a, te.compute((4,), lambda i: te.max(a[i, k], k, where=k.var <= i), name="below")]


def two_axes() -> list[Tensor]:
    a = te.placeholder((3, 4, 5), "int8", "a")
    p, q = te.reduce_axis(3, "p"), te.reduce_axis(5, "q")
    return [a, te.compute((4,), lambda j: te.min(a[p, j, q], [p, q]), name="least")]


def same_names() -> list[Tensor]:
    a = te.placeholder((4,), name="x")
    b = te.compute((4,), lambda i: a[i] + 1, name="x")
    return [a, te.compute((4,), lambda i: b[i] + 1, name="x")]


def symbolic() -> list[Tensor]:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="a")
    return [a, te.compute((n, m), lambda i, j: a[i, j] + 1, name="b")]


Program = Callable[[], list[Tensor]]
PROGRAMS: tuple[Program, ...] = (
    multi_stage,
    with_the_intermediate,
    scalar,
    scalar_input,
    several_outputs,
    where,
    two_axes,
    same_names,
    symbolic,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs(program: Program, golden: Callable[..., None]) -> None:
    golden(str(te.create_prim_func(program())), f"te_{program.__name__}")


def interpreted(args: Sequence[Tensor | Var], *arrays: Any) -> None:
    run(te.create_prim_func(args), *arrays)


def test_multi_stage_is_matmul_bias_relu() -> None:
    rng = np.random.default_rng(1)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((4, 6), (6, 5), (5,)))
    out = np.zeros((4, 5), np.float32)
    interpreted(multi_stage(), x, w, b, out)
    np.testing.assert_allclose(out, np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-6)


def test_scalar_results() -> None:
    out = np.zeros((), np.float32)
    interpreted(scalar(), np.arange(8, dtype=np.float32), out)
    assert out == 28


def test_several_outputs() -> None:
    a = np.array([0.5, 1.5, -2.5, 3, 4, 5, 6, 7], np.float32)
    one, two = np.zeros(8, np.float32), np.zeros(8, np.int32)
    interpreted(several_outputs(), a, one, two)
    np.testing.assert_array_equal(one, a + 1)
    np.testing.assert_array_equal(two, a.astype(np.int32))


def test_where_takes_part_of_the_axis() -> None:
    a = np.arange(16, dtype=np.float32).reshape(4, 4)[:, ::-1].copy()
    out = np.zeros(4, np.float32)
    interpreted(where(), a, out)
    np.testing.assert_array_equal(out, [a[i, : i + 1].max() for i in range(4)])


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int64", "float16"])
def test_reductions_begin_with_their_identity(dtype: str) -> None:
    """Seen where all elements are the extreme that a wrong beginning would hide."""
    a = te.placeholder((2, 3), dtype, "a")
    least, most = (e.value for e in (te.min_value(dtype), te.max_value(dtype)))  # type: ignore[attr-defined]
    for function, element in ((te.sum, 0), (te.max, least), (te.min, most)):
        k = te.reduce_axis(3, "k")
        out = te.compute((2,), lambda i, f=function, k=k: f(a[i, k], k), name="out")
        result = np.ones(2, dtype)
        interpreted([a, out], np.full((2, 3), element, dtype), result)
        assert (result == element).all()


def test_intermediates_become_parameters_where_they_are_named() -> None:
    func = te.create_prim_func(with_the_intermediate())
    assert [b.name for b in func.buffers] == ["a", "b", "c"]
    a, _, c = with_the_intermediate()
    assert [b.name for b in te.create_prim_func([a, c]).buffers] == ["a", "c"]


# ----------------------------------------------------------------------------------------- errors


def refused(make: Callable[[], object]) -> str:
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        make()
    return f"{type(caught.value).__name__}: {caught.value}"


def _placeholders() -> tuple[Tensor, Tensor]:
    return te.placeholder((4, 4), name="A"), te.placeholder((4,), "int32", "n")


def _lambda_of_three() -> PrimFunc | Tensor:
    a, _ = _placeholders()
    return te.compute((4, 4), lambda i, j, k: a[i, j])  # type: ignore[no-any-return]


def _missing_placeholder() -> PrimFunc:
    a, n = _placeholders()
    return te.create_prim_func([a, te.compute((4,), lambda i: a[i, 0] + n[i].astype("float32"))])


def _twice() -> PrimFunc:
    a, _ = _placeholders()
    return te.create_prim_func([a, a])


def _reduction_inside() -> object:
    a, _ = _placeholders()
    k = te.reduce_axis(4, "k")
    return te.compute((4,), lambda i: te.sum(a[i, k], k) + 1, name="C")


def _branch() -> object:
    a, _ = _placeholders()
    return te.compute((4, 4), lambda i, j: a[i, j] if i < j else 0)


ERRORS: dict[str, Callable[[], object]] = {
    "a function of other indices": _lambda_of_three,
    "a placeholder left out": _missing_placeholder,
    "an argument twice": _twice,
    "a reduction inside an expression": _reduction_inside,
    "a Python branch": _branch,
    "an axis that begins at 1": lambda: te.reduce_axis((1, 4), "k"),
    "no reduce axes": lambda: te.sum(_placeholders()[0][0, 0], []),
    "an unknown identity": lambda: te.reduce("-", _placeholders()[0][0, 0], te.reduce_axis(4)),
    "too many indices": lambda: _placeholders()[0][0, 0, 0],
    "a float as index": lambda: _placeholders()[0][0, 1.5],
    "a number outside of its dtype": lambda: te.const(200, "int8"),
    "a negative number beside uint32": lambda: te.var("n", "uint32") - (-1),
    "numbers of lanes": lambda: te.var("v", "int32x4") + te.var("w", "int32x8"),
    "an integer divided": lambda: _placeholders()[1][0] / 2,
    "a float's remainder": lambda: _placeholders()[0][0, 0] % 2,
    "exp of an integer": lambda: te.exp(_placeholders()[1][0]),
    "pow of integers": lambda: te.pow(_placeholders()[1][0], -2),
    "an unknown dtype": lambda: te.placeholder((4,), "float31"),
}


def test_errors(golden: Callable[..., None]) -> None:
    golden("\n\n".join(f"# {what}\n{refused(make)}" for what, make in ERRORS.items()), "te_errors")
