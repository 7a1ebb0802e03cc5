"""Programs whose numbers in C are held against numpy's and LLVM's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_deploy.ir import Expr, PrimFunc, call, cast, const, dtype_of, numbers
from mlc_deploy.ops import compute, evaluate
from mlc_deploy.schedule import Schedule

Array = NDArray[Any]
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Program:
    """A function, its inputs, and what its outputs, the last parameters, must be."""

    func: PrimFunc
    inputs: Sequence[Array]
    expected: Sequence[Array]
    scalars: Sequence[int] = ()

    @property
    def name(self) -> str:
        return self.func.name


def values(shape: Sequence[int], dtype: str, seed: int = 0) -> Array:
    """Integers over their whole range, floats of moderate size."""
    rng = np.random.default_rng(seed)
    match dtype_of(dtype).kind:
        case "float":
            return rng.normal(0, 2, tuple(shape)).astype(dtype)
        case "bool":
            return rng.integers(0, 2, tuple(shape)).astype(bool)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, tuple(shape), dtype, endpoint=True)


def placeholders(arrays: Sequence[Array]) -> list[te.Tensor]:
    return [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]


def each(
    name: str,
    inputs: Sequence[Array],
    element: Callable[..., Any],
    reference: Callable[..., Any] | None = None,
) -> Program:
    """element(*elements of the inputs) at every place; what it is in numpy, unless it is the same
    there, is `reference`."""
    with np.errstate(all="ignore"):
        expected = np.asarray((reference or element)(*inputs))
    tensors = placeholders(inputs)
    out = te.compute(expected.shape, lambda *i: element(*(t[i] for t in tensors)), "y")
    assert out.dtype == expected.dtype, f"{name} is {out.dtype}, {expected.dtype} in numpy"
    return Program(te.create_prim_func([*tensors, out], name), inputs, [expected])


def operator(op: str, inputs: Sequence[Array], **attrs: Any) -> Program:
    """An operator of the library, against its numpy definition."""
    tensors = placeholders(inputs)
    func = te.create_prim_func([*tensors, *compute(op, tensors, attrs)], op)
    return Program(func, inputs, evaluate(op, inputs, attrs))


def arithmetic() -> list[Program]:
    found = []
    for dtype in (*INTEGERS, *FLOATS):
        a, b = values((3, 37), dtype, 1), values((3, 37), dtype, 2)
        found += [
            each(f"sum_{dtype}", [a, b], lambda x, y: x * y + (x - y)),
            each(f"min_{dtype}", [a, b], te.minimum, np.minimum),
            each(f"max_{dtype}", [a, b], lambda x, y: te.maximum(x, y) - y, _above),
            each(f"less_{dtype}", [a, b], lambda x, y: te.select(x < y, x, y), np.minimum),
        ]
    for dtype in INTEGERS:
        a, b = values((130,), dtype, 3), values((130,), dtype, 4)
        found.append(each(f"bits_{dtype}", [a, b], lambda x, y: (x & y) ^ (x | 5)))
    return found


def _above(x: Array, y: Array) -> Array:
    above: Array = np.maximum(x, y) - y
    return above


def by_seven(x: Expr) -> Expr:
    """A number beside few bits would widen them."""
    two, seven = te.const(2, x.dtype), te.const(7, x.dtype)
    return x // seven * two + x % seven


def divisions() -> list[Program]:
    found = []
    for dtype in INTEGERS:
        a, b = values((257,), dtype, 5), values((257,), dtype, 6)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        few = np.array([0, 1, low, high, 7, *(-1, -7, low + 1) * (low < 0)], dtype)
        both = np.meshgrid(few, few)
        a, b = (np.concatenate([each_, m.ravel()]) for each_, m in zip((a, b), both, strict=True))
        found += [
            each(f"floordiv_{dtype}", [a, b], lambda x, y: x // y, numbers.floor_quotient),
            each(f"floormod_{dtype}", [a, b], lambda x, y: x % y, numbers.floor_remainder),
            each(f"by_seven_{dtype}", [a], by_seven, lambda x: x // 7 * 2 + x % 7),
            each(f"truncmod_{dtype}", [a, b], te.truncmod, numbers.remainder),
            each(f"truncdiv_{dtype}", [a, b], te.truncdiv, numbers.quotient),
        ]
    return found


def beyond() -> list[Program]:
    """Floats that are out of an integer's range, or not quite."""
    found = []
    for source in FLOATS:
        some = [0.5, 0.7, 1, 1.5, 2.5, 126.9, 127.5, 128.5, 254.9, 255.5, 256.5, 300, 40000, 1e30]
        some += [2.0**n + d for n in (31, 32, 63, 64) for d in (-1, 0, 1)]
        every = [*some, np.inf, np.nan, *(-x for x in some), -np.inf]
        with np.errstate(over="ignore"):
            a = np.array(every * 2, source)
        for to in INTEGERS:
            found.append(
                each(
                    f"beyond_{source}_{to}",
                    [a],
                    lambda x, to=to: cast(to, x),
                    lambda x, to=to: numbers.converted(x, to),
                )
            )
    return found


def shifts() -> list[Program]:
    found = []
    for dtype in INTEGERS:
        a, b = values((130,), dtype, 3), values((130,), dtype, 4)
        b[::2] = np.resize(np.arange(70), 65)
        found += [
            each(f"left_{dtype}", [a, b], lambda x, y: x << y),
            each(f"right_{dtype}", [a, b], lambda x, y: (x >> y) ^ 1),
            each(f"few_{dtype}", [a, b], lambda x, y: (x << (y & 7)) ^ (x >> (y & 7))),
        ]
    return found


def rules() -> list[Program]:
    """What docs/reference/numbers.md defines."""
    return [*divisions(), *shifts(), *beyond()]


def casts() -> list[Program]:
    found = []
    wanted = {
        "float32": ("int8", "int32", "int64", "float16", "float64", "bool"),
        "float64": ("float16", "float32", "uint8"),
        "float16": ("float32", "float64", "int16", "bool"),
        "int32": ("int8", "uint8", "uint32", "int64", "float32", "float16", "bool"),
        "int64": ("int32", "uint16", "float64"),
        "uint8": ("int8", "int32", "float32", "bool"),
        "bool": ("uint8", "int32", "float32"),
    }
    for source, targets in wanted.items():
        for target in targets:
            a = values((65,), source, 7)
            found.append(
                each(
                    f"{source}_to_{target}",
                    [a],
                    lambda x, target=target: cast(target, x),
                    lambda x, target=target: x.astype(target),
                )
            )
    ties = np.array([2049, 2051, 65519.99, 65520, 1e9, 2**-25, 3 * 2**-25, -0.0, np.nan, np.inf])
    halves = np.concatenate([ties, np.arange(1, 60) * 2.0**-26])
    found.append(each("halves", [halves], lambda x: cast("float16", x), lambda x: x.astype("f2")))
    every = np.arange(1 << 16, dtype="uint16").view("float16")
    found.append(each("every_half", [every], lambda x: x + 0.0))
    found.append(each("widened", [every], lambda x: cast("float32", x), lambda x: x.astype("f4")))
    return found


def functions() -> list[Program]:
    plain = "exp sin cos tan tanh sqrt floor ceil trunc log".split()
    erf = np.vectorize(math.erf, otypes=[np.float64])
    found = []
    for dtype in FLOATS:
        a, b = values((70,), dtype, 8), abs(values((70,), dtype, 9)) + values((), dtype) ** 2
        for name in plain:
            x = b if name in ("sqrt", "log") else a
            found.append(each(f"{name}_{dtype}", [x], getattr(te, name), getattr(np, name)))
        found += [
            each(f"erf_{dtype}", [a], te.erf, lambda x, dtype=dtype: erf(x).astype(dtype)),
            each(f"sigmoid_{dtype}", [a], te.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
            each(f"nearbyint_{dtype}", [a * 2], te.nearbyint, np.rint),
            each(f"abs_{dtype}", [a], te.abs, np.abs),
            each(f"rsqrt_{dtype}", [b], te.rsqrt, lambda x: 1 / np.sqrt(x)),
            each(f"pow_{dtype}", [b, a], te.pow, np.power),
            each(f"fmod_{dtype}", [a, b], te.fmod, np.fmod),
            each(f"fma_{dtype}", [a, b], lambda x, y: te.fma(x, y, x), lambda x, y: x * y + x),
        ]
    return found


def specials() -> list[Program]:
    nan, one = np.float32(np.nan), np.float32(1)
    a = np.array([nan, one, nan, np.inf, -np.inf, 0], "float32")
    b = np.array([one, nan, nan, -1, np.inf, -1], "float32")
    constants = [0.1, 1e-45, -0.0, float("inf"), float("-inf"), 3.4e38, 16777217.0, -0.75]
    found = [
        each("nan_min", [a, b], te.minimum, np.minimum),
        each("nan_max", [a, b], te.maximum, np.maximum),
        each("unequal", [a], lambda x: te.not_(x < 1), lambda x: ~(x < 1)),
        each(
            "never", [values((9,), "uint8")], lambda x: te.select(x < 0, x, x ^ 1), lambda x: x ^ 1
        ),
    ]
    for source, to in (("float32", "int32"), ("float64", "int64"), ("int64", "float64")):
        found.append(
            each(
                f"bits_of_{source}",
                [values((9,), source)],
                lambda x, to=to: call("reinterpret", to, x),
                lambda x, to=to: x.view(to),
            )
        )
    zeros = np.zeros(4, "float32")
    for n, c in enumerate(constants):
        found.append(
            each(
                f"constant_{n}", [zeros], lambda x, c=c: x * x + c, lambda x, c=c: x + np.float32(c)
            )
        )
    for dtype in INTEGERS:
        low = np.iinfo(dtype).min
        found.append(
            each(
                f"lowest_{dtype}",
                [values((5,), dtype)],
                lambda x, low=low, dtype=dtype: x ^ const(low, dtype),
                lambda x, low=low: x ^ x.dtype.type(low),
            )
        )
    both = values((50,), "bool", 1), values((50,), "bool", 2)
    found += [
        each(
            "and_or",
            both,
            lambda x, y: te.any_of(te.all_of(x, te.not_(y)), y),
            lambda x, y: (x & ~y) | y,
        ),
        each("not_equal", both, lambda x, y: te.not_(x).equal(y), lambda x, y: x != y),
    ]
    return found


def operators() -> list[Program]:
    x, w = values((2, 6, 9, 7), "float32"), values((8, 3, 3, 3), "float32", 1)
    pads = {"pads": (1, 1, 1, 1), "dilations": (1, 1)}
    pool = {**pads, "kernel": (3, 3), "strides": (2, 2), "ceil_mode": False}
    return [
        operator("softmax", [values((5, 13), "float32")], axis=1),
        operator("conv2d", [x, w], **pads, groups=2, strides=(1, 2)),
        operator("max_pool", [x], **pool),
        operator("avg_pool", [x], **pool, count_include_pad=False),
    ]


def scheduled() -> list[Program]:
    """Reductions and schedules with vectors, unrolled loops, tails, threads and scratch."""
    a, b = values((13, 37), "float32"), values((37, 21), "float32", 1)
    found = [matmul("matmul", a, b, tile_matmul), matmul("matmul_plain", a, b, lambda s: None)]
    quantized = values((13, 37), "uint8"), values((37, 21), "int8", 1)
    found.append(matmul("matmul_int8", *quantized, tile_matmul))
    large = values((130, 257), "float32", 3)
    found.append(each("threads", [large], lambda x: x * 0.5 + 1.0, lambda x: x * 0.5 + 1))
    row = values((1, 21), "float32", 4)
    (r,) = placeholders([row])
    wide = te.compute((13, 21), lambda i, j: r[0, j] + cast("float32", i), "y")
    expected = row + np.arange(13, dtype="float32")[:, None]
    found.append(Program(te.create_prim_func([r, wide], "broadcast"), [row], [expected]))
    return [*found, *reductions(), symbolic(), gather(), named()]


def matmul(name: str, a: Array, b: Array, schedule: Callable[[Schedule], None]) -> Program:
    x, w = placeholders([a, b])
    total = "float32" if a.dtype.kind == "f" else "int32"
    k = te.reduce_axis((0, a.shape[1]), "k")
    out = te.compute(
        (a.shape[0], b.shape[1]),
        lambda i, j: te.sum(cast(total, x[i, k]) * cast(total, w[k, j]), axis=k),
        "y",
    )
    sch = Schedule(te.create_prim_func([x, w, out], name))
    schedule(sch)
    return Program(sch.func, [a, b], [a.astype(total) @ b.astype(total)])


def tile_matmul(sch: Schedule) -> None:
    """Tiles of 4 x 8 over extents that neither divides, k by 4 with a rest."""
    i, j, k = sch.get_loops("y")
    outer_i, inner_i = sch.split(i, [None, 4])
    outer_j, inner_j = sch.split(j, [None, 8])
    outer_k, inner_k = sch.split(k, [None, 4])
    sch.reorder(outer_i, outer_j, outer_k, inner_k, inner_i, inner_j)
    init = sch.decompose_reduction("y", outer_k)
    sch.vectorize(inner_j)
    sch.unroll(inner_i)
    sch.unroll(inner_k)
    sch.vectorize(sch.get_loops(init)[-1])
    sch.parallel(outer_i)


def reductions() -> list[Program]:
    found = []
    for dtype in ("float32", "int8", "uint16", "float16"):
        a = values((9, 5, 11), dtype, 12)
        x = placeholders([a])[0]
        for kind in ("sum", "max", "min"):
            p, q = te.reduce_axis((0, 9), "p"), te.reduce_axis((0, 11), "q")
            out = te.compute((5,), lambda i, k=kind, x=x, p=p, q=q: _reduced(k, x[p, i, q], p, q))
            func = te.create_prim_func([x, out], f"{kind}_of_{dtype}")
            wide = a.astype("float64") if a.dtype.kind == "f" else a
            expected = getattr(np, kind)(wide, axis=(0, 2)).astype(dtype)
            found.append(Program(func, [a], [expected]))
    return found


def _reduced(kind: str, x: Any, *axes: te.IterVar) -> Any:
    return getattr(te, kind)(x, axis=list(axes))


def symbolic() -> Program:
    n, m = te.var("n"), te.var("m")
    a, b = values((7, 19), "float32"), values((19,), "float32", 1)
    x = te.placeholder((n, m), "float32", "x0")
    y = te.placeholder((m,), "float32", "x1")
    k = te.reduce_axis((0, m), "k")
    rows = te.compute((n,), lambda i: te.sum(x[i, k] * y[k], axis=k), "rows")
    out = te.compute((n, m), lambda i, j: rows[n - 1 - i] + x[i, j // 2] * y[m - 1 - j], "y0")
    func = te.create_prim_func([x, y, rows, out], "symbolic")
    sums = a @ b
    expected = sums[::-1, None] + a[:, np.arange(19) // 2] * b[::-1]
    return Program(func, [a, b], [sums, expected], (7, 19))


def gather() -> Program:
    a, where = values((40,), "float32"), values((17,), "int64", 1) % 40
    x, at = placeholders([a, where])
    out = te.compute((17,), lambda i: x[at[i]] * 2.0, "y")
    return Program(te.create_prim_func([x, at, out], "gather"), [a, where], [a[where] * 2])


def named() -> Program:
    """Names that C has taken, or cannot spell."""
    a, b = values((6,), "float32"), values((6,), "float32", 1)
    x, y = te.placeholder((6,), "float32", "int"), te.placeholder((6,), "float32", "onnx::Conv.1")
    out = te.compute((6,), lambda i: te.exp(x[i]) - y[i], "2nd*/")
    return Program(te.create_prim_func([x, y, out], "exp"), [a, b], [np.exp(a) - b])


def repeated() -> list[Program]:
    """What stands in 2^20 places, or 200 operations deep."""

    def doubled(x: Any) -> Any:
        for _ in range(20):
            x = x + x
        return x

    def deep(x: Any) -> Any:
        total, times = x, (x - x, x, x + x)
        for n in range(200):
            total = total + times[n % 3]
        return total

    def guarded(x: Any) -> Any:
        big = doubled(x + x + x)
        return te.if_then_else(x > 0, big + doubled(x), x) + te.if_then_else(x < 1, big, doubled(x))

    def guarded_array(x: Array) -> Array:
        big = doubled(x + x + x)
        whole: Array = np.where(x > 0, big + doubled(x), x) + np.where(x < 1, big, doubled(x))
        return whole

    found = []
    for dtype in ("int8", "uint16", "int32", "int64", "float32", "float64"):
        x = np.arange(-8, 9).astype(dtype)
        found += [
            each(f"doubled_{dtype}", [x], doubled),
            each(f"deep_{dtype}", [x], deep),
            each(f"guarded_{dtype}", [x], guarded, guarded_array),
        ]
    return found


def all_programs() -> list[Program]:
    makers = (arithmetic, rules, casts, functions, specials, operators, scheduled, repeated)
    return [p for make in makers for p in make()]
