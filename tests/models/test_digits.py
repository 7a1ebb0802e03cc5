"""The shipped models and images: what they are, how good, and that their script makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "host" / "mlc_deploy" / "models"
NAMES = ("digits_mlp", "digits_cnn")

Array = NDArray[Any]


def probabilities(model: Path, image: Array) -> Array:
    """image (n, 1, 8, 8) -> (n, 10), in runs of the model's 16; n is cut to a multiple of it."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    runs = [
        session.run(["probability"], {"image": image[i : i + 16]})[0]
        for i in range(0, len(image) - 15, 16)
    ]
    return np.concatenate(runs)


def test_images_are_as_described() -> None:
    with np.load(MODELS / "digits.npz") as images:
        assert images["image"].shape == (16, 1, 8, 8) and images["image"].dtype == np.float32
        assert images["image"].min() == 0 and images["image"].max() == 1
        assert images["label"].shape == (16,) and images["label"].dtype == np.int64
        assert images["index"].shape == (16,) and len(set(images["index"])) == 16


@pytest.mark.parametrize("name", NAMES)
def test_onnxruntime_classifies_the_images(name: str) -> None:
    with np.load(MODELS / "digits.npz") as images:
        probability = probabilities(MODELS / f"{name}.onnx", images["image"])
        assert probability.shape == (16, 10) and probability.dtype == np.float32
        np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-6)
        np.testing.assert_array_equal(probability.argmax(1), images["label"])


def test_operators_are_those_the_importer_is_shown_with() -> None:
    operators = {
        name: [node.op_type for node in onnx.load(MODELS / f"{name}.onnx").graph.node]
        for name in NAMES
    }
    convolution = ["Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "Relu", "MaxPool"]
    assert operators == {
        "digits_mlp": ["Flatten", "Gemm", "Relu", "Gemm", "Relu", "Gemm", "Softmax"],
        "digits_cnn": [*convolution, "Flatten", "Gemm", "Softmax"],
    }


@pytest.mark.train
def test_script_makes_what_is_shipped(tmp_path: Path) -> None:
    """Same images, graphs and predictions; a machine's BLAS may round weights otherwise."""
    script = ROOT / "scripts" / "examples" / "train_digits.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=600)
    with np.load(MODELS / "digits.npz") as shipped, np.load(tmp_path / "digits.npz") as again:
        assert sorted(shipped) == sorted(again)
        for key in shipped:
            np.testing.assert_array_equal(shipped[key], again[key])
        for name in NAMES:
            models = [folder / f"{name}.onnx" for folder in (MODELS, tmp_path)]
            graphs = [list(onnx.load(model).graph.node) for model in models]
            assert graphs[0] == graphs[1]
            predictions = [probabilities(model, shipped["image"]).argmax(1) for model in models]
            np.testing.assert_array_equal(*predictions)


@pytest.mark.train
@pytest.mark.parametrize("name", NAMES)
def test_accuracy_over_images_never_learnt(name: str) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    test = np.random.default_rng(0).permutation(len(digits.images))[:352]  # 22 runs of 16
    with np.load(MODELS / "digits.npz") as images:
        np.testing.assert_array_equal(images["index"], test[:16])
    image = (digits.images[test, None] / 16).astype(np.float32)
    predicted = probabilities(MODELS / f"{name}.onnx", image).argmax(1)
    assert np.mean(predicted == digits.target[test]) >= 0.97
