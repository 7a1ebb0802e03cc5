"""Trains the two models that ship with the package, and sets test images aside for them.

    python scripts/examples/train_digits.py [FOLDER]      default: host/mlc_deploy/models

Data: scikit-learn's digits, 1797 images of 8x8 pixels in 17 greys (UCI's "Optical Recognition of
Handwritten Digits" by E. Alpaydin and C. Kaynak, CC BY 4.0). A seed shuffles them; the first 360
are for testing, and the first 16 of those are checked in as `digits.npz`:

    image  float32 (16, 1, 8, 8)   pixel / 16, so 0 to 1
    label  int64 (16,)
    index  int64 (16,)             the image's place in scikit-learn's order

Both models take "image" float32 (16, 1, 8, 8) and give "probability" float32 (16, 10):

    digits_mlp.onnx    Flatten, Gemm 64, Relu, Gemm 32, Relu, Gemm 10, Softmax
    digits_cnn.onnx    Conv 16, BatchNormalization, Relu, MaxPool, Conv 32, Relu, MaxPool,
                       Flatten, Gemm 10, Softmax

Training is numpy in float64, with all random numbers from one seed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

SEED = 0
BATCH = 16  # of the exported models: one run classifies the checked-in images
TEST_IMAGES = 360
OPSET, IR_VERSION = 17, 8
MODELS = Path(__file__).resolve().parents[2] / "host" / "mlc_deploy" / "models"


class Layer:
    """An ONNX operator with one input, in training.

    `forward` keeps what `backward` needs. `backward` takes the loss's gradient by the output,
    leaves those by `learned` in `gradients`, and returns the one by the input. `inputs` are the
    operator's further inputs in its ONNX form, by name.
    """

    op: str
    attributes: dict[str, Any]  # of the ONNX node

    def __init__(self, op: str, learned: list[Array] | None = None, **attributes: Any) -> None:
        self.op, self.learned, self.attributes = op, learned or [], attributes
        self.gradients: list[Array] = []

    def forward(self, x: Array, training: bool) -> Array:
        raise NotImplementedError(self.op)

    def backward(self, gradient: Array) -> Array:
        raise NotImplementedError(self.op)

    def inputs(self) -> dict[str, Array]:
        return dict(zip(("weight", "bias"), self.learned, strict=False))


class Flatten(Layer):
    def __init__(self) -> None:
        super().__init__("Flatten", axis=1)

    def forward(self, x: Array, training: bool) -> Array:
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, gradient: Array) -> Array:
        return gradient.reshape(self.shape)


class Relu(Layer):
    def __init__(self) -> None:
        super().__init__("Relu")

    def forward(self, x: Array, training: bool) -> Array:
        self.passes = x > 0
        return x * self.passes

    def backward(self, gradient: Array) -> Array:
        return gradient * self.passes


class Gemm(Layer):
    def __init__(self, random: np.random.Generator, rows: int, columns: int) -> None:
        weight = random.normal(0, np.sqrt(2 / rows), (rows, columns))
        super().__init__("Gemm", [weight, np.zeros(columns)])

    def forward(self, x: Array, training: bool) -> Array:
        self.x = x
        return x @ self.learned[0] + self.learned[1]

    def backward(self, gradient: Array) -> Array:
        self.gradients = [self.x.T @ gradient, gradient.sum(0)]
        return gradient @ self.learned[0].T


class Conv(Layer):
    """3x3, with a border of zeros, so that the image keeps its size."""

    def __init__(self, random: np.random.Generator, channels: int, filters: int) -> None:
        weight = random.normal(0, np.sqrt(2 / (9 * channels)), (filters, channels, 3, 3))
        super().__init__(
            "Conv", [weight, np.zeros(filters)], kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        )

    def forward(self, x: Array, training: bool) -> Array:
        self.windows = _windows(x)
        return _correlate(self.windows, self.learned[0]) + self.learned[1][:, None, None]

    def backward(self, gradient: Array) -> Array:
        weight = np.tensordot(gradient, self.windows, ((0, 2, 3), (0, 2, 3)))
        self.gradients = [weight, gradient.sum((0, 2, 3))]
        turned = self.learned[0][:, :, ::-1, ::-1].swapaxes(0, 1)
        return _correlate(_windows(gradient), turned)


def _windows(x: Array) -> Array:
    """(n, c, h, w) -> (n, c, h, w, 3, 3): the 3x3 pixels around each, zeros beyond the border."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return sliding_window_view(padded, (3, 3), axis=(2, 3))


def _correlate(windows: Array, weight: Array) -> Array:
    """windows (n, c, h, w, 3, 3), weight (f, c, 3, 3) -> (n, f, h, w)."""
    result: Array = np.tensordot(windows, weight, ((1, 4, 5), (1, 2, 3)))
    return np.moveaxis(result, 3, 1)


class BatchNormalization(Layer):
    """Per channel, with running statistics for use after training."""

    def __init__(self, channels: int, momentum: float = 0.9, epsilon: float = 1e-5) -> None:
        super().__init__("BatchNormalization", [np.ones(channels), np.zeros(channels)])
        self.attributes = {"epsilon": epsilon}
        self.momentum, self.epsilon = momentum, epsilon
        self.mean, self.variance = np.zeros(channels), np.ones(channels)

    def forward(self, x: Array, training: bool) -> Array:
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
            self.mean = self.momentum * self.mean + (1 - self.momentum) * mean
            self.variance = self.momentum * self.variance + (1 - self.momentum) * variance
        self.deviation: Array = np.sqrt(variance + self.epsilon)[:, None, None]
        self.normal = (x - mean[:, None, None]) / self.deviation
        scale, bias = self.learned
        return self.normal * scale[:, None, None] + bias[:, None, None]

    def backward(self, gradient: Array) -> Array:
        self.gradients = [(gradient * self.normal).sum((0, 2, 3)), gradient.sum((0, 2, 3))]
        scaled = gradient * self.learned[0][:, None, None]
        centred = scaled - scaled.mean((0, 2, 3), keepdims=True)
        common = (scaled * self.normal).mean((0, 2, 3), keepdims=True)
        result: Array = (centred - self.normal * common) / self.deviation
        return result

    def inputs(self) -> dict[str, Array]:
        scale, bias = self.learned
        return {"scale": scale, "bias": bias, "mean": self.mean, "variance": self.variance}


class MaxPool(Layer):
    """2x2, without overlap."""

    def __init__(self) -> None:
        super().__init__("MaxPool", kernel_shape=[2, 2], strides=[2, 2])

    def forward(self, x: Array, training: bool) -> Array:
        n, c, h, w = x.shape
        tiles = x.reshape(n, c, h // 2, 2, w // 2, 2)
        largest: Array = tiles.max((3, 5), keepdims=True)
        chosen = tiles == largest
        self.share: Array = chosen / chosen.sum((3, 5), keepdims=True)  # ties share the gradient
        return largest[:, :, :, 0, :, 0]

    def backward(self, gradient: Array) -> Array:
        n, c, h, w = gradient.shape
        return (self.share * gradient[:, :, :, None, :, None]).reshape(n, c, 2 * h, 2 * w)


def perceptron(random: np.random.Generator) -> list[Layer]:
    return [
        Flatten(),
        Gemm(random, 64, 64),
        Relu(),
        Gemm(random, 64, 32),
        Relu(),
        Gemm(random, 32, 10),
    ]


def convolutional(random: np.random.Generator) -> list[Layer]:
    return [
        Conv(random, 1, 16),
        BatchNormalization(16),
        Relu(),
        MaxPool(),
        Conv(random, 16, 32),
        Relu(),
        MaxPool(),
        Flatten(),
        Gemm(random, 128, 10),
    ]


def scores(layers: list[Layer], x: Array, training: bool = False) -> Array:
    """(n, 1, 8, 8) -> (n, 10): what Softmax makes probabilities of."""
    for layer in layers:
        x = layer.forward(x, training)
    return x


def train(layers: list[Layer], x: Array, label: Labels, random: np.random.Generator) -> None:
    """Minimizes the cross entropy by Adam, over images with noise."""
    epochs, batch, rate, noise = 60, 32, 2e-3, 0.1
    moments = [[(np.zeros_like(p), np.zeros_like(p)) for p in layer.learned] for layer in layers]
    step, steps = 0, epochs * (len(x) // batch)
    for _ in range(epochs):
        for chosen in _batches(len(x), batch, random):
            step += 1
            noisy = x[chosen] + random.normal(0, noise, (batch, *x.shape[1:]))
            probability = _softmax(scores(layers, noisy, training=True))
            gradient: Array = (probability - np.eye(10)[label[chosen]]) / batch
            for layer in reversed(layers):
                gradient = layer.backward(gradient)
            now = rate * (1 + np.cos(np.pi * step / steps)) / 2
            for layer, pairs in zip(layers, moments, strict=True):
                for p, g, (mean, square) in zip(layer.learned, layer.gradients, pairs, strict=True):
                    mean += 0.1 * (g - mean)
                    square += 0.001 * (g * g - square)
                    unbiased = mean / (1 - 0.9**step), square / (1 - 0.999**step)
                    p -= now * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)


def _batches(count: int, batch: int, random: np.random.Generator) -> Iterator[Labels]:
    order = random.permutation(count)
    return (order[i : i + batch] for i in range(0, count - batch + 1, batch))


def _softmax(x: Array) -> Array:
    power: Array = np.exp(x - x.max(1, keepdims=True))
    total: Array = power.sum(1, keepdims=True)
    return power / total


def to_onnx(layers: list[Layer], name: str) -> onnx.ModelProto:
    """The layers and a Softmax as an ONNX model, weights in float32."""
    nodes, weights, tensor = [], [], "image"
    for number, layer in enumerate(layers):
        output = f"{layer.op.lower()}_{number}"
        names = [f"{output}.{key}" for key in layer.inputs()]
        for key, value in zip(names, layer.inputs().values(), strict=True):
            weights.append(numpy_helper.from_array(value.astype(np.float32), key))
        nodes.append(
            helper.make_node(layer.op, [tensor, *names], [output], output, **layer.attributes)
        )
        tensor = output
    nodes.append(helper.make_node("Softmax", [tensor], ["probability"], "softmax", axis=1))
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [BATCH, 1, 8, 8])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, [BATCH, 10])],
        weights,
    )
    model = helper.make_model(
        graph,
        producer_name="train_digits",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main(folder: Path) -> None:
    digits = load_digits()
    image = (digits.images[:, None] / 16).astype(np.float64)
    label = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(image))
    test, learn = order[:TEST_IMAGES], order[TEST_IMAGES:]
    folder.mkdir(parents=True, exist_ok=True)
    kept = test[:BATCH]
    np.savez(
        folder / "digits.npz", image=image[kept].astype(np.float32), label=label[kept], index=kept
    )
    for name, build in (("digits_mlp", perceptron), ("digits_cnn", convolutional)):
        begin = time.monotonic()
        random = np.random.default_rng(SEED)
        layers = build(random)
        with threadpool_limits(1):  # such small products only lose by sharing
            train(layers, image[learn], label[learn], random)
        accuracy = np.mean(scores(layers, image[test]).argmax(1) == label[test])
        onnx.save(to_onnx(layers, name), folder / f"{name}.onnx")
        seconds = time.monotonic() - begin
        print(f"{name}: {accuracy:.1%} of {TEST_IMAGES} test images, trained in {seconds:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else MODELS)
