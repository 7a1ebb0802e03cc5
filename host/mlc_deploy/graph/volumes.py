"""Convolutions of volumes, as convolutions of images: of each slice that a kernel reads, summed up.

Kernels of images use vectors of channels, and Winograd's filtering. A Cortex-A72 executes a
tenth to a half of the instructions (`tests/ops/test_volumes.py` counts them).
"""

from __future__ import annotations

from ..passes.context import optional
from .constants import is_float, is_static, shape_of
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, rewrite

IMAGES_FIRST = (0, 2, 1, 3, 4)  # from [N, C, D, H, W], and back


@optional(level=1)
def volumes_as_images(function: Function) -> Function:
    """conv_nd of a volume [N, C, D, H, W]   =>   sums of conv2d of images [N * D, C, H, W]"""
    return rewrite(function, (_by_slices,))


def _by_slices(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """conv_nd(x, w)   =>   conv2d(x[:, :, 0:], w[:, :, 0]) + conv2d(x[:, :, 1:], w[:, :, 1]) + …"""
    match call:
        case Call("conv_nd", (x, Constant(value=kernel) as w), attrs) if kernel.ndim == 5:
            if not is_static(x) or not is_float(x) or w.type.dtype != x.type.dtype:
                return None
        case _:
            return None
    (stride, *strides), (dilation, *dilations) = attrs["strides"], attrs["dilations"]
    front, top, left, back, bottom, right = attrs["pads"]
    images = graph.emit("transpose", x, axes=IMAGES_FIRST)
    if front or back:
        ends = (0, front, 0, 0, 0, 0, back, 0, 0, 0)
        images = graph.emit("pad", images, pads=ends, mode="constant", value=0.0)
    batch, _, channels, *size = shape_of(images)
    _, filters, depth, *extents = shape_of(out)
    total: Value | None = None
    for slice_ in range(kernel.shape[2]):
        read = graph.emit(
            "slice", images, begin=(0, slice_ * dilation, 0, 0, 0), step=(1, stride, 1, 1, 1),
            shape=(batch, depth, channels, *size),
        )  # fmt: skip
        made = graph.emit(
            "conv2d",
            graph.emit("reshape", read, shape=(batch * depth, channels, *size)),
            Constant(kernel[:, :, slice_]),
            strides=tuple(strides),
            dilations=tuple(dilations),
            pads=(top, left, bottom, right),
            groups=attrs["groups"],
        )
        total = made if total is None else graph.emit("add", total, made)
    assert total is not None
    apart = graph.emit("reshape", total, shape=(batch, depth, filters, *extents))
    return graph.emit("transpose", apart, axes=IMAGES_FIRST)
