"""The architectures of the field, from their papers' tables; ARCHITECTURES has them by name.

    mobilenet_v1           Howard et al. 2017           resnet18, resnet50   He et al. 2015
    mobilenet_v2           Sandler et al. 2018          efficientnet_b0      Tan and Le 2019
    mobilenet_v3_small     Howard et al. 2019           vit_tiny             Touvron et al. 2021
                                                        bert_tiny            Turc et al. 2019

`parameters` are the counts that are published for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import ModelProto

from tests.models.layers import (
    Activation,
    Array,
    Attention,
    BatchNorm,
    Chain,
    Conv,
    First,
    Flatten,
    Gate,
    GlobalPool,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    Patches,
    Residual,
    Words,
    chain,
)
from tests.models.onnx_layers import Input, to_onnx
from tests.onnx_models import LIGHT_NAMES, image, light_model

CLASSES = 1000
SIDE = 224  # of an image
WORDS = 128  # of a text
AS_IT_IS = chain()


def conv_norm(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: str = ""
) -> Chain:
    """A convolution, its normalization, and an activation."""
    layers = [Conv(inputs, outputs, kernel, stride, groups), BatchNorm(outputs)]
    return chain(*layers, *([Activation(act)] if act else []))  # type: ignore[arg-type]


def classifier(*layers: Layer) -> tuple[Layer, ...]:
    return (GlobalPool(), Flatten(), *layers)


def divisible(channels: float) -> int:
    """The nearest multiple of 8, but not less than nine tenths."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


# ----------------------------------------------------------------------------------- MobileNets


def mobilenet_v1() -> Chain:
    rows = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2),
            (1024, 1))  # fmt: skip
    layers = [conv_norm(3, 32, 3, 2, act="relu")]
    inputs = 32
    for outputs, stride in rows:
        layers.append(conv_norm(inputs, inputs, 3, stride, inputs, "relu"))
        layers.append(conv_norm(inputs, outputs, act="relu"))
        inputs = outputs
    return chain(*layers, *classifier(Linear(inputs, CLASSES)))


def inverted_residual(
    inputs: int, wide: int, outputs: int, kernel: int, stride: int, act: str,
    gate: tuple[int, str, str] | None = None,
) -> Layer:  # fmt: skip
    """Expansion, depthwise convolution, (squeezed channels, activation, gate), projection."""
    layers: list[Layer] = [conv_norm(inputs, wide, act=act)] if wide != inputs else []
    layers.append(conv_norm(wide, wide, kernel, stride, wide, act))
    if gate is not None:
        squeezed, inner, outer = gate
        layers.append(squeeze_and_excite(wide, squeezed, inner, outer))
    layers.append(conv_norm(wide, outputs))
    same = stride == 1 and inputs == outputs
    return Residual(chain(*layers), AS_IT_IS) if same else chain(*layers)


def squeeze_and_excite(channels: int, squeezed: int, inner: str, outer: str) -> Gate:
    down, up = Conv(channels, squeezed, bias=True), Conv(squeezed, channels, bias=True)
    return Gate(chain(GlobalPool(), down, Activation(inner), up, Activation(outer)))  # type: ignore[arg-type]


def mobilenet_v2() -> Chain:
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    layers: list[Layer] = [conv_norm(3, 32, 3, 2, act="relu6")]
    inputs = 32
    for expansion, outputs, repeats, first in rows:
        for stride in (first, *[1] * (repeats - 1)):
            layers.append(
                inverted_residual(inputs, inputs * expansion, outputs, 3, stride, "relu6")
            )
            inputs = outputs
    layers.append(conv_norm(inputs, 1280, act="relu6"))
    return chain(*layers, *classifier(Linear(1280, CLASSES)))


def mobilenet_v3_small() -> Chain:
    rows = ((3, 16, 16, True, "relu", 2), (3, 72, 24, False, "relu", 2),
            (3, 88, 24, False, "relu", 1), (5, 96, 40, True, "hardswish", 2),
            (5, 240, 40, True, "hardswish", 1), (5, 240, 40, True, "hardswish", 1),
            (5, 120, 48, True, "hardswish", 1), (5, 144, 48, True, "hardswish", 1),
            (5, 288, 96, True, "hardswish", 2), (5, 576, 96, True, "hardswish", 1),
            (5, 576, 96, True, "hardswish", 1))  # fmt: skip
    layers: list[Layer] = [conv_norm(3, 16, 3, 2, act="hardswish")]
    inputs = 16
    for kernel, wide, outputs, gated, act, stride in rows:
        gate = (divisible(wide / 4), "relu", "hardsigmoid") if gated else None
        layers.append(inverted_residual(inputs, wide, outputs, kernel, stride, act, gate))
        inputs = outputs
    layers.append(conv_norm(inputs, 576, act="hardswish"))
    hidden = (Linear(576, 1024), Activation("hardswish"), Linear(1024, CLASSES))
    return chain(*layers, *classifier(*hidden))


def efficientnet_b0() -> Chain:
    rows = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
            (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    layers: list[Layer] = [conv_norm(3, 32, 3, 2, act="silu")]
    inputs = 32
    for expansion, outputs, repeats, first, kernel in rows:
        for stride in (first, *[1] * (repeats - 1)):
            gate = (inputs // 4, "silu", "sigmoid")
            wide = inputs * expansion
            layers.append(inverted_residual(inputs, wide, outputs, kernel, stride, "silu", gate))
            inputs = outputs
    layers.append(conv_norm(inputs, 1280, act="silu"))
    return chain(*layers, *classifier(Linear(1280, CLASSES)))


# -------------------------------------------------------------------------------------- ResNets


def resnet(repeats: tuple[int, ...], bottleneck: bool) -> Chain:
    layers: list[Layer] = [conv_norm(3, 64, 7, 2, act="relu"), MaxPool(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(repeats):
        width = 64 << stage
        for number in range(count):
            stride = 2 if stage and number == 0 else 1
            outputs = 4 * width if bottleneck else width
            if bottleneck:
                body = chain(
                    conv_norm(inputs, width, act="relu"),
                    conv_norm(width, width, 3, stride, act="relu"),
                    conv_norm(width, outputs),
                )
            else:
                body = chain(
                    conv_norm(inputs, width, 3, stride, act="relu"), conv_norm(width, outputs, 3)
                )
            same = stride == 1 and inputs == outputs
            shortcut = AS_IT_IS if same else conv_norm(inputs, outputs, 1, stride)
            layers += [Residual(body, shortcut), Activation("relu")]
            inputs = outputs
    return chain(*layers, *classifier(Linear(inputs, CLASSES)))


# --------------------------------------------------------------------------------- transformers


def perceptron(width: int, hidden: int) -> Chain:
    return chain(Linear(width, hidden), Activation("gelu"), Linear(hidden, width))


def vit_tiny() -> Chain:
    """Norms come before attention and perceptron."""
    width, depth, heads, patch = 192, 12, 3, 16
    layers: list[Layer] = []
    for _ in range(depth):
        attention = chain(LayerNorm(width, 1e-6), Attention(width, heads))
        hidden = chain(LayerNorm(width, 1e-6), perceptron(width, 4 * width))
        layers += [Residual(attention, AS_IT_IS), Residual(hidden, AS_IT_IS)]
    split = Conv(3, width, patch, patch, bias=True, padded=False)
    tokens = Patches(width, (SIDE // patch) ** 2 + 1)
    return chain(split, tokens, *layers, LayerNorm(width, 1e-6), First(), Linear(width, CLASSES))


def bert(width: int, depth: int, heads: int) -> Chain:
    """Norms come after attention and perceptron; two classes, from the first token."""
    layers: list[Layer] = [Words(30522, 512, width), LayerNorm(width, 1e-12)]
    for _ in range(depth):
        layers += [Residual(Attention(width, heads), AS_IT_IS), LayerNorm(width, 1e-12)]
        layers += [Residual(perceptron(width, 4 * width), AS_IT_IS), LayerNorm(width, 1e-12)]
    pooled = (First(), Linear(width, width), Activation("tanh"), Linear(width, 2))
    return chain(*layers, *pooled)


# ------------------------------------------------------------------------------------ the table


@dataclass(frozen=True)
class Architecture:
    network: Callable[[], Chain]
    parameters: int
    text: bool = False

    @property
    def inputs(self) -> tuple[Input, ...]:
        if self.text:
            return (("words", (1, WORDS), "int64"), ("mask", (1, WORDS), "int64"))
        return (("image", (1, 3, SIDE, SIDE), "float32"),)


ARCHITECTURES = {
    "mobilenet_v1": Architecture(mobilenet_v1, 4_231_976),
    "mobilenet_v2": Architecture(mobilenet_v2, 3_504_872),
    "mobilenet_v3_small": Architecture(mobilenet_v3_small, 2_542_856),
    "resnet18": Architecture(partial(resnet, (2, 2, 2, 2), False), 11_689_512),
    "resnet50": Architecture(partial(resnet, (3, 4, 6, 3), True), 25_557_032),
    "efficientnet_b0": Architecture(efficientnet_b0, 5_288_548),
    "vit_tiny": Architecture(vit_tiny, 5_717_416),
    "bert_tiny": Architecture(partial(bert, 128, 2, 2), 4_386_178, text=True),
}

LIGHT = "light_"  # in front of the names of the onnx package's light models
NAMES = (*ARCHITECTURES, *(LIGHT + name for name in LIGHT_NAMES))


def model_and_inputs(name: str) -> tuple[ModelProto, dict[str, Array]]:
    """Any of NAMES, its weights random, and something to run it on."""
    if name in ARCHITECTURES:
        return onnx_model(name), inputs(name)
    model = light_model(name.removeprefix(LIGHT))
    return model, {model.graph.input[0].name: image()}


def onnx_model(name: str, seed: int = 0) -> ModelProto:
    architecture = ARCHITECTURES[name]
    return to_onnx(architecture.network(), name, architecture.inputs, seed)


def inputs(name: str, seed: int = 1) -> dict[str, Array]:
    """An image of standard normal numbers; or words, the last quarter masked."""
    rng = np.random.default_rng(seed)
    if not ARCHITECTURES[name].text:
        return {"image": rng.standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)}
    mask = (np.arange(WORDS) < WORDS * 3 // 4).astype(np.int64)
    return {"words": rng.integers(0, 30522, (1, WORDS)), "mask": mask[None]}
