"""Functions of a few calls for the tests of passes, and what a pass makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Call, Constant, Function, Value, evaluate, optimize

Build = Callable[[BlockBuilder, Any], Any]
Pass = Callable[[Function], Function]


def built(build: Build, shape: Sequence[int] = (1, 4, 5, 5), dtype: str = "float32") -> Function:
    """What build makes of a parameter; it gives one value or a list of them."""
    b = BlockBuilder()
    made = build(b, b.param("x", shape, dtype))
    return b.finish(made if isinstance(made, list) else [made])


def ops(function: Function) -> str:
    """The operators in their order."""
    return " ".join(b.call.op for b in function.bindings if isinstance(b.call, Call))


def number(value: float, dtype: str = "float32", shape: Sequence[int] = ()) -> Constant:
    return Constant(np.full(tuple(shape), value, dtype))


def drawn(*shape: int, seed: int = 0) -> Constant:
    return Constant(np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32))


def inputs_of(function: Function, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        rng.normal(0, 1 if p.type.dtype.startswith("float") else 9, p.type.shape).astype(  # type: ignore[arg-type]
            p.type.dtype
        )
        for p in function.params
    ]


def check(function: Function, *passes: Pass, error: float = 1e-5) -> Function:
    """The function after the passes, which must compute the same."""
    with mlc.PassContext(opt_level=4):
        result = optimize(function, passes)
    inputs = inputs_of(function)
    before, after = evaluate(function, inputs), evaluate(result, inputs)
    for name, expected in before.items():
        exact = expected.dtype.kind != "f"
        np.testing.assert_allclose(
            after[name], expected, rtol=0 if exact else 10 * error, atol=0 if exact else error
        )
    return result


def emit(op: str, *args: Value | str, **attrs: Any) -> Build:
    """One call, in which "x" is the parameter."""
    return lambda b, x: b.emit(op, *(x if isinstance(a, str) else a for a in args), **attrs)
