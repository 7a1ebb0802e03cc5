"""Awkward calls of windows and of products: long rows, one row, large kernels, one channel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import Any

from mlc_deploy.ops.winograd import KERNEL, TILES
from tests.ops.awkward import (
    CHANNELS,
    LARGE,
    MOST_ELEMENTS,
    SMALL,
    WINDOWS,
    AwkwardCall,
    call,
    shape,
)

# ------------------------------------------------------------------------------------- windows


def area(rng: Random, rank: int) -> tuple[int, ...]:
    """Long rows, one row, primes, squares."""
    kind = rng.choice(("row", "row", "column", "square", "any"))
    long = rng.choice(LARGE)
    if kind == "any":
        return tuple(rng.choice((*SMALL, 97, 100)) for _ in range(rank))
    if kind == "square":
        return (rng.choice((7, 14, 31, 56, 97)),) * rank
    rest = (rng.choice((1, 1, 1, 2, 3, 7)),) * (rank - 1)
    return (*rest, long) if kind == "row" else (long, *rest)


def window(rng: Random, sizes: Sequence[int], pools: bool = False) -> dict[str, Any]:
    """A kernel that fits into an area, with its strides, dilations and pads."""
    kernel = tuple(min(n, rng.choice(WINDOWS)) for n in sizes)
    if pools and rng.random() < 0.3:
        kernel = tuple(sizes)  # the whole of it
    fits = [(n - 1) // (k - 1) if k > 1 else 1 for n, k in zip(sizes, kernel, strict=True)]
    dilations = tuple(min(most, rng.choice((1, 1, 1, 2, 9))) for most in fits)
    before = [rng.choice((0, k // 2)) for k in kernel]
    return {
        "kernel": kernel,
        "strides": tuple(rng.choice((1, 1, 1, 2, 3, 160)) for _ in sizes),
        "dilations": tuple(max(1, d) for d in dilations),
        "pads": (*before, *before),
    }


def convolution(op: str, rng: Random) -> AwkwardCall:
    rank = 2 if op == "conv2d" else rng.choice((1, 3))
    sizes = area(rng, rank)
    attrs = window(rng, sizes)
    kernel = attrs.pop("kernel")
    channels, filters, groups = rng.choice(CHANNELS), rng.choice(CHANNELS), 1
    match rng.choice(("one", "one", "depthwise", "groups")):
        case "depthwise":
            groups = filters = channels
        case "groups":
            groups = rng.choice((2, 3, 16))
            channels, filters = (-(-n // groups) * groups for n in (channels, filters))
    kind = rng.choice(("float32", "float32", "float16", "int8"))
    if kind == "int8":
        attrs["narrow_weights"] = rng.random() < 0.5
    data = (rng.choice((1, 1, 1, 3)), channels, *sizes), kind
    weights = (filters, channels // groups, *kernel), kind
    if max(prod(data[0]), prod(weights[0])) > MOST_ELEMENTS:
        return convolution(op, rng)
    found = call(op, data, weights, **attrs, groups=groups)
    return AwkwardCall(op, found.types, found.attrs, weights=op == "conv2d")


def winograd(op: str, rng: Random) -> AwkwardCall:
    sizes, m = area(rng, 2), rng.choice(TILES)
    channels, filters = (8 * rng.choice((1, 2, 3, 16, 257)) for _ in range(2))
    data = (1, channels, *sizes), "float32"
    weights = (filters, channels, m + KERNEL - 1, m + KERNEL - 1), "float32"
    found = call(op, data, weights, tile=m, pads=(1, 1, 1, 1))
    return AwkwardCall(op, found.types, found.attrs, weights=True)


def pooling(op: str, rng: Random) -> AwkwardCall:
    sizes = area(rng, rng.choice((1, 2, 2, 2, 3)))
    attrs = window(rng, sizes, pools=True)
    rank = len(sizes)
    attrs["pads"] = tuple(
        min(p, k - 1) for p, k in zip(attrs["pads"], attrs["kernel"] * 2, strict=True)
    )
    attrs["ceil_mode"] = rng.random() < 0.3
    if op == "avg_pool":
        attrs["count_include_pad"] = rng.random() < 0.5
    if op == "max_pool_places":
        attrs["by_column"] = rng.random() < 0.5
    kind = rng.choice(("float32", "float32", "float16", "int8"))
    found = call(op, ((rng.choice((1, 3, 1000)), rng.choice(CHANNELS), *sizes), kind), **attrs)
    if found.types[0].elements > MOST_ELEMENTS:
        return pooling(op, rng)
    return AwkwardCall(op, found.types, found.attrs, weights=rank == 2)


def col2im(op: str, rng: Random) -> AwkwardCall:
    sizes = area(rng, rng.choice((1, 2)))
    attrs = window(rng, sizes)
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            sizes,
            attrs["pads"][: len(sizes)],
            attrs["dilations"],
            attrs["kernel"],
            attrs["strides"],
            strict=True,
        )
    ]
    columns = (1, rng.choice((1, 3, 31)) * prod(attrs["kernel"]), prod(counts))
    return call(op, (columns, "float32"), **attrs, shape=sizes)


def sample(op: str, rng: Random) -> AwkwardCall:
    rank = rng.randint(1, 3)
    mode = rng.choice(("nearest", "linear", "cubic") if rank < 3 else ("nearest", "linear"))
    data = (rng.choice((1, 3)), rng.choice((1, 3, 2049)), *(rng.choice(SMALL) for _ in range(rank)))
    at = (data[0], rng.choice(LARGE), rank)
    attrs = {"mode": mode, "padding": rng.choice(("zeros", "border", "reflection"))}
    return call(op, (data, "float32"), (at, "float32"), **attrs, corners=rng.random() < 0.5)


def resample(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    table = rng.choice((1, 7, 97, 2049)), rng.choice((1, 2, 4, 31))
    axis = rng.randrange(len(whole))
    return call(op, (whole, "float32"), (table, "int32"), (table, "float32"), axis=axis)


# ------------------------------------------------------------------------------------- products


def dense(op: str, rng: Random) -> AwkwardCall:
    rows, depth, columns = (
        rng.choice((1, 1, 2, 31, 1000)),
        rng.choice(CHANNELS),
        rng.choice(CHANNELS),
    )
    transposed, kind = rng.random() < 0.7, rng.choice(("float32", "float16", "int8"))
    w = (columns, depth) if transposed else (depth, columns)
    found = call(op, ((rows, depth), kind), (w, kind), transpose_b=transposed)
    return AwkwardCall(op, found.types, found.attrs, weights=rng.random() < 0.8)


def dense_blocks(op: str, rng: Random) -> AwkwardCall:
    rows, columns = rng.choice((1, 1, 2, 31, 1000)), rng.choice(CHANNELS)
    blocks, size = rng.choice((1, 3, 7, 32)), rng.choice((16, 32, 64, 128, 256))
    bits, kind = rng.choice((4, 4, 8)), rng.choice(("int8", "int8", "float32", "float16"))
    apart = (columns, blocks)
    w = (*apart, size * bits // 8), "int8" if bits == 8 else "uint8"
    zeros = [(apart, "int8")] * rng.choice((0, 1))
    data, scale = ((rows, blocks * size), kind), (apart, rng.choice(("float16", "float32")))
    found = call(op, data, w, scale, *zeros, bits=bits, narrow=rng.random() < 0.7)
    return AwkwardCall(op, found.types, found.attrs, weights=rng.random() < 0.8)


def quantize_rows(op: str, rng: Random) -> AwkwardCall:
    return call(op, ((rng.choice((1, 2, 31, 1000)), rng.choice(CHANNELS)), "float32"))


def append_rows(op: str, rng: Random) -> AwkwardCall:
    lead, count, width = rng.choice((1, 3, 31)), rng.choice((1, 2, 31)), rng.choice((1, 64, 97))
    most, kind = count + rng.choice((0, 1, 1000)), rng.choice(("float32", "float16"))
    numbers = [((), "int64")] * rng.choice((1, 2))
    cache, rows = ((lead, most, width), kind), ((lead, count, width), kind)
    return call(op, cache, rows, *numbers, owned=True)


def draw_token(op: str, rng: Random) -> AwkwardCall:
    logits = (rng.choice((1, 63, 64, 1000, 32_000)),), rng.choice(("float32", "float16"))
    numbers = (((), dtype) for dtype in ("float32", "int64", "float32", "float64"))
    return call(op, logits, *numbers)


def attention(op: str, rng: Random) -> AwkwardCall:
    kept, group = rng.choice((1, 2, 5, 12)), rng.choice((1, 1, 2, 3, 8))
    count, width = rng.choice((1, 1, 2, 31, 197)), rng.choice((1, 8, 13, 64, 80, 128, 256))
    length, values = count + rng.choice((0, 1, 31, 2048)), rng.choice((width, 1, 64))
    q, kind = (1, kept * group, count, width), rng.choice(("float32", "float16"))
    attrs = {"scale": 0.1, "causal": rng.random() < 0.5, "window": rng.choice((0, 0, 9, 600))}
    bias = [((1, 1, count, length), "float32")] * rng.choice((0, 1))
    own = ((1, kept, length, width), kind), ((1, kept, length, values), kind)
    return call(op, (q, "float32"), *own, *bias, **attrs)


def matmul(op: str, rng: Random) -> AwkwardCall:
    rows, depth, columns = (
        rng.choice((1, 1, 7, 127, 2049)),
        rng.choice(CHANNELS),
        rng.choice(CHANNELS),
    )
    lead, kind = (
        rng.choice(((), (12,), (3, 31), (1000,))),
        rng.choice(("float32", "float16", "int8")),
    )
    transposed = rng.random() < 0.5
    if prod(lead) * max(rows * depth, depth * columns, rows * columns) > MOST_ELEMENTS:
        return matmul(op, rng)
    w = (columns, depth) if transposed else (depth, columns)
    attrs = {"transpose_b": True} if transposed else {}
    return call(op, ((*lead, rows, depth), kind), ((*lead, *w), kind), **attrs)
