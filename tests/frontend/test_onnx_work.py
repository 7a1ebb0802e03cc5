"""What models of one node execute: as their data grow, instructions grow no faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper, parser

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import Constant, evaluate
from tests.onnx_models import one_node, reference
from tests.sessions import TARGETS, aarch64

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64"]  # a fixture

Array = NDArray[Any]
Made = tuple[ModelProto, dict[str, Array]]


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def made(
    op: str,
    inputs: dict[str, Array],
    constants: tuple[str, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    opset: int = 19,
    **attributes: Any,
) -> Made:
    given = {k: v for k, v in inputs.items() if k not in constants}
    return one_node(op, inputs, opset, outputs, constants, **attributes), given


def chain(n: int) -> Made:
    """A product of four matrices of 16 columns; n rows."""
    inputs = {"a": floats(n, 16), **{k: floats(16, 16) for k in "bcd"}}
    return made("Einsum", inputs, equation="ij,jk,kl,lm->im")


def apart(n: int) -> Made:
    """Sums over letters that one factor has alone."""
    return made("Einsum", {"a": floats(n, 8), "b": floats(n, 8)}, equation="ij,kl->jl")


def overlapping(stride: int) -> Made:
    """Windows that overlap by half, of a kernel that grows with the step from one to the next."""
    weights = floats(2, 1, 2 * stride)
    return made("ConvTranspose", {"x": floats(1, 2, 32), "w": weights}, ("w",), strides=[stride])


def largest(n: int) -> Made:
    """A quarter of the elements, in their order."""
    inputs = {"x": floats(n), "k": np.array([n // 4], np.int64)}
    return made("TopK", inputs, ("k",), ("values", "places"))


def apart_from_each_other(n: int, most: int = 10) -> Made:
    """Boxes of which none covers another; the best of them are asked for."""
    corners = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    boxes = np.concatenate([corners, corners + 1], 1)[None]
    scores = np.random.default_rng(n).permutation(n).astype(np.float32)[None, None]
    limits: dict[str, Array] = {"most": np.array([most]), "overlap": np.array([0.5], np.float32)}
    inputs = {"boxes": boxes, "scores": scores, **limits}
    return made("NonMaxSuppression", inputs, (*limits,))


def different(n: int) -> Made:
    x = np.random.default_rng(n).permutation(n).astype(np.float32)
    return made("Unique", {"x": x}, (), ("y", "places", "inverse", "counts"))


def regions(n: int) -> Made:
    """So many regions of one image: no copy of it for each."""
    corners = np.random.default_rng(n).uniform(0, 12, (n, 2))
    inputs = {
        "x": floats(1, 2, 24, 24),
        "rois": np.concatenate([corners, corners + 9], 1).astype(np.float32),
        "of": np.zeros(n, np.int64),
    }
    size: dict[str, Any] = {"output_height": 2, "output_width": 2, "sampling_ratio": 1}
    return made("RoiAlign", inputs, **size)


def largest_of_windows(n: int) -> Made:
    """Of n x n elements each."""
    return made("MaxPool", {"x": floats(1, 2, 64, 64)}, kernel_shape=[n, n])


def cube(n: int) -> Made:
    return made("Pow", {"x": floats(n), "by": np.array(3, np.float32)}, ("by",))


def vocabulary(n: int) -> Made:
    """So many words, counted in a text of a quarter of them."""
    words = np.random.default_rng(n).permutation(4 * n)[: 2 * n]
    model, given = made(
        "TfIdfVectorizer", {"x": np.resize(words[::7], (1, n // 4))}, mode="TF",
        min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0],
        ngram_indexes=[*range(n)], pool_int64s=words[:n].tolist(),
    )  # fmt: skip
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model, given


def squares(n: int) -> Made:
    """Summed up over small planes, in one pass."""
    return made("ReduceSumSquare", {"x": floats(1, n, 10, 10)}, opset=13, axes=[2, 3])


def waves(n: int) -> Made:
    return made("Sin", {"x": 9 * floats(n)})


def smooth(n: int) -> Made:
    return made("Mish", {"x": 9 * floats(n)})


def warped(n: int) -> Made:
    """So many places in an image of 32 channels."""
    grid = np.random.default_rng(n).uniform(-1, 1, (1, n // 16, 16, 2)).astype(np.float32)
    return made("GridSample", {"x": floats(1, 32, 16, 16), "grid": grid}, opset=20)


def pixels_of_channels(n: int) -> Made:
    return made("DepthToSpace", {"x": floats(1, 12, n // 16, 16)}, blocksize=2)


def enlarged(n: int) -> Made:
    """A layer's images, to eight times their height and width."""
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 19]>
        g (float[1, 4, {n // 8}, 8] x, float[8, 4, 1, 1] w) => (float[1, 8, {n}, 64] y) {{
            size = Constant <value = float[4] {{1, 1, 8, 8}}> ()
            z = Conv(x, w)
            y = Resize <mode = "linear"> (z, , size)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(floats(8, 4, 1, 1), "w"))
    del model.graph.input[1]
    return model, {"x": floats(1, 4, n // 8, 8)}


# What is made of a size, the size, and the most instructions of each element given and made.
GROWING: dict[str, tuple[Callable[[int], Made], int, int]] = {
    "einsum_chain": (chain, 64, 40),
    "einsum_apart": (apart, 64, 200),
    "conv_transpose": (overlapping, 8, 100),
    "roi_align": (regions, 16, 250),
    "max_pool": (largest_of_windows, 12, 100),
    "pow": (cube, 4096, 2),
    "tf_idf": (vocabulary, 1024, 60),
    "squares": (squares, 32, 2),
    "sin": (waves, 4096, 8),
    "mish": (smooth, 4096, 4),
    "grid_sample": (warped, 256, 30),
    "depth_to_space": (pixels_of_channels, 2048, 3),
    "resize": (enlarged, 64, 5),
    "top_k": (largest, 1024, 200),
    "suppress": (apart_from_each_other, 1024, 30),
    "unique": (different, 1024, 80),
}


def test_a_long_transform_is_no_matrix() -> None:
    """Of 65,536 elements: two short ones of 256 each, twice, have small tables."""
    model, given = made("DFT", {"x": floats(1, 1 << 16, 1)}, axis=1)
    function = from_onnx(model)
    (found,) = evaluate(function, given).values()
    wanted = np.fft.fft(given["x"][..., 0])
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=0.02)
    tables = sum(
        c.type.bytes
        for c in (a for b in function.bindings for a in b.call.args if isinstance(a, Constant))
    )
    assert tables < 8 << 20, tables


@pytest.mark.parametrize("name", GROWING)
def test_work_grows_with_the_data(name: str, aarch64: Session) -> None:
    """Executed instructions of a size and of four times that; outputs are onnxruntime's."""
    make, size, most = GROWING[name]
    counts = []
    for n in (size, 4 * size):
        model, given = make(n)
        run = aarch64.load(mlc.compile(from_onnx(model), TARGETS["aarch64"])).profile(given)
        for key, wanted in reference(model, given).items():
            np.testing.assert_allclose(run.outputs[key], wanted, rtol=1e-4, atol=1e-4)
        assert run.run.counts is not None
        counts.append(sum(c.total for c in run.run.counts))
    elements = sum(v.size for v in (*given.values(), *run.outputs.values()))
    assert counts[1] <= 5.2 * counts[0], counts  # where a logarithm is a factor, 4.8 of them
    assert counts[1] <= most * elements, (counts, elements)


def test_boxes_are_compared_in_vectors(aarch64: Session) -> None:
    """Every box with every better one, where there is no limit."""
    count = 512
    model, given = apart_from_each_other(count, most=count)
    run = aarch64.load(mlc.compile(from_onnx(model), TARGETS["aarch64"])).profile(given)
    (chosen,) = run.outputs.values()
    (wanted,) = reference(model, given).values()
    np.testing.assert_array_equal(chosen, wanted)
    assert run.run.counts is not None
    assert sum(c.total for c in run.run.counts) < 12 * count * count / 2
