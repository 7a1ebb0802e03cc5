"""Kernels of float16: where a target computes in it, where it only stores it, and how exact they
are. The contract's bound is held against float64, so that it is the sums' own error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.ir.interp import run
from mlc_deploy.ops.half import PART, WHOLE, arithmetic, part_of, tile_sum
from mlc_deploy.te import create_prim_func, placeholder
from mlc_targets import Target
from tests.ops.operator_calls import OperatorCall, array, close, dense, matmul
from tests.ops.test_blocks import convolution, in_blocks, pooling
from tests.ops.test_strategies import check

if TYPE_CHECKING:
    from mlc_rpc import Session

CORTEX_A76 = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu"
CORTEX_A7 = "llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7 -device=arm_cpu"
TARGETS = {
    "qemu://cortex-a76": CORTEX_A76,  # arithmetic
    "qemu://cortex-a72": "aarch64",  # storage
    "qemu://cortex-a7": CORTEX_A7,  # storage, and half as many registers
    "local://": "host",
}
CALLS = 2  # of each kind


@pytest.fixture(scope="module", params=TARGETS)
def board(request: pytest.FixtureRequest) -> Iterator[Session]:
    with mlc.connect(request.param) as session:
        yield session


def halved(call: OperatorCall) -> OperatorCall:
    return replace(call, arrays=tuple(a.astype(np.float16) for a in call.arrays))


def drawn(target: Target) -> list[OperatorCall]:
    lanes = target.lanes(arithmetic("float16", target))
    calls = []
    for n in range(CALLS):
        for kind in (convolution, pooling):
            call = halved(kind(Random(f"float16 {kind.__name__} {n}"), lanes))
            calls.append(in_blocks(call, target))
        calls += [halved(kind(Random(f"float16 {n}"))) for kind in (dense, matmul)]
    return calls


def test_kernels(board: Session) -> None:
    """Of random shapes, strides, pads, dilations and groups, in blocks and plain."""
    target = TARGETS[board.board]
    check(board, drawn(Target(target)), target)


# ---------------------------------------------------------------------------------- long sums


LONG: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "dense": ((64, 4608), (32, 4608), {"transpose_b": True}),
    "dense of one row": ((1, 4608), (512, 4608), {"transpose_b": True}),
    "matmul": ((24, 1009), (1009, 64), {}),  # which parts do not divide
    "conv2d 3x3": ((1, 512, 7, 7), (16, 512, 3, 3), {"pads": (1, 1, 1, 1)}),
    "conv2d 1x1": ((1, 1024, 7, 7), (64, 1024, 1, 1), {"pads": (0, 0, 0, 0)}),
    "conv2d 5x5": ((1, 64, 11, 12), (48, 64, 5, 5), {"pads": (2, 2, 2, 2)}),
}


def long_call(name: str) -> OperatorCall:
    data, weights, attrs = LONG[name]
    op = name.split()[0]
    if op == "conv2d":
        attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1} | attrs
    arrays = (array(Random(1), data), array(Random(2), weights))
    return halved(OperatorCall(op, arrays, attrs, weights=op == "dense"))


@pytest.fixture(scope="module")
def cortex_a76() -> Iterator[Session]:
    with mlc.connect("qemu://cortex-a76") as session:
        yield session


@pytest.mark.parametrize("name", LONG)
def test_long_sums_hold_the_contract(name: str, cortex_a76: Session) -> None:
    target = Target(CORTEX_A76)
    call = long_call(name)
    if call.op == "conv2d":
        call = in_blocks(call, target)
    result, _ = measured(call, cortex_a76, target)
    wide = replace(call, arrays=tuple(a.astype(np.float64) for a in call.arrays))
    (exact,) = wide.expected()
    bound = 5e-3 * np.abs(exact) + 2e-3 * np.abs(exact).max()
    assert np.all(np.abs(result - exact) <= bound)


def measured(call: OperatorCall, session: Session, target: Target) -> tuple[np.ndarray, int]:
    """(the result, executed instructions or 0 where none are counted)."""
    func, arrays = call.lowered(target, "measured")
    module = session.load(mlc.build(func, target=target))
    (wanted,) = call.expected()
    out = session.tensor(np.zeros_like(wanted))
    counts = module["measured"].profile(*(session.tensor(a) for a in arrays), out).counts
    module.close()
    return out.numpy(), counts[0].total if counts else 0


LONG_AND_OTHER = st.tuples(st.integers(1, 2 * PART + 5), st.sampled_from((1, 2, 9))) | st.tuples(
    st.integers(1, 12), st.just(2 * PART)
)


@settings(max_examples=15, deadline=None)
@given(LONG_AND_OTHER)
def test_parts_are_all_of_a_sum(extents: tuple[int, int]) -> None:
    """Ones are counted without error up to 2048, however the axes are cut."""
    long, other = extents
    x = placeholder((2, long, other), "float16", "x")
    k, j = te.reduce_axis((0, long), "k"), te.reduce_axis((0, other), "j")
    total = tile_sum((2,), lambda i: te.sum(x[i, k, j], (j, k), where=k.var >= 1), k, "total")
    func = create_prim_func([x, total])
    assert (part_of("total") in str(func)) == (long * other > WHOLE)
    result = np.zeros(2, np.float16)
    run(func, np.ones((2, long, other), np.float16), result)
    assert list(result) == [(long - 1) * other] * 2


# What a kernel may take, as instructions per multiply-accumulate of eight lanes.
LIMITS = {
    "matmul 256": ("dense", (256, 256), (256, 256), 1.22),
    "conv2d 3x3": ("conv2d", (1, 32, 16, 16), (32, 32, 3, 3), 1.2),
    "conv2d 1x1": ("conv2d", (1, 128, 14, 14), (64, 128, 1, 1), 1.25),
    "depthwise": ("conv2d", (1, 64, 24, 24), (64, 1, 3, 3), 1.8),
}


@pytest.mark.parametrize("name", LIMITS)
def test_instructions(name: str, cortex_a76: Session) -> None:
    if not cortex_a76.counting:
        pytest.skip("this QEMU takes no plugins, so nothing is counted")
    op, data, weights, limit = LIMITS[name]
    target = Target(CORTEX_A76)
    arrays = (array(Random(1), data), array(Random(2), weights))
    if op == "dense":
        call = halved(OperatorCall(op, arrays, {"transpose_b": True}, weights=True))
    else:
        pad, groups = weights[2] // 2, data[1] // weights[1]
        attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (pad,) * 4, "groups": groups}
        call = in_blocks(halved(OperatorCall(op, arrays, attrs)), target)
    result, instructions = measured(call, cortex_a76, target)
    (wanted,) = call.expected()
    assert close(result, wanted)
    products = wanted.size * int(np.prod(weights[1:]))
    assert instructions <= limit * products / 8


@pytest.mark.parametrize(
    ("target", "how"),
    [
        (CORTEX_A76, "arithmetic"),
        ("aarch64", "storage"),
        (CORTEX_A7, "storage"),
        ("armv7a", "software"),
        ("llvm -mtriple=armv8a-linux-gnueabihf -device=arm_cpu", "storage"),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell", "storage"),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids", "arithmetic"),
        ("llvm -mtriple=x86_64-linux-gnu", "software"),
        ("c -mtriple=aarch64-linux-gnu -mcpu=cortex-a76", "software"),
    ],
)
def test_how_targets_compute_float16(target: str, how: str) -> None:
    assert Target(target).float16 == how
