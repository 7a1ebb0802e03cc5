"""Random small programs: every kind of loop nest that schedules are applied to.

Data are small integers, so that sums are exact in every order and in float32: a scheduled program
must give the very numbers of the unscheduled one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_deploy.ir import Expr, PrimFunc, Var, const, expr, given_vars, numpy_dtype, substitute
from mlc_deploy.ir.nodes import dim
from mlc_deploy.te import Tensor

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16)
DTYPES = ("float32", "float32", "int32", "int8", "float64", "uint8", "int64")

Args = list[Tensor]


def sizes(rng: Random, rank: int, most: int = 400) -> tuple[int, ...]:
    """A shape of that rank with at most `most` elements."""
    while True:
        shape = tuple(rng.choice(SIZES) for _ in range(rank))
        if int(np.prod(shape)) <= most:
            return shape


MAPS: tuple[Callable[[Expr], Expr], ...] = (
    lambda x: x + 1,
    lambda x: te.maximum(x, 0),
    lambda x: x * 2,
    lambda x: te.select(x < 1, x + 3, x - 1),
    lambda x: te.minimum(x * 3, 7),
)


def mapping(rng: Random, x: Tensor) -> Callable[..., Expr]:
    """Some function of the one element."""
    f = rng.choice(MAPS)
    return lambda *i: f(x[i])


def added(x: Tensor, small: Tensor) -> Callable[..., Expr]:
    """The sum of the elements that broadcasting puts side by side."""

    def element(*i: Expr) -> Expr:
        at = tuple(const(0) if e == 1 else v for e, v in zip(small.shape, i, strict=True))
        return x[i] + small[at]

    return element


def elementwise(rng: Random) -> Args:
    """A chain of stages, some with a second, broadcast input."""
    shape = sizes(rng, rng.randint(1, 3))
    dtype = rng.choice(DTYPES)
    inputs = [te.placeholder(shape, dtype, "A")]
    now = inputs[0]
    for n in range(rng.randint(1, 4)):
        name = "BCDE"[n]
        if rng.random() < 0.4:
            small = tuple(1 if rng.random() < 0.5 else extent for extent in shape)
            other = te.placeholder(small, dtype, f"x{n}")
            inputs.append(other)
            now = te.compute(shape, added(now, other), name=name)
        else:
            now = te.compute(shape, mapping(rng, now), name=name)
    return [*inputs, now]


def diamond(rng: Random) -> Args:
    """One producer, two consumers, one result of both; the middle may be an output too."""
    shape = sizes(rng, rng.randint(1, 2))
    a = te.placeholder(shape, rng.choice(DTYPES), "A")
    b = te.compute(shape, lambda *i: a[i] + 1, name="B")
    c = te.compute(shape, lambda *i: b[i] * 2, name="C")
    d = te.compute(shape, lambda *i: b[i] + c[i], name="D")
    return [a, c, d] if rng.random() < 0.4 else [a, d]


def stencil(rng: Random) -> Args:
    """Windows over a computed row, then windows over those."""
    n = rng.choice(SIZES) + 6
    a = te.placeholder((n,), rng.choice(DTYPES), "A")
    b = te.compute((n,), lambda i: a[i] + 1, name="B")
    c = te.compute((n - 2,), lambda i: b[i] + b[i + 1] + b[i + 2], name="C")
    if rng.random() < 0.5:
        return [a, c]
    step = rng.choice((1, 2))
    d = te.compute(((n - 5) // step + 1,), lambda i: c[i * step] + c[i * step + 2], name="D")
    return [a, d]


def stencil_2d(rng: Random) -> Args:
    h, w = rng.choice(SIZES) + 2, rng.choice(SIZES) + 2
    a = te.placeholder((h, w), rng.choice(DTYPES), "A")
    b = te.compute((h, w), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute(
        (h - 2, w - 2), lambda i, j: b[i, j + 1] + b[i + 1, j] + b[i + 2, j + 2], name="C"
    )
    return [a, c]


def reduction(rng: Random) -> Args:
    """A reduction over one or two axes of three, with work before and after."""
    shape = sizes(rng, 3)
    dtype = rng.choice(DTYPES)
    a = te.placeholder(shape, dtype, "A")
    before = te.compute(shape, lambda *i: a[i] + 1, name="before")
    source = rng.choice((a, before))
    over = sorted(rng.sample(range(3), rng.randint(1, 2)))
    axes = {n: te.reduce_axis((0, shape[n]), f"r{n}") for n in over}
    kept = [n for n in range(3) if n not in over]
    function = rng.choice((te.sum, te.max, te.min))

    def element(*i: Expr) -> Expr:
        own = iter(i)
        return function(
            source[tuple(axes[n] if n in axes else next(own) for n in range(3))],
            list(axes.values()),
        )

    out = tuple(shape[n] for n in kept)
    total = te.compute(out, element, name="total")
    if rng.random() < 0.5:
        return [a, total]
    return [a, te.compute(out, mapping(rng, total), name="after")]


def where(rng: Random) -> Args:
    """A triangular reduction: its condition depends on the result's index."""
    n, m = sizes(rng, 2)
    a = te.placeholder((n, m), rng.choice(DTYPES), "A")
    k = te.reduce_axis((0, m), "k")
    total = te.compute((n,), lambda i: te.sum(a[i, k], k, where=k.var <= i), name="total")
    return [a, te.compute((n,), lambda i: total[i] + 1, name="after")]


def matmul(rng: Random) -> Args:
    n, m, depth = (rng.choice(SIZES[:10]) for _ in range(3))
    dtype = rng.choice(("float32", "int32", "float64"))
    a = te.placeholder((n, depth), dtype, "A")
    b = te.placeholder((depth, m), dtype, "B")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    if rng.random() < 0.4:
        return [a, b, c]
    bias = te.placeholder((m,), dtype, "bias")
    d = te.compute((n, m), lambda i, j: c[i, j] + bias[j], name="D")
    e = te.compute((n, m), lambda i, j: te.maximum(d[i, j], 0), name="E")
    return [a, b, bias, e]


def conv2d(rng: Random) -> Args:
    """Padding by a guarded load, stride, dilation, several channels."""
    ci, co, h, w = rng.randint(1, 3), rng.randint(1, 4), rng.randint(3, 7), rng.randint(3, 7)
    kh, kw, pad = rng.randint(1, 3), rng.randint(1, 3), rng.randint(0, 2)
    stride, dilation = rng.randint(1, 2), rng.randint(1, 2)
    x = te.placeholder((ci, h, w), "float32", "X")
    f = te.placeholder((co, ci, kh, kw), "float32", "F")
    p = te.compute(
        (ci, h + 2 * pad, w + 2 * pad),
        lambda c, i, j: te.if_then_else(
            te.all_of(i >= pad, i < h + pad, j >= pad, j < w + pad), x[c, i - pad, j - pad], 0
        ),
        name="P",
    )
    oh = (h + 2 * pad - dilation * (kh - 1) - 1) // stride + 1
    ow = (w + 2 * pad - dilation * (kw - 1) - 1) // stride + 1
    if oh < 1 or ow < 1:
        return conv2d(rng)
    c, ky, kx = te.reduce_axis(ci, "c"), te.reduce_axis(kh, "ky"), te.reduce_axis(kw, "kx")
    y = te.compute(
        (co, oh, ow),
        lambda o, i, j: te.sum(
            p[c, i * stride + ky * dilation, j * stride + kx * dilation] * f[o, c, ky, kx],
            (c, ky, kx),
        ),
        name="Y",
    )
    return [x, f, te.compute((co, oh, ow), lambda *i: te.maximum(y[i], 0), name="R")]


def pool(rng: Random) -> Args:
    n, k, s = rng.randint(4, 12), rng.randint(1, 3), rng.randint(1, 3)
    x = te.placeholder((n, n), rng.choice(DTYPES), "X")
    b = te.compute((n, n), lambda i, j: x[i, j] + 1, name="B")
    ky, kx = te.reduce_axis(k, "ky"), te.reduce_axis(k, "kx")
    out = (n - k) // s + 1
    best = te.compute(
        (out, out), lambda i, j: te.max(b[i * s + ky, j * s + kx], (ky, kx)), name="best"
    )
    return [x, te.compute((out, out), lambda i, j: best[i, j] * 2, name="C")]


def rearranged(rng: Random) -> Args:
    """Accesses that are no plain iterations: transposed, reversed, strided, flattened, joined."""
    n, m = sizes(rng, 2, 150)
    a = te.placeholder((n, m), rng.choice(DTYPES), "A")
    b = te.compute((n, m), lambda i, j: a[i, j] + 1, name="B")
    match rng.randrange(6):
        case 0:
            c = te.compute((m, n), lambda i, j: b[j, i], name="C")
        case 1:
            c = te.compute((n, m), lambda i, j: b[n - 1 - i, m - 1 - j], name="C")
        case 2:
            c = te.compute(((n + 1) // 2, m), lambda i, j: b[i * 2, j], name="C")
        case 3:
            c = te.compute((n * m,), lambda i: b[i // m, i % m], name="C")
        case 4:
            c = te.compute(
                (n, 2 * m),
                lambda i, j: te.if_then_else(j < m, b[i, j], a[i, j - m] * 2),
                name="C",
            )
        case _:
            c = te.compute((n,), lambda i: b[i, i % m] + b[0, 0], name="C")
    return [a, te.compute(c.shape, lambda *i: c[i] * 2, name="D")]


def two_outputs(rng: Random) -> Args:
    """One operation with two results, both used."""
    shape = sizes(rng, 2)
    a = te.placeholder(shape, rng.choice(DTYPES), "A")
    both = te.compute(shape, lambda *i: (a[i] + 1, a[i] * 2), name="B")
    if rng.random() < 0.3 and shape[-1] > 1:  # of the second result, a neighbour's
        c = te.compute(
            (shape[0], shape[1] - 1), lambda i, j: both[0][i, j] + both[1][i, j + 1], name="C"
        )
    else:
        c = te.compute(shape, lambda *i: both[0][i] + both[1][i], name="C")
    return [a, *both, c] if rng.random() < 0.5 else [a, c]


def normalized(rng: Random) -> Args:
    """Two reductions over the same rows, each needed at every element (softmax's shape)."""
    n, m = sizes(rng, 2)
    a = te.placeholder((n, m), rng.choice(("float32", "int32")), "A")
    k, r = te.reduce_axis(m, "k"), te.reduce_axis(m, "r")
    top = te.compute((n,), lambda i: te.max(a[i, k], k), name="top")
    below = te.compute((n, m), lambda i, j: top[i] - a[i, j], name="below")
    total = te.compute((n,), lambda i: te.sum(below[i, r], r), name="total")
    return [a, te.compute((n, m), lambda i, j: below[i, j] + total[i], name="out")]


def scalar(rng: Random) -> Args:
    """A result without dimensions, and its use."""
    (n,) = sizes(rng, 1)
    a = te.placeholder((n,), rng.choice(DTYPES), "A")
    k = te.reduce_axis(n, "k")
    total = te.compute((), lambda: te.sum(a[k], k), name="total")
    return [a, te.compute((n,), lambda i: a[i] + total[()], name="B")]


PROGRAMS: tuple[Callable[[Random], Args], ...] = (
    elementwise,
    diamond,
    stencil,
    stencil_2d,
    reduction,
    where,
    matmul,
    conv2d,
    pool,
    rearranged,
    two_outputs,
    normalized,
    scalar,
)


def random_program(rng: Random) -> PrimFunc:
    return te.create_prim_func(rng.choice(PROGRAMS)(rng))


def random_data(func: PrimFunc, rng: Random) -> list[NDArray[Any]]:
    """An array per parameter: integers of either sign (unsigned ones: none below 0)."""
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    sizes = {v: const(rng.randint(1, 9)) for v in given_vars(func)}
    return [
        numbers.integers(
            0 if p.dtype.startswith("u") else -4,
            5,
            fixed([dim(substitute(expr(n), sizes)) for n in p.shape]),
        ).astype(numpy_dtype(p.dtype))
        for p in func.params
        if not isinstance(p, Var)
    ]


def fixed(shape: Sequence[int | Expr]) -> tuple[int, ...]:
    """A shape that is known to be constant."""
    assert all(isinstance(extent, int) for extent in shape)
    return tuple(int(extent) for extent in shape)  # type: ignore[arg-type]
