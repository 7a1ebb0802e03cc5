"""Stores of neighbouring vectors of bytes: which become one, and that they store the same."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import PrimFunc
from mlc_deploy.ir import IN_PLACE, Ramp, Store, statements, with_fields
from mlc_deploy.lower.machine import bind_target
from mlc_deploy.lower.machine.packs import join_packed_stores
from mlc_deploy.script import from_script
from mlc_rpc import Session

X86 = "x86_64 -mcpu=haswell"
ROUNDED = (
    'B[T.Ramp(k * 32 + {0}, 1, 8)] = T.Cast("int8x8", T.nearbyint(T.min(T.max('
    "A[T.Ramp(k * 32 + {0}, 1, 8)] * 0.5, T.Broadcast(T.float32(-128), 8)), "
    "T.Broadcast(T.float32(127), 8))))"
)


def program(*stores: str) -> PrimFunc:
    text = "\n        ".join(stores)
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "int8")):
    for k in range(8):
        {text}
""")
    assert isinstance(func, PrimFunc)
    return func


def rounded(*places: int) -> list[str]:
    return [ROUNDED.format(n) for n in places]


def widths(func: PrimFunc, target: str = X86) -> list[int]:
    """Lanes of each store."""
    joined = join_packed_stores(bind_target(func, mlc.Target(target)))
    stores = (s for s in statements(joined.body) if isinstance(s, Store))
    return [s.indices[0].lanes if isinstance(s.indices[0], Ramp) else 1 for s in stores]


@pytest.mark.parametrize(
    ("places", "lanes"),
    [
        ((0, 8, 16, 24), [32]),
        ((0, 8, 16), [16, 8]),
        ((0, 16), [8, 8]),
        ((8, 0), [8, 8]),
        ((0, 8, 24), [16, 8]),
    ],
)
def test_neighbours_become_one(places: tuple[int, ...], lanes: list[int]) -> None:
    assert widths(program(*rounded(*places))) == lanes


def test_registers_of_avx512() -> None:
    wide = [text.replace("8)", "16)").replace("x8", "x16") for text in rounded(0, 16)]
    assert widths(program(*wide), "x86_64 -mcpu=cascadelake") == [32]
    assert widths(program(*wide)) == [16, 16]


def test_what_is_left_alone() -> None:
    pair = program(*rounded(0, 8))
    assert widths(pair, "x86_64 -mcpu=nehalem") == widths(pair, "aarch64") == [8, 8]
    assert widths(with_fields(pair, attrs={**pair.attrs, IN_PLACE: True})) == [8, 8]
    read = 'B[T.Ramp(k * 32 + {0}, 1, 8)] = T.Cast("int8x8", A[T.Ramp(0, 1, 8)] + ' \
           'T.Cast("float32x8", B[T.Ramp(0, 1, 8)]))'  # fmt: skip
    assert widths(program(*(read.format(n) for n in (0, 8)))) == [8, 8]


def test_the_same_bytes(local: Session) -> None:
    func, rng = program(*rounded(0, 8, 16, 24)), np.random.default_rng(0)
    a = np.concatenate([rng.normal(0, 200, 192), np.arange(-32, 32)]).astype(np.float32)
    right = np.clip(np.rint(a * np.float32(0.5)), -128, 127).astype(np.int8)
    with closing(local.load(mlc.build(func, target="host"))) as module:
        x, y = local.tensor(a), local.tensor(np.zeros(256, np.int8))
        module["main"](x, y)
        np.testing.assert_array_equal(y.numpy(), right)
