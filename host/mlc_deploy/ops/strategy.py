"""Strategies: which implementation of an operator a target takes.

A table by operator and target key; within a key the applicable implementation of the highest level
wins, and keys are tried in the target's order (`arm_cpu` before `cpu`). What no entry takes is
computed by the operator's own definition under the default schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_targets import Target

from .. import te
from ..ir import PrimFunc
from ..te import Tensor
from .arm_cpu import (
    conv2d,
    depthwise,
    gemm,
    int8_conv2d,
    int8_dense,
    int8_matmul,
    int8_taps,
    int8_windows,
    lookup,
    windows,
    winograd,
)
from .registry import Attrs, TensorType

Layout = Callable[[Sequence[TensorType], Attrs, Target], "dict[str, Any] | None"]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an operator.

    applies says whether it takes these inputs; compute states the operator in the stages that
    schedule expects, both for a target. The function that schedule gets begins with the operator's
    inputs, and elementwise stages may follow the operator's own (tile.inline_epilogue takes them).
    layout, where there is one, gives attributes that ask for packed weights (their layout_transform
    is inserted, and folded, by the graph); blocks those that ask for blocks of channels as well.
    needs says to users what it takes.
    """

    op: str
    key: str
    name: str
    level: int
    applies: Callable[[Sequence[Tensor], Attrs, Target], bool]
    compute: Callable[[Sequence[Tensor], Attrs, Target], Sequence[Tensor]]
    schedule: Callable[[PrimFunc, Attrs, Target], PrimFunc]
    layout: Layout | None = None
    blocks: Layout | None = None
    needs: str = ""


IMPLEMENTATIONS: tuple[Implementation, ...] = tuple(
    implementation
    for key in ("arm_cpu", "cpu")
    for implementation in (
        Implementation(
            "dense",
            key,
            "dense_tile",
            10,
            gemm.takes_packed,
            gemm.compute_dense,
            gemm.schedule_dense,
            gemm.dense_layout,
            needs="sizes that are known, constant weights",
        ),
        Implementation(
            "dense",
            key,
            "dense_int8",
            20,
            int8_dense.takes_packed,
            int8_dense.compute_dense,
            int8_dense.schedule_dense,
            int8_dense.dense_layout,
            needs="int8, k and channels in blocks of eight, constant weights",
        ),
        Implementation(
            "matmul",
            key,
            "matmul_tile",
            10,
            gemm.takes_matmul,
            gemm.compute_matmul,
            gemm.schedule_matmul,
            needs="sizes that are known, rows of the second matrix in whole vectors",
        ),
        Implementation(
            "matmul",
            key,
            "matmul_int8",
            20,
            int8_matmul.takes_matmul,
            int8_matmul.compute_matmul,
            int8_matmul.schedule_matmul,
            needs="int8, rows of the second matrix along k",
        ),
        Implementation(
            "conv2d",
            key,
            "conv2d_direct",
            10,
            gemm.takes_packed,
            gemm.compute_conv2d,
            gemm.schedule_conv2d,
            gemm.conv2d_layout,
            needs="sizes that are known, one group, constant weights",
        ),
        Implementation(
            "conv2d",
            key,
            "conv2d_depthwise",
            20,
            depthwise.is_depthwise,
            depthwise.compute_depthwise,
            depthwise.schedule_depthwise,
            needs="one filter for each channel, data in planes",
        ),
        Implementation(
            "conv2d",
            key,
            "conv2d_blocks",
            30,
            conv2d.takes_blocks,
            conv2d.compute_conv2d,
            conv2d.schedule_conv2d,
            blocks=conv2d.blocked_attrs,
            needs="floats, channels of a group in whole vectors (or a few), constant weights",
        ),
        Implementation(
            "conv2d",
            key,
            "conv2d_int8",
            30,
            int8_conv2d.takes_blocks,
            int8_conv2d.compute_conv2d,
            int8_conv2d.schedule_conv2d,
            blocks=int8_conv2d.blocked_attrs,
            needs="int8, channels of a group in blocks of eight (or a few), constant weights",
        ),
        Implementation(
            "conv2d",
            key,
            "conv2d_int8_taps",
            30,
            int8_taps.takes_depthwise,
            int8_taps.compute_depthwise,
            int8_taps.schedule_depthwise,
            needs="int8, one filter for each channel, neighbouring taps, sdot or AVX2",
        ),
        Implementation(
            "conv2d",
            key,
            "conv2d_int8_depthwise",
            30,
            int8_windows.takes_depthwise,
            int8_windows.compute_depthwise,
            int8_windows.schedule_depthwise,
            blocks=int8_windows.blocked_attrs,
            needs="8 bits, one filter for each channel, channels in blocks of eight",
        ),
        Implementation(
            "conv2d",
            key,
            "conv2d_depthwise_blocks",
            30,
            windows.takes_depthwise,
            windows.compute_depthwise,
            windows.schedule_depthwise,
            needs="floats, one filter for each channel, channels in whole vectors",
        ),
        Implementation(
            "lookup",
            key,
            "lookup_vectors",
            10,
            lookup.takes_rows,
            lookup.compute_lookup,
            lookup.schedule_lookup,
            needs="data in whole vectors",
        ),
        Implementation(
            "winograd_conv2d",
            key,
            "winograd_blocks",
            10,
            winograd.takes_blocks,
            winograd.compute_winograd,
            winograd.schedule_winograd,
            blocks=winograd.blocked_attrs,
            needs="a kernel of 3 x 3, and a lower cost than that of direct convolution",
        ),
        Implementation(
            "max_pool",
            key,
            "max_pool_blocks",
            10,
            windows.takes_pool,
            windows.compute_pool(te.max, average=False),
            windows.schedule_pool,
            blocks=windows.pool_layout,
            needs="channels in blocks, as the layer before has them",
        ),
        Implementation(
            "max_pool",
            key,
            "max_pool_int8",
            10,
            int8_windows.takes_pool,
            int8_windows.compute_pool,
            int8_windows.schedule_pool,
            blocks=int8_windows.pool_layout,
            needs="8 bits, channels in blocks of eight",
        ),
        Implementation(
            "avg_pool",
            key,
            "avg_pool_blocks",
            10,
            windows.takes_pool,
            windows.compute_pool(te.sum, average=True),
            windows.schedule_pool,
            blocks=windows.pool_layout,
            needs="channels in blocks, as the layer before has them",
        ),
    )
)


def candidates(op: str, target: Target) -> list[Implementation]:
    """The implementations a target may take, best first."""
    return [
        i
        for key in target.keys
        for i in sorted(IMPLEMENTATIONS, key=lambda i: -i.level)
        if i.op == op and i.key == key
    ]


def packed_attrs(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """Attributes with which the target would rather have the operator, its data plain, or None."""
    asked = (i.layout(types, attrs, target) for i in candidates(op, target) if i.layout)
    return next((wanted for wanted in asked if wanted is not None), None)


def blocked_attrs(
    op: str, types: Sequence[TensorType], attrs: Attrs, target: Target
) -> dict[str, Any] | None:
    """Attributes with which the target would rather have the operator, its data in blocks of
    channels, or None."""
    asked = (i.blocks(types, attrs, target) for i in candidates(op, target) if i.blocks)
    return next((wanted for wanted in asked if wanted is not None), None)


def choose(
    op: str, inputs: Sequence[Tensor], attrs: Attrs, target: Target
) -> Implementation | None:
    """The implementation that the target takes; None where the operator's own definition and the
    default schedule do."""
    taken = (i for i in candidates(op, target) if i.applies(inputs, attrs, target))
    return next(taken, None)
