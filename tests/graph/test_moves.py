"""Transposes and reshapes: where they meet, where they must stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_deploy.graph import BlockBuilder, Constant
from mlc_deploy.graph.moves import (
    broadcast_before,
    canonicalize_transposes,
    sink_reshapes,
    transposed_elements,
)
from tests.graph.small_graphs import built, check, drawn, ops
from tests.graph.test_graph import CONV

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def nhwc_conv(b: BlockBuilder, x: Any, seed: int, outputs: int = 4) -> Any:
    """A convolution as a front end for NHWC exports it, with a bias behind the transpose."""
    channels = x.type.shape[-1]
    y = b.emit("transpose", x, axes=TO_NCHW)
    y = b.emit("conv2d", y, drawn(outputs, channels, 3, 3, seed=seed), **CONV)
    y = b.emit("transpose", y, axes=TO_NHWC)
    return b.emit("relu", b.emit("add", y, drawn(outputs, seed=seed + 1)))


def test_network_for_nhwc() -> None:
    """Only the input is transposed; the flattened end goes into the weights of the classifier."""

    def build(b: BlockBuilder, x: Any) -> Any:
        first = nhwc_conv(b, x, 0)
        y = b.emit("add", nhwc_conv(b, first, 2), first)
        y = b.emit("concatenate", y, nhwc_conv(b, y, 4), axis=-1)
        y = b.emit("pad", y, pads=(0, 1, 0, 0, 0, 0, 1, 0), mode="constant", value=0.0)
        y = b.emit("reshape", nhwc_conv(b, y, 6), shape=(1, 6 * 6 * 4))
        return b.emit("dense", y, drawn(3, 144), transpose_b=True)

    function = built(build, (1, 5, 5, 3))
    result = check(function, canonicalize_transposes, error=1e-3)
    assert ops(function).count("transpose") == 8
    assert ops(result).split()[0] == "transpose" and ops(result).count("transpose") == 1
    assert transposed_elements(result) == 75


def test_reductions_and_softmax() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        y = nhwc_conv(b, x, 0)
        mean = b.emit("mean", y, axes=(1, 2), keepdims=False)
        kept = b.emit("max", y, axes=(1, 2), keepdims=True)
        soft = b.emit("softmax", y, axis=3)
        part: dict[str, Any] = {"begin": (0, 1, 0, 2), "step": (1, 2, 1, 1), "shape": (1, 2, 5, 2)}
        return [mean, b.emit("multiply", y, kept), b.emit("transpose", soft, axes=TO_NCHW),
                b.emit("transpose", b.emit("slice", y, **part), axes=TO_NCHW)]  # fmt: skip

    result = check(built(build, (1, 5, 5, 3)), canonicalize_transposes, error=1e-3)
    assert ops(result).count("transpose") == 2  # the input's, and the second output's


def test_transposes_that_gain_nothing_stay() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        return b.emit("relu", b.emit("transpose", x, axes=TO_NHWC))

    function = built(build)
    assert canonicalize_transposes(function) is function


def test_arguments_of_another_order_stay() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        turned = b.emit("transpose", x, axes=(1, 0))
        return b.emit("transpose", b.emit("add", turned, x), axes=(1, 0))

    function = built(build, (5, 5))
    assert canonicalize_transposes(function) is function


def dense_on_three(b: BlockBuilder, x: Any, seed: int = 0) -> Any:
    """[2, 3, 8] times a matrix, as a front end writes it."""
    flat = b.emit("reshape", x, shape=(6, 8))
    y = b.emit("dense", flat, drawn(8, 8, seed=seed), transpose_b=True)
    return b.emit("reshape", y, shape=(2, 3, 8))


def test_reshapes_leave_layers_to_their_epilogues() -> None:
    """Bias, activation and residual stand beside the products. What is of one dimension that the
    reshape parts comes behind it."""

    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("relu", b.emit("add", dense_on_three(b, x), drawn(8)))
        y = b.emit("add", b.emit("add", dense_on_three(b, y, 1), drawn(8)), x)
        return b.emit("add", b.emit("multiply", y, drawn(3, 1)), drawn(2, 3, 8, seed=2))

    result = check(built(build, (2, 3, 8)), sink_reshapes, error=1e-3)
    assert ops(result) == "reshape dense add relu dense add reshape add reshape multiply add"


def test_two_products_of_different_shapes_do_not_chase_each_other() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        one = b.emit("dense", b.emit("reshape", x, shape=(4, 6)), drawn(6, 6), transpose_b=True)
        two = b.emit("dense", b.emit("reshape", x, shape=(8, 3)), drawn(3, 3), transpose_b=True)
        both = (b.emit("reshape", y, shape=(2, 3, 4)) for y in (one, two))
        return b.emit("add", *both)

    function = built(build, (2, 3, 4))
    assert sink_reshapes(function) is function


def test_constants_that_a_reshape_would_tear_apart_stay() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("dense", x, drawn(8, 8), transpose_b=True)
        return b.emit("add", b.emit("reshape", y, shape=(6, 4, 2)), drawn(4, 1))

    function = built(build, (6, 8))
    assert sink_reshapes(function) is function


factors = st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=5)


@given(factors, st.data())
def test_broadcast_before(sizes: list[int], data: st.DataObject) -> None:
    """What broadcast_before says is what broadcasting and reshaping give."""

    def grouped() -> tuple[int, ...]:
        shape = [1]
        for n in sizes:
            if data.draw(st.booleans()):
                shape.append(n)
            else:
                shape[-1] *= n
        return tuple(shape)

    after, before = grouped(), grouped()
    kept = [data.draw(st.booleans()) for _ in after]
    own = tuple(n if keep else 1 for n, keep in zip(after, kept, strict=True))
    array = np.random.default_rng(0).integers(0, 99, own)
    shape = broadcast_before(own, after, before)
    if all(kept) or not any(kept):
        assert shape is not None
    if shape is not None:
        wanted = np.broadcast_to(array, after).reshape(before)
        np.testing.assert_array_equal(np.broadcast_to(array.reshape(shape), before), wanted)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_flattened_images(transpose_b: bool) -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        y = b.emit("reshape", b.emit("transpose", x, axes=TO_NHWC), shape=(2, 60))
        w = drawn(7, 60).value
        weights = Constant(w if transpose_b else np.ascontiguousarray(w.T))
        return b.emit("dense", y, weights, transpose_b=transpose_b)

    result = check(built(build, (2, 3, 4, 5)), canonicalize_transposes, error=1e-4)
    assert ops(result) == "reshape dense"
