"""Networks as trees of layers, and random weights for them.

The layers, their arguments and the names of their weights are torch.nn's. Two files give them life:
onnx_layers.py as ONNX models, torch_layers.py as torch's modules, with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Conv:
    """Square, padded by half the kernel unless told otherwise."""

    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    bias: bool = False
    padded: bool = True

    @property
    def padding(self) -> int:
        return self.kernel // 2 if self.padded else 0


@dataclass(frozen=True)
class BatchNorm:
    channels: int


@dataclass(frozen=True)
class LayerNorm:
    """Over the last dimension."""

    width: int
    epsilon: float = 1e-5


@dataclass(frozen=True)
class Linear:
    """Of the last dimension."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class Activation:
    kind: Literal["relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "gelu", "tanh"]


@dataclass(frozen=True)
class MaxPool:
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class GlobalPool:
    """The mean of each channel, as an image of one pixel."""


@dataclass(frozen=True)
class Flatten:
    """All dimensions but the first become one."""


@dataclass(frozen=True)
class Chain:
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x), computed in this order."""

    body: Layer
    shortcut: Layer


@dataclass(frozen=True)
class Gate:
    """x * body(x)"""

    body: Layer


@dataclass(frozen=True)
class Attention:
    """Of several heads over x [N, T, width] itself; the places where the mask is 0 are left out."""

    width: int
    heads: int


@dataclass(frozen=True)
class Patches:
    """An image [N, width, H, W] as tokens [N, 1 + H * W, width]: a learnt one in front, and a
    learnt vector per position added."""

    width: int
    positions: int


@dataclass(frozen=True)
class Words:
    """Numbers [N, T] as their vectors [N, T, width], and a learnt vector per position added, and
    that of the first of two kinds."""

    vocabulary: int
    positions: int
    width: int


@dataclass(frozen=True)
class First:
    """The first token of each row."""


Layer = (
    Conv | BatchNorm | LayerNorm | Linear | Activation | MaxPool | GlobalPool | Flatten
    | Chain | Residual | Gate | Attention | Patches | Words | First
)  # fmt: skip


def chain(*layers: Layer) -> Chain:
    return Chain(layers)


def children(layer: Layer) -> Iterator[tuple[str, Layer]]:
    """What a layer is made of, by torch's names."""
    match layer:
        case Chain(layers):
            yield from ((str(number), child) for number, child in enumerate(layers))
        case Residual(body, shortcut):
            yield from (("body", body), ("shortcut", shortcut))
        case Gate(body):
            yield "body", body
        case Attention(width):
            yield from (("qkv", Linear(width, 3 * width)), ("out", Linear(width, width)))


# -------------------------------------------------------------------------------------- weights


def weights(layer: Layer, seed: int = 0, path: str = "") -> dict[str, Array]:
    """All weights by torch's names, drawn so that activations keep their size on the way."""
    found = {path + name: array for name, array in _own(layer, _random(path, seed)).items()}
    for name, child in children(layer):
        found |= weights(child, seed, f"{path}{name}.")
    if isinstance(layer, Residual):
        # So that the sums do not grow from block to block.
        for name in [n for n in _last_norm(layer.body, f"{path}body.") if n in found]:
            found[name] = found[name] * np.float32(0.3)
    return found


def _last_norm(layer: Layer, path: str) -> Iterator[str]:
    match layer:
        case Chain((*before, last)):
            yield from _last_norm(last, f"{path}{len(before)}.")
        case BatchNorm():
            yield f"{path}weight"


def _random(path: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *path.encode()])


def _own(layer: Layer, rng: np.random.Generator) -> dict[str, Array]:
    def normal(deviation: float, *shape: int) -> Array:
        return (rng.standard_normal(shape, np.float32) * np.float32(deviation)).astype(np.float32)

    def around_one(size: int) -> Array:
        return rng.uniform(0.5, 1.5, size).astype(np.float32)

    match layer:
        case Conv(inputs, outputs, kernel, _, groups, bias):
            share = inputs // groups
            found = {"weight": normal(math.sqrt(2 / (share * kernel**2)), outputs, share, kernel,
                                      kernel)}  # fmt: skip
            return found | ({"bias": normal(0.1, outputs)} if bias else {})
        case Linear(inputs, outputs):
            return {"weight": normal(1 / math.sqrt(inputs), outputs, inputs),
                    "bias": normal(0.1, outputs)}  # fmt: skip
        case BatchNorm(channels):
            return {"weight": around_one(channels), "bias": normal(0.1, channels),
                    "running_mean": normal(0.1, channels),
                    "running_var": around_one(channels)}  # fmt: skip
        case LayerNorm(width):
            return {"weight": around_one(width), "bias": normal(0.1, width)}
        case Patches(width, positions):
            return {"first": normal(1, 1, 1, width), "positions": normal(1, 1, positions, width)}
        case Words(vocabulary, positions, width):
            return {"words": normal(1, vocabulary, width), "kinds": normal(1, 2, width),
                    "positions": normal(1, positions, width)}  # fmt: skip
    return {}


def parameters(layer: Layer) -> int:
    """How many numbers are learnt: running statistics are not."""
    return sum(a.size for name, a in weights(layer).items() if ".running_" not in name)
