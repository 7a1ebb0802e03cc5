"""Elementary functions against float64, over every float32 there is: exponents and signs evenly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.driver.build import build
from mlc_deploy.ir import IRModule
from mlc_rpc import Session
from tests.codegen.operators import ULPS
from tests.sessions import TARGETS, board_named

Array = NDArray[Any]

REFERENCE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
}
TINY = np.finfo(np.float32).tiny  # the smallest normal number


def arguments() -> Array:
    """Random bit patterns; numbers where the functions bend; multiples of pi/2; infinities, nan,
    zeros, denormals."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 1 << 32, 40_000, np.uint32).view(np.float32)
    spans = (0.01, 1, 20, 110, 2e4)
    bent = np.concatenate([rng.uniform(-s, s, 8_000) for s in spans]).astype(np.float32)
    turns = (rng.integers(-(1 << 13), 1 << 13, 8_000) * (np.pi / 2)).astype(np.float32)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.625, 88.72284, -87.33655, -103.97, -104.1]
    close = np.array([np.nextafter(np.float32(e), np.float32(t)) for e in edges for t in (-9, 9)])
    some = [TINY, -TINY, TINY / 2, np.float32(1e-45), -np.float32(1e-45), np.finfo(np.float32).max]
    return np.concatenate([bits, bent, turns, np.array(edges + some, np.float32), close])


def ulps(actual: Array, wanted: Array) -> Array:
    """Distance from the exact result in units of the last place of its float32; 0 where both are
    the same infinity or no number."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32)
        step = np.spacing(np.minimum(np.abs(rounded), np.finfo(np.float32).max))
        error = np.abs(actual.astype(np.float64) - wanted) / step
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    return np.where(same, 0, error)


@pytest.mark.parametrize("board", TARGETS)
def test_error_of_elementary_functions(board: str, request: pytest.FixtureRequest) -> None:
    """On 32-bit NEON denormal arguments and results count as 0, and results of expm1 below
    2^-125."""
    session = board_named(request, board)
    x = arguments()
    programs = {}
    for name in ULPS:
        a = te.placeholder(x.shape, "float32", "a")
        out = te.compute(x.shape, lambda i, a=a, name=name: getattr(te, name)(a[i]), name="out")
        programs[name] = te.create_prim_func([a, out], f"{name}_kernel")
    module = session.load(build(IRModule(programs), target=TARGETS[board], name="functions"))
    given = session.tensor(x)
    wrong: list[str] = []
    for name, reference in REFERENCE.items():
        result = session.tensor(np.zeros_like(x))
        module[f"{name}_kernel"](given, result)
        actual = result.numpy()
        with np.errstate(all="ignore"):
            wanted = reference(x.astype(np.float64))
            flushed = reference(np.where(np.abs(x) < TINY, np.copysign(0, x), x).astype(np.float64))
        off = ulps(actual, wanted)
        if board == "armv7":
            off = np.fmin(off, ulps(actual, flushed))
        least = 2 * TINY if board == "armv7" else 0.0
        off[(np.abs(wanted) < least) & (actual == 0)] = 0
        off[np.isnan(off)] = np.inf
        if not off.max() <= ULPS[name]:
            at = int(off.argmax())
            wrong.append(
                f"{name}({x[at]!r}): {actual[at]!r}, not {wanted[at]!r}: {off[at]:.2f} ulp"
            )
    module.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("board", ("local", "armv7", "aarch64"))
@pytest.mark.parametrize(("name", "most"), [("silu", 5e-7), ("gelu", 1.4e-6)])
def test_error_of_products(
    name: str, most: float, board: str, request: pytest.FixtureRequest
) -> None:
    """A part of the argument, over all finite ones; no number stays none."""
    session = board_named(request, board)
    x = arguments()
    x = x[~np.isinf(x)]
    actual = computed(session, name, x, TARGETS[board])
    error = np.abs(actual - PRODUCTS[name](x.astype(np.float64)))
    beyond = ~np.isnan(x) & ~(error <= most * np.abs(x) + 1e-30)
    assert not beyond.any(), (x[beyond][:3], actual[beyond][:3])
    assert np.isnan(actual[np.isnan(x)]).all()


@pytest.mark.parametrize(
    ("name", "of_result", "more"),
    [("sigmoid", 2e-3, 4e-5), ("silu", 2e-3, 3e-4), ("gelu", 3e-3, 5e-4)],
)
def test_error_of_functions_of_float16(name: str, of_result: float, more: float) -> None:
    """Over all there are, where a machine computes with them."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[~np.isinf(x)]
    target = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu"
    with mlc.connect("qemu://cortex-a76") as session:
        actual = computed(session, name, x, target).astype(np.float64)
    wanted = {**REFERENCE, **PRODUCTS}[name](x.astype(np.float64))
    beyond = ~np.isnan(x) & ~(np.abs(actual - wanted) <= of_result * np.abs(wanted) + more)
    assert not beyond.any(), (x[beyond][:3], actual[beyond][:3], wanted[beyond][:3])
    assert np.isnan(actual[np.isnan(x)]).all()


@pytest.mark.parametrize("board", ("local", "armv7", "aarch64"))
def test_the_far_ends_of_gelu_are_exact(board: str, request: pytest.FixtureRequest) -> None:
    x = np.array([-np.inf, -1e30, -4.714183, 4.714183, 1e30, np.inf], np.float32)
    actual = computed(board_named(request, board), "gelu", x, TARGETS[board])
    np.testing.assert_array_equal(actual, np.maximum(x, 0))


def silu(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x * REFERENCE["sigmoid"](x))


def gelu(x: Array) -> Array:
    with np.errstate(all="ignore"):  # 0 * inf of what is left far below
        return np.asarray(x / 2 * np.vectorize(math.erfc, otypes=[np.float64])(-x * 0.5**0.5))


PRODUCTS: dict[str, Callable[[Array], Array]] = {"silu": silu, "gelu": gelu}


def computed(session: Session, name: str, x: Array, target: str) -> Array:
    """A function of te, of each number."""
    a = te.placeholder(x.shape, x.dtype.name, "a")
    out = te.compute(x.shape, lambda i: getattr(te, name)(a[i]), name="out")
    func = te.create_prim_func([a, out], "function")
    module = session.load(build(func, target=target, name="function"))
    result = session.tensor(np.zeros_like(x))
    module["function"](session.tensor(x), result)
    found: Array = result.numpy()
    module.close()
    return found
