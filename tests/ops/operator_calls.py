"""Random calls of operators: shapes with ones and primes, strides, pads, dilations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy.graph import BlockBuilder
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ops import evaluate, frozen_attrs
from mlc_deploy.ops.plan import Plan
from mlc_targets import Target
from tests.ops.planned import laid_out, plan_for, types_of

Array = NDArray[Any]
SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 24, 32, 33)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator on arrays; with weights, which a plan may want packed, or by a plan."""

    op: str
    arrays: tuple[Array, ...]
    attrs: dict[str, Any]
    weights: bool = False
    plan: Plan | None = None

    def __str__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return f"{self.op}({shapes}) {self.attrs}"

    def expected(self) -> tuple[Array, ...]:
        return evaluate(self.op, self.arrays, self.attrs)

    def lowered(self, target: Target, name: str) -> tuple[PrimFunc, tuple[Array, ...]]:
        """The scheduled function, and the arrays that it takes."""
        arrays, attrs, plan = self.arrays, self.attrs, self.plan
        if self.weights:
            plan = plan_for(self.op, types_of(arrays), attrs, target, planes=True)
            if plan is not None:
                arrays, attrs = laid_out(plan, arrays), plan.attrs
        builder = BlockBuilder(name)
        params = [builder.param(f"p{n}", a.shape, str(a.dtype)) for n, a in enumerate(arrays)]
        made = builder.emit(Call(self.op, tuple(params), frozen_attrs(attrs), plan))
        function = builder.finish(list(made) if isinstance(made, tuple) else [made])
        return lower_fused(function, target, name), arrays


def close(actual: Array, wanted: Array) -> bool:
    """The contract's numbers: floats within a small error, everything else exactly."""
    if wanted.dtype.kind != "f":
        return bool(np.array_equal(actual, wanted))
    relative, absolute = (5e-3, 2e-3) if wanted.dtype == np.float16 else (1e-4, 2e-5)
    x, y = actual.astype(np.float64), wanted.astype(np.float64)
    most = float(np.max(np.abs(y), initial=0, where=np.isfinite(y)))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= relative * np.abs(y) + absolute * most
    return bool(np.all(same | (near & np.isfinite(y))))


def array(rng: Random, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    if dtype.startswith("float"):
        return numbers.standard_normal(shape).astype(dtype)
    return numbers.integers(0 if dtype.startswith("u") else -9, 10, shape).astype(dtype)


def with_specials(rng: Random, x: Array) -> Array:
    """x, integers, or whole floats: many are equal, and a part of the floats is NaN or infinite."""
    x = x.round()
    if x.dtype.kind == "f":
        flat = x.reshape(-1)
        for n in range(flat.size):
            if rng.random() < 0.25:
                flat[n] = rng.choice((np.nan, np.inf, -np.inf, -0.0))
    return x


def size(rng: Random, most: int = 40) -> int:
    return rng.choice([n for n in SIZES if n <= most])


def conv2d(rng: Random) -> OperatorCall:
    groups = rng.choice((1, 1, 1, 1, 2, 3))
    per, out = rng.choice((1, 2, 3, 5, 8)), rng.choice((1, 2, 3, 5, 8, 12, 17))
    channels, filters = per * groups, out * groups
    if rng.random() < 0.2:  # depthwise
        groups = channels = filters = rng.choice((1, 3, 4, 8, 13))
        per = 1
    kernel = rng.choice(((1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (2, 2), (7, 1)))
    strides = rng.choice(((1, 1), (1, 1), (2, 2), (1, 2), (3, 3)))
    dilations = rng.choice(((1, 1), (1, 1), (2, 2), (1, 2)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = rng.choice(((0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 2, 0), (2, 2, 2, 2), (1, 0, 0, 1)))
    data = tuple(r + rng.choice((0, 1, 2, 4, 6, 9, 12)) for r in reach)
    return OperatorCall(
        "conv2d",
        (
            array(rng, (rng.choice((1, 1, 2)), channels, *data)),
            array(rng, (filters, per, *kernel)),
        ),
        {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups},
        weights=rng.random() < 0.8,
    )


def dense(rng: Random) -> OperatorCall:
    rows, depth, columns = size(rng, 17), size(rng), size(rng)
    transposed = rng.random() < 0.5
    w = (columns, depth) if transposed else (depth, columns)
    return OperatorCall(
        "dense",
        (array(rng, (rows, depth)), array(rng, w)),
        {"transpose_b": transposed},
        weights=rng.random() < 0.8,
    )


def matmul(rng: Random) -> OperatorCall:
    rows, depth, columns, batch = size(rng, 17), size(rng), size(rng), rng.choice((1, 2, 3))
    dtype = rng.choice(("float32", "float32", "float64", "int32"))
    a, b = rng.choice((((), ()), ((batch,), (batch,)), ((batch, 2), (2,)), ((batch,), ())))
    return OperatorCall(
        "matmul",
        (array(rng, (*a, rows, depth), dtype), array(rng, (*b, depth, columns), dtype)),
        {},
    )


def pooling(rng: Random) -> OperatorCall:
    kernel = rng.choice(((2, 2), (3, 3), (1, 3), (3, 2)))
    dilations = rng.choice(((1, 1), (1, 1), (2, 1)))
    pads = rng.choice(((0, 0, 0, 0), (0, 0, 0, 0), (0, 1, 0, 1)))
    if kernel[1] < 2:
        pads = (0, 0, 0, 0)
    op = rng.choice(("max_pool", "avg_pool"))
    dtype = rng.choice(("float32", "int8")) if op == "max_pool" else "float32"
    attrs: dict[str, Any] = {
        "kernel": kernel,
        "strides": rng.choice(((1, 1), (2, 2), (2, 1), (3, 3))),
        "dilations": dilations,
        "pads": pads,
        "ceil_mode": rng.random() < 0.3,
    }
    if op == "avg_pool":
        attrs["count_include_pad"] = rng.random() < 0.5
    shape = (rng.choice((1, 2)), size(rng, 8), rng.randint(5, 14), rng.randint(5, 14))
    return OperatorCall(op, (array(rng, shape, dtype),), attrs)


def reduction(rng: Random) -> OperatorCall:
    rank = rng.randint(1, 4)
    shape = tuple(size(rng, 17 if rank < 4 else 8) for _ in range(rank))
    op = rng.choice(("sum", "mean", "max", "min", "argmax", "softmax", "log_softmax"))
    x = (array(rng, shape),)
    axis = rng.randrange(rank)
    if op in ("softmax", "log_softmax"):
        return OperatorCall(op, x, {"axis": axis})
    if op == "argmax":
        flags = {key: rng.random() < 0.5 for key in ("keepdims", "last", "skips_nan")}
        return OperatorCall(op, (with_specials(rng, x[0]),), {"axis": axis, **flags})
    axes = tuple(rng.sample(range(rank), rng.randint(1, rank)))
    return OperatorCall(op, x, {"axes": axes, "keepdims": rng.random() < 0.5})


def broadcast(rng: Random) -> OperatorCall:
    rank = rng.randint(0, 4)
    shape = tuple(size(rng, 24 if rank < 3 else 8) for _ in range(rank))
    other = tuple(1 if rng.random() < 0.4 else n for n in shape)[rng.randint(0, rank) :]
    dtype = rng.choice(("float32", "float16", "int8", "int32", "uint8", "float64"))
    op = rng.choice(("add", "subtract", "multiply", "maximum", "less"))
    sides = [array(rng, shape, dtype), array(rng, other, dtype)]
    rng.shuffle(sides)
    return OperatorCall(op, tuple(sides), {})


def unary(rng: Random) -> OperatorCall:
    shape = tuple(size(rng) for _ in range(rng.randint(0, 3)))
    op = rng.choice(("relu", "sigmoid", "tanh", "exp", "erf", "sqrt", "softplus", "mish", "gelu"))
    x = array(rng, shape)
    attrs = {"approximate": rng.choice(("none", "tanh"))} if op == "gelu" else {}
    return OperatorCall(op, (np.abs(x) if op == "sqrt" else x,), attrs)


CALLS: dict[str, Callable[[Random], OperatorCall]] = {
    "conv2d": conv2d,
    "dense": dense,
    "matmul": matmul,
    "pooling": pooling,
    "reduction": reduction,
    "broadcast": broadcast,
    "unary": unary,
}
