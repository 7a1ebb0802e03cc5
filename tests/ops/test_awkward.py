"""Every operator on awkward shapes, on every target: its loops, its object and the time that both
take are bounded, whatever the shape. Nothing is run; numbers are the matter of other tests.

`scripts/test --only schedules` draws many more.
"""

from __future__ import annotations

import time

import pytest

import mlc_deploy as mlc
from mlc_deploy.codegen import compile_kernel
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.ir import statements, walk
from mlc_deploy.lower import lower
from mlc_deploy.ops import OWN_OPERATORS
from mlc_deploy.ops.registry import TensorType
from mlc_targets import Target
from tests.ops.awkward import AwkwardCall
from tests.ops.awkward_calls import DRAWS, drawn

TARGETS = tuple(
    Target(text)
    for text in (
        "llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7 -device=arm_cpu",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -device=arm_cpu",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu",
        "llvm -mtriple=aarch64-linux-gnu -mattr=+neon,+dotprod,+i8mm -device=arm_cpu",
        "x86-64",
    )
)
# Some twice what the largest takes of a thousand kernels that were drawn.
MOST_STATEMENTS = 10_000
MOST_NODES = 250_000  # distinct ones
MOST_BYTES = 1 << 17  # of code
MOST_SECONDS = 30  # of this process' own time: against explosions, not a measurement
# Operators that are drawn more often, since they have schedules of their own.
SCHEDULED = (
    "avg_pool",
    "conv2d",
    "conv_nd",
    "dense",
    "dense_blocks",
    "lookup",
    "matmul",
    "max_pool",
)
FEW, MANY, MORE = 1, 30, 5


def check(op: str, number: int) -> None:
    """One call, on one of the targets."""
    call, target = drawn(op, number), TARGETS[number % len(TARGETS)]
    began = time.process_time()
    scheduled = lower_fused(call.function(target, number % 3 > 0), target, "call")
    kernel = lower(scheduled, target)
    found = {
        "statements": (sum(1 for _ in statements(kernel.machine)), MOST_STATEMENTS),
        "nodes": (sum(1 for _ in walk(kernel.machine)), MOST_NODES),
        "bytes": (len(compile_kernel(kernel, target).code), MOST_BYTES),
        "seconds": (time.process_time() - began, MOST_SECONDS),
    }
    too_much = {name: n for name, (n, most) in found.items() if n > most}
    assert not too_much, f"{call}, call {number} on {target}: {too_much}"


def test_every_operator_is_drawn() -> None:
    assert set(DRAWS) == OWN_OPERATORS


def numbers(op: str, count: int) -> range:
    """Of the calls of an operator, so that every target has its share."""
    first = sorted(OWN_OPERATORS).index(op)
    return range(first, first + count * (MORE if op in SCHEDULED else 1))


@pytest.mark.parametrize("op", sorted(OWN_OPERATORS))
def test_kernels_are_bounded(op: str) -> None:
    for number in numbers(op, FEW):
        check(op, number)


@pytest.mark.parametrize("op", ["conv2d", "conv_nd", "dense", "matmul", "avg_pool"])
def test_schedules_keep_to_the_limit(op: str) -> None:
    """Also to one that is lower than usual: lowering, which refuses more copies, refuses none."""
    with mlc.PassContext(config={"lower.unroll_limit": 40}):
        for number in numbers(op, FEW):
            check(op, number)


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "rms_norm"])
def test_rows_of_nothing(op: str) -> None:
    attrs = {"axes": (1,), "epsilon": 1e-5} if op == "rms_norm" else {"axis": 1}
    check_compiles(AwkwardCall(op, (TensorType((0, 31, 2), "float32"),), attrs))


def check_compiles(call: AwkwardCall) -> None:
    for target in TARGETS:
        func = lower_fused(call.function(target, True), target, "call")
        compile_kernel(lower(func, target), target)


@pytest.mark.parametrize("batch", [1, 12])
def test_images_of_one_pixel(batch: int) -> None:
    """Copied rows may have no loop of their own then, only the one over images."""
    types = (TensorType((batch, 1, 1, 1), "float32"), TensorType((1, 1, 1, 1), "float32"))
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    check_compiles(AwkwardCall("conv2d", types, attrs))


@pytest.mark.schedules
@pytest.mark.parametrize("op", sorted(OWN_OPERATORS))
def test_many_kernels_are_bounded(op: str) -> None:
    for number in numbers(op, MANY):
        check(op, number)
