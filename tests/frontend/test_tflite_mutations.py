"""Damaged .tflite files: an error message or a valid graph, in little time and memory."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_tflite
from mlc_deploy.graph import Function, optimize, verify
from tests.tflite_models import Model, drawn

MOST_SECONDS = 20  # of the processor, for one file; each takes some hundredths
MOST_BYTES = 1 << 30
WORDS = (0, 1, 2, 3, 4, 7, 8, 255, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def image_model() -> bytes:
    """A convolution, a pool, a resized image and its parts, in int8."""
    rng, model = np.random.default_rng(0), Model()
    known: dict[str, Any] = {"scale": 0.1, "zero": -3}
    x = model.input((1, 8, 8, 3), "int8", **known)
    w = model.constant(drawn(rng, (4, 3, 3, 3), "int8"), "int8", scale=[0.01, 0.02, 0.03, 0.04])
    b = model.constant([1, 2, 3, 4], "int32", scale=[0.001, 0.002, 0.003, 0.004])
    y = model.tensor((1, 4, 4, 4), "int8", **known)
    model.op(
        "CONV_2D", [x, w, b], [y], "Conv2DOptions", version=3, StrideW=2, StrideH=2,
        DilationWFactor=1, DilationHFactor=1, FusedActivationFunction=1,
    )  # fmt: skip
    p = model.tensor((1, 2, 2, 4), "int8", **known)
    model.op(
        "AVERAGE_POOL_2D", [y], [p], "Pool2DOptions", StrideW=2, StrideH=2, FilterWidth=2,
        FilterHeight=2,
    )  # fmt: skip
    size = model.constant([4, 4], "int32")
    r = model.tensor((1, 4, 4, 4), "int8", **known)
    model.op("RESIZE_BILINEAR", [p, size], [r], "ResizeBilinearOptions", HalfPixelCenters=True)
    s = model.tensor((1, 4, 4, 4), "int8", scale=0.3, zero=9)
    model.op("ADD", [r, y], [s], "AddOptions", version=2)
    pads = model.constant([[0, 0], [1, 1], [1, 1], [0, 0]], "int32")
    q = model.tensor((1, 6, 6, 4), "int8", scale=0.3, zero=9)
    model.op("PAD", [s, pads], [q], "PadOptions", version=2)
    axes = model.constant([1, 2], "int32")
    m = model.tensor((1, 4), "int8", scale=0.2, zero=1)
    model.op("MEAN", [q, axes], [m], "ReducerOptions", version=2)
    z = model.tensor((1, 4), "int8", scale=1 / 256, zero=-128)
    model.op("SOFTMAX", [m], [z], "SoftmaxOptions", version=2, Beta=1.0)
    model.outputs = [z]
    return model.build()


def moves_model() -> bytes:
    """Shapes, slices and joins of floats, and a matrix product with weights of int8."""
    rng, model = np.random.default_rng(0), Model()
    x = model.input((2, 3, 4))
    begin, end, step = (model.constant(v, "int32") for v in ([0, 1, 0], [2, 3, 4], [1, 1, 2]))
    a = model.tensor((2, 2, 2))
    model.op("STRIDED_SLICE", [x, begin, end, step], [a], "StridedSliceOptions", EndMask=4)
    shape = model.constant([2, -1], "int32")
    b = model.tensor((2, 4))
    model.op("RESHAPE", [a, shape], [b], "ReshapeOptions", NewShape=[2, 4])
    c = model.tensor((2, 8))
    model.op("CONCATENATION", [b, b], [c], "ConcatenationOptions", Axis=1)
    w = model.constant(drawn(rng, (5, 8), "int8"), "int8", scale=0.01)
    d = model.tensor((2, 5))
    model.op("FULLY_CONNECTED", [c, w], [d], "FullyConnectedOptions", version=9)
    places = model.constant([4, 0, 2], "int32")
    e = model.tensor((2, 3))
    model.op("GATHER", [d, places], [e], "GatherOptions", Axis=1)
    times = model.constant([1, 3], "int32")
    f = model.tensor((2, 9))
    model.op("TILE", [e, times], [f])
    order = model.constant([1, 0], "int32")
    g = model.tensor((9, 2))
    model.op("TRANSPOSE", [f, order], [g], "TransposeOptions")
    model.outputs = [g]
    return model.build()


def signal_model() -> bytes:
    """A Fourier transform, a move of its complex numbers, and their absolute values."""
    model = Model()
    x = model.input((2, 3, 12))
    lengths = model.constant([4, 16], "int32")
    a = model.tensor((2, 4, 9), "complex64")
    model.op("RFFT2D", [x, lengths], [a], "Rfft2dOptions")
    shape = model.constant([8, 9], "int32")
    b = model.tensor((8, 9), "complex64")
    model.op("RESHAPE", [a, shape], [b], "ReshapeOptions", NewShape=[8, 9])
    c, d = model.tensor((8, 9)), model.tensor((8, 9))
    model.op("COMPLEX_ABS", [b], [c])
    model.op("IMAG", [b], [d])
    model.outputs = [c, d]
    return model.build()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """data with some of its bytes or words changed, a part cut out or doubled, or its end gone."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(8, len(out))
        match rng.randrange(7):
            case 0:
                out[at] = rng.randrange(256)
            case 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                del out[at : at + rng.choice((1, 2, 4, 8))]
            case 3:
                out[at:at] = out[at : at + rng.choice((4, 8))]
            case 4 if rng.random() < 0.2:
                del out[at:]
                break
            case _:
                place = at // 4 * 4
                if place + 4 <= len(out):
                    struct.pack_into("<I", out, place, rng.choice(WORDS))
    return bytes(out)


def refused_or_valid(data: bytes, seed: int) -> Function | None:
    """The graph of the model, None where a message says why there is none."""
    begun = time.process_time()
    tracemalloc.start()
    try:
        function = optimize(from_tflite(data))
        verify(function)
        return function
    except ImporterError as error:
        assert error.what and error.where, seed
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES, (seed, peak)
        assert time.process_time() - begun < MOST_SECONDS, seed


def hold(seeds: range) -> int:
    """How many mutations still gave a graph."""
    models = [image_model(), moves_model(), signal_model()]
    return sum(
        refused_or_valid(mutated(models[seed % len(models)], random.Random(seed)), seed) is not None
        for seed in seeds
    )


def test_mutations() -> None:
    assert 0 < hold(range(200)) < 200


@pytest.mark.tflite
def test_many_mutations() -> None:
    assert 0 < hold(range(200, 5200)) < 5000


def test_every_beginning_is_refused() -> None:
    data = moves_model()
    for length in range(0, len(data) - 4, 7):
        assert refused_or_valid(data[:length], length) is None
