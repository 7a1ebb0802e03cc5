"""The reference that judges boards: as exact as float64, and the same on every host."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate as evaluate_graph
from mlc_deploy.ops import OWN_OPERATORS, TensorType, evaluate, infer_types
from mlc_deploy.ops.reference import BLOCK, convolution, matrix_product
from tests.onnx_models import Array, reference
from tests.ops.awkward_calls import drawn

MOST = 1 << 16  # elements of a tensor
DRAWS = 8
# Approximations, whose error test_fast.py holds; what moves bits or rows to places that must fit;
# and lists of steps, each of its own dtype.
OTHERS = (
    "fast_exp",
    "fast_tanh",
    "fast_erf",
    "append_rows",
    "check_indices",
    "bitcast",
    "pointwise",
)


def numbers(type: TensorType, rng: np.random.Generator) -> Array:
    dtype = np.dtype(type.dtype)
    if dtype.kind == "f":
        return (rng.standard_normal(type.sizes) * 3).astype(dtype)
    low, high = (0, 2) if dtype.kind in "bu" else (-3, 4)
    return rng.integers(low, high, type.sizes).astype(dtype)


@pytest.mark.parametrize("op", sorted(set(OWN_OPERATORS) - {*OTHERS}))
def test_floats_are_those_of_float64_rounded_once(op: str) -> None:
    """So no engine of float32 is nearer to the exact result."""
    for number in range(DRAWS):
        call = drawn(op, number)
        made = infer_types(op, call.types, call.attrs)
        if not all(0 < t.elements <= MOST for t in (*call.types, *made)):
            continue
        rng = np.random.default_rng(number)
        arrays = [numbers(t, rng) for t in call.types]
        if "float16" in {str(a.dtype) for a in arrays}:
            continue
        wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
        found = evaluate(op, arrays, call.attrs)
        for mine, exact in zip(found, evaluate(op, wide, call.attrs), strict=True):
            if mine.dtype == np.float32 and exact.dtype == np.float64:
                with np.errstate(over="ignore"):
                    rounded = exact.astype(np.float32)
                np.testing.assert_array_max_ulp(mine, rounded, 0 if mine.size < 2 else 1)


def mel() -> ModelProto:
    """log of the energies of a transform of 256 points, normalized: sums of products that cancel
    nearly all, and a logarithm that shows what is left."""
    points, rng = 256, np.random.default_rng(0)
    turns = 2 * math.pi * np.outer(np.arange(64), np.arange(points)) / points
    waves = np.concatenate([np.cos(turns), np.sin(turns)])[:, None].astype(np.float32)
    filters = np.abs(rng.standard_normal((64, 32))).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "waves"], ["both"], strides=[64]),
        helper.make_node("Mul", ["both", "both"], ["squares"]),
        helper.make_node("Split", ["squares"], ["real", "imaginary"], axis=1),
        helper.make_node("Add", ["real", "imaginary"], ["energies"]),
        helper.make_node("Transpose", ["energies"], ["frames"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["frames", "filters"], ["bands"]),
        helper.make_node("Add", ["bands", "least"], ["positive"]),
        helper.make_node("Log", ["positive"], ["y"]),
    ]
    constants = {"waves": waves, "filters": filters, "least": np.array(1e-10, np.float32)}
    value, float32 = helper.make_tensor_value_info, 1
    graph = helper.make_graph(
        nodes,
        "mel",
        [value("x", float32, [1, 1, 2048])],
        [value("y", float32, [1, 29, 32])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_tone_through_a_mel_filter_is_nearer_to_float64_than_onnxruntime_is() -> None:
    """440 Hz sampled at 22,050 Hz: each sum of 256 products is nearly all cancellation."""
    tone = np.sin(2 * math.pi * 440 / 22_050 * np.arange(2048))[None, None].astype(np.float32)
    model = mel()
    function = from_onnx(model)
    (mine,) = evaluate_graph(function, [tone]).values()
    (theirs,) = reference(model, {"x": tone}).values()
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    frames = np.lib.stride_tricks.sliding_window_view(tone[0, 0].astype(np.float64), 256)[::64]
    both = (frames @ weights["waves"][:, 0].T) ** 2
    exact = np.log((both[:, :64] + both[:, 64:]) @ weights["filters"] + 1e-10)
    errors = [float(np.abs(found[0] - exact).max()) for found in (mine, theirs)]
    assert errors[0] <= errors[1] and errors[0] < 2e-6, errors


# ------------------------------------------------------------------------------ every host alike

# Kernels that OpenBLAS has for processors, and the feature without which they cannot run.
KERNELS = {"Prescott": "", "Haswell": "avx2", "Zen": "avx2", "SkylakeX": "avx512f"}
ANSWER = """
import sys
import numpy as np
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from tests.onnx_models import LIGHT, image
function = from_onnx(LIGHT / "light_squeezenet.onnx")
(answer,) = evaluate(function, [image()]).values()
np.save(sys.argv[1], answer)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these kernels are for x86-64")
def test_answer_does_not_depend_on_the_kernels_of_blas(tmp_path: Path) -> None:
    """All weights of ONNX's light SqueezeNet are one number: its scores are large and equal, so
    their softmax is .001, if no score is rounded otherwise than its neighbour."""
    features = Path("/proc/cpuinfo").read_text().split()
    run = [kernel for kernel, feature in KERNELS.items() if not feature or feature in features]
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "host", root / "rpc", root / "targets")))
    assert len(run) >= 3, run
    for kernel in run:
        file = tmp_path / f"{kernel}.npy"
        environment = {**os.environ, "OPENBLAS_CORETYPE": kernel, "PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", ANSWER, file], env=environment, check=True)
        assert (np.load(file) == np.float32(1e-3)).all(), kernel


# ------------------------------------------------------------------------------------- in blocks


def shape_of(rng: np.random.Generator, rank: int) -> list[int]:
    return [int(n) for n in rng.integers(1, 6, rank)]


@pytest.mark.parametrize("block", [1, 7, 64, BLOCK])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and convolutions in blocks of any size are those of whole arrays."""
    monkeypatch.setattr("mlc_deploy.ops.reference.BLOCK", block)
    rng = np.random.default_rng(block)
    whole: Callable[..., Array] = np.matmul
    for _ in range(20):
        *batch, m, k, n = shape_of(rng, int(rng.integers(3, 6)))
        a = rng.standard_normal((*batch, m, k)).astype(np.float32)
        b = rng.standard_normal((*batch[1:], k, n)).astype(np.float32)
        np.testing.assert_allclose(
            matrix_product(a, b, "float32"), whole(a, b), rtol=1e-5, atol=1e-5
        )
        groups, per, out, size, kernel = (int(v) for v in rng.integers(1, 4, 5))
        stride, dilation = (int(v) for v in rng.integers(1, 3, 2))
        extent = dilation * (kernel - 1) + size + 3
        x = rng.standard_normal((2, groups * per, extent, extent)).astype(np.float32)
        w = rng.standard_normal((groups * out, per, kernel, kernel)).astype(np.float32)
        found = convolution(x, w, [stride] * 2, [dilation] * 2, groups, "float32")
        reach = dilation * (kernel - 1) + 1
        windows = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), (2, 3))
        taken = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
        parts = [
            np.einsum("ncyxij,ocij->noyx", taken[:, g * per : (g + 1) * per], w[g * out :][:out])
            for g in range(groups)
        ]
        np.testing.assert_allclose(found, np.concatenate(parts, 1), rtol=1e-4, atol=1e-5)
