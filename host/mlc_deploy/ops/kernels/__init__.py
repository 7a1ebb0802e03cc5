"""How operators are computed well on CPUs with vectors: ARM's, and x86-64 for a laptop's own.

All have the key `cpu`. ARM's own instructions are taken where a target has the key `arm_cpu`.
"""

from functools import partial

from ..strategy import implementations, register_implementation
from . import (
    conv2d,
    conv2d_int8,
    depthwise,
    int8_taps,
    int8_windows,
    lookup,
    products,
    windows,
    winograd,
)

BLOCKS = "channels in blocks, as the layer before has them"

for op, name, plan, level, needs in (
    ("dense", "dense_tile", products.plan_dense, 10, "sizes that are known, constant weights"),
    (
        "dense",
        "dense_int8",
        products.plan_dense_int8,
        20,
        "int8, k and channels in blocks of eight, constant weights",
    ),
    (
        "matmul",
        "matmul_tile",
        products.plan_matmul,
        10,
        "sizes that are known, rows of the second matrix in whole vectors",
    ),
    (
        "matmul",
        "matmul_int8",
        products.plan_matmul_int8,
        20,
        "int8, rows of the second matrix along k",
    ),
    (
        "conv2d",
        "conv2d_direct",
        conv2d.plan_planes,
        10,
        "sizes that are known, one group, constant weights",
    ),
    (
        "conv2d",
        "conv2d_depthwise",
        depthwise.plan_depthwise,
        20,
        "one filter for each channel, data in planes",
    ),
    (
        "conv2d",
        "conv2d_blocks",
        conv2d.plan_blocks,
        30,
        "floats, channels of a group in whole vectors (or a few), constant weights",
    ),
    (
        "conv2d",
        "conv2d_int8_taps",
        int8_taps.plan_depthwise,
        30,
        "int8, one filter for each channel, neighbouring taps, sdot or AVX2",
    ),
    (
        "conv2d",
        "conv2d_int8",
        conv2d_int8.plan_conv2d,
        30,
        "int8, channels of a group in blocks of eight (or a few), constant weights",
    ),
    (
        "conv2d",
        "conv2d_int8_depthwise",
        int8_windows.plan_depthwise,
        30,
        "8 bits, one filter for each channel, channels in blocks of eight",
    ),
    (
        "conv2d",
        "conv2d_depthwise_blocks",
        windows.plan_depthwise,
        30,
        "floats, one filter for each channel, channels in whole vectors",
    ),
    ("lookup", "lookup_vectors", lookup.plan_lookup, 10, "data in whole vectors"),
    ("max_pool", "max_pool_blocks", partial(windows.plan_pool, "max_pool"), 10, BLOCKS),
    (
        "max_pool",
        "max_pool_int8",
        int8_windows.plan_max_pool,
        10,
        "8 bits, channels in blocks of eight",
    ),
    ("avg_pool", "avg_pool_blocks", partial(windows.plan_pool, "avg_pool"), 10, BLOCKS),
):
    register_implementation(op, "cpu", name, plan, level, needs)
register_implementation(
    "conv2d",
    "cpu",
    "winograd_blocks",
    winograd.plan_winograd,
    40,
    "a kernel of 3 x 3, and a lower cost than that of direct convolution",
    "choose_winograd",
    winograd.reason,
)

OWN_IMPLEMENTATIONS = frozenset(implementations())  # users may register more
