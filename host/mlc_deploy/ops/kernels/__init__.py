"""How operators are computed well on CPUs with vectors: ARM's, and x86-64 for a laptop's own.

All have the key `cpu`. ARM's own instructions are taken where a target has the key `arm_cpu`.
"""

from functools import partial

from ..strategy import implementations, register_implementation
from . import (
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

_own = partial(register_implementation, key="cpu")
_own(
    "dense",
    name="dense_tile",
    plan=gemm.plan_dense,
    level=10,
    needs="sizes that are known, constant weights",
)
_own(
    "dense",
    name="dense_int8",
    plan=int8_dense.plan_dense,
    level=20,
    needs="int8, k and channels in blocks of eight, constant weights",
)
_own(
    "matmul",
    name="matmul_tile",
    plan=gemm.plan_matmul,
    level=10,
    needs="sizes that are known, rows of the second matrix in whole vectors",
)
_own(
    "matmul",
    name="matmul_int8",
    plan=int8_matmul.plan_matmul,
    level=20,
    needs="int8, rows of the second matrix along k",
)
_own(
    "conv2d",
    name="conv2d_direct",
    plan=gemm.plan_conv2d,
    level=10,
    needs="sizes that are known, one group, constant weights",
)
_own(
    "conv2d",
    name="conv2d_depthwise",
    plan=depthwise.plan_depthwise,
    level=20,
    needs="one filter for each channel, data in planes",
)
_own(
    "conv2d",
    name="winograd_blocks",
    plan=winograd.plan_winograd,
    level=40,
    needs="a kernel of 3 x 3, and a lower cost than that of direct convolution",
    switch="choose_winograd",
    reason=winograd.reason,
)
_own(
    "conv2d",
    name="conv2d_blocks",
    plan=conv2d.plan_blocks,
    level=30,
    needs="floats, channels of a group in whole vectors (or a few), constant weights",
)
_own(
    "conv2d",
    name="conv2d_int8_taps",
    plan=int8_taps.plan_depthwise,
    level=30,
    needs="int8, one filter for each channel, neighbouring taps, sdot or AVX2",
)
_own(
    "conv2d",
    name="conv2d_int8",
    plan=int8_conv2d.plan_conv2d,
    level=30,
    needs="int8, channels of a group in blocks of eight (or a few), constant weights",
)
_own(
    "conv2d",
    name="conv2d_int8_depthwise",
    plan=int8_windows.plan_depthwise,
    level=30,
    needs="8 bits, one filter for each channel, channels in blocks of eight",
)
_own(
    "conv2d",
    name="conv2d_depthwise_blocks",
    plan=windows.plan_depthwise,
    level=30,
    needs="floats, one filter for each channel, channels in whole vectors",
)
_own(
    "lookup",
    name="lookup_vectors",
    plan=lookup.plan_lookup,
    level=10,
    needs="data in whole vectors",
)
_own(
    "max_pool",
    name="max_pool_blocks",
    plan=partial(windows.plan_pool, "max_pool"),
    level=10,
    needs="channels in blocks, as the layer before has them",
)
_own(
    "max_pool",
    name="max_pool_int8",
    plan=int8_windows.plan_max_pool,
    level=10,
    needs="8 bits, channels in blocks of eight",
)
_own(
    "avg_pool",
    name="avg_pool_blocks",
    plan=partial(windows.plan_pool, "avg_pool"),
    level=10,
    needs="channels in blocks, as the layer before has them",
)

OWN_IMPLEMENTATIONS = frozenset(implementations())  # users may register more
