"""Fast implementations of operators on CPUs with vectors: ARM, and x86-64 for the host.

All have the key `cpu`. They use ARM's own instructions where a target has the key `arm_cpu`.
"""

from functools import partial

from ..strategy import implementations, register_implementation
from . import (
    attention,
    block_scaled,
    conv2d,
    conv2d_int8,
    conv2d_strips,
    interleaved_rows,
    lookup,
    products,
    taps,
    windows,
    winograd,
)

# Operator, name, plan, level, and what it needs, in the words of `mlc-deploy inspect`.
for op, name, plan, level, needs in (
    ("attention", "attention_tile", attention.plan_attention, 10,
     "floats, heads in whole vectors"),
    ("dense", "dense_tile", partial(products.plan_floats, "dense", True), 10,
     "sizes that are known, constant weights"),
    ("dense", "dense_of_data", partial(products.plan_floats, "dense", False), 5,
     "sizes that are known, floats"),
    ("dense", "dense_int8", partial(products.plan_integers, "dense"), 20,
     "int8, k and channels in blocks of eight, constant weights"),
    ("matmul", "matmul_tile", partial(products.plan_floats, "matmul", False), 10,
     "sizes that are known, rows of the second matrix in whole vectors"),
    ("matmul", "matmul_int8", partial(products.plan_integers, "matmul"), 20,
     "int8, rows of the second matrix along k"),
    ("dense_blocks", "dense_blocks_int8", block_scaled.plan_blocks, 10,
     "int8 data, sixteen columns or more, constant weights"),
    ("dense_blocks", "dense_blocks_floats", block_scaled.plan_floats, 10,
     "floats, sixteen columns or more, constant weights"),
    ("conv2d", "conv2d_direct", partial(conv2d.plan_planes, True), 10,
     "one group, constant weights"),
    ("conv2d", "conv2d_of_data", partial(conv2d.plan_planes, False), 5,
     "one group, floats, filters in a whole vector at least"),
    ("conv2d", "conv2d_depthwise", windows.plan_depthwise_planes, 20,
     "one filter for each channel, data in planes"),
    ("conv2d", "conv2d_blocks", conv2d.plan_blocks, 30,
     "floats, channels of a group in whole vectors (or a few), constant weights"),
    ("conv2d", "conv2d_strided", conv2d_strips.plan_strided, 35,
     "floats, strides, channels in whole vectors, a lower cost than without copying data"),
    ("conv2d", "conv2d_open", conv2d_strips.plan_open, 30,
     "as conv2d_blocks, data whose size is known only at run time"),
    ("conv2d", "conv2d_int8_taps", taps.plan_depthwise, 30,
     "int8, one filter for each channel, neighbouring taps, sdot"),
    ("conv2d", "conv2d_int8_interleaved_rows", interleaved_rows.plan_depthwise, 30,
     "8 bits, one filter for each channel, neighbouring rows, AVX2 or VNNI"),
    ("conv2d", "conv2d_int8", conv2d_int8.plan_conv2d, 30,
     "int8, channels of a group in blocks of eight (or a few), constant weights"),
    ("conv2d", "conv2d_depthwise_blocks", windows.plan_depthwise, 30,
     "one filter for each channel, channels in whole blocks"),
    ("lookup", "lookup_vectors", lookup.plan_lookup, 10, "data in whole vectors"),
    ("max_pool", "max_pool_blocks", partial(windows.plan_pool, "max_pool"), 10,
     "channels in blocks, as the layer before has them"),
    ("avg_pool", "avg_pool_blocks", partial(windows.plan_pool, "avg_pool"), 10,
     "channels in blocks, as the layer before has them"),
):  # fmt: skip
    register_implementation(op, "cpu", name, plan, level, needs)
register_implementation(
    "conv2d",
    "cpu",
    "winograd_blocks",
    winograd.plan_winograd,
    level=40,
    needs="a kernel of 3 x 3, and a lower cost than that of direct convolution",
    switch="choose_winograd",
    reason=lambda *call: winograd.decide(*call).reason,
)

OWN_IMPLEMENTATIONS = frozenset(implementations())  # users may register more
