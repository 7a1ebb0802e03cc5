"""Floats that are quantized and dequantized at once: which stay floats, and the same ones."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import PrimFunc
from mlc_deploy.ir import contents
from mlc_deploy.lower.machine import bind_target
from mlc_deploy.lower.machine.quantized import clamp_floats
from mlc_deploy.script import from_script
from mlc_rpc import Session

X86, CAST = "x86_64 -mcpu=haswell", "Cast"


def program(zero: int = 3, less: int = 3, low: int = -128, dtype: str = "int8") -> PrimFunc:
    """Sixteen floats at a time, as whole numbers and back."""
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")):
    for k in range(16):
        B[T.Ramp(k * 16, 1, 16)] = T.Cast("float32x16", T.Cast("int32x16", T.Cast("{dtype}x16",
            T.min(T.max(T.nearbyint(A[T.Ramp(k * 16, 1, 16)]) + T.Broadcast(T.float32({zero}), 16),
                        T.Broadcast(T.float32({low}), 16)),
                  T.Broadcast(T.float32({low + 255}), 16)))) - T.Broadcast({less}, 16))
""")
    assert isinstance(func, PrimFunc)
    return func


def casts(func: PrimFunc, target: str) -> bool:
    done = clamp_floats(bind_target(func, mlc.Target(target)))
    return any(kind.__name__ == CAST for kind in contents(done.body).kinds)


def test_what_stays_floats() -> None:
    assert not casts(program(), "aarch64") and not casts(program(), X86)
    assert not casts(program(0, 7), X86)
    assert not casts(program(128, 128, 0, "uint8"), X86)


def test_what_is_left_alone() -> None:
    assert casts(program(), "armv7a") and casts(program(), "x86_64 -mcpu=nehalem")
    assert casts(program(low=-100), X86)  # no range of int8: the cast may not fit


@pytest.mark.parametrize(
    ("zero", "less", "low", "dtype"),
    [(3, 3, -128, "int8"), (0, 7, -128, "int8"), (128, 128, 0, "uint8"), (-5, 11, -128, "int8")],
)
def test_the_same_numbers(local: Session, zero: int, less: int, low: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = np.concatenate([rng.normal(0, 150, 160), np.arange(-48, 48) / 2]).astype(np.float32)
    a[:4] = 1e30, -1e30, np.inf, -np.inf
    right = np.clip(np.rint(a) + zero, low, low + 255) - less
    with closing(local.load(mlc.build(program(zero, less, low, dtype), target="host"))) as module:
        x, y = local.tensor(a), local.tensor(np.zeros(256, np.float32))
        module["main"](x, y)
        np.testing.assert_array_equal(y.numpy(), right.astype(np.float32))
