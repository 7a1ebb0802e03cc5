"""Networks of layers.py as torch.nn's modules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.layers import (
    Activation,
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
    children,
    weights,
)

ACTIVATIONS = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}


def to_torch(network: Layer, seed: int = 0) -> nn.Module:
    """The network in inference mode, with the weights that its ONNX form has. It takes the first
    input, and the attention's mask as a second one where there is one."""
    model = module(network)
    state = {name: torch.from_numpy(array) for name, array in weights(network, seed).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(n.endswith("num_batches_tracked") for n in missing)
    return model.eval()


def module(layer: Layer) -> nn.Module:
    match layer:
        case Conv(inputs, outputs, kernel, stride, groups, bias):
            return nn.Conv2d(
                inputs, outputs, kernel, stride, layer.padding, groups=groups, bias=bias
            )
        case BatchNorm(channels):
            return nn.BatchNorm2d(channels)
        case LayerNorm(width, epsilon):
            return nn.LayerNorm(width, epsilon)
        case Linear(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case Activation(kind):
            return ACTIVATIONS[kind]()
        case MaxPool(kernel, stride, padding):
            return nn.MaxPool2d(kernel, stride, padding)
        case GlobalPool():
            return nn.AdaptiveAvgPool2d(1)
        case Flatten():
            return nn.Flatten()
        case Chain():
            return InARow(layer)
        case Residual():
            return Sum(layer)
        case Gate():
            return Product(layer)
        case Attention():
            return SelfAttention(layer)
        case Patches(width, positions):
            return Tokens(width, positions)
        case Words(vocabulary, positions, width):
            return Embeddings(vocabulary, positions, width)
        case First():
            return FirstToken()


class Parent(nn.Module):
    """A module of modules, which hands the mask on to those that take one."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        for name, child in children(layer):
            self.add_module(name, module(child))

    def child(self, name: str, x: Tensor, mask: Tensor | None) -> Tensor:
        found: Any = self.get_submodule(name)
        result: Tensor = found(x, mask) if isinstance(found, Parent) else found(x)
        return result


class InARow(Parent):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for name, _ in self.named_children():
            x = self.child(name, x, mask)
        return x


class Sum(Parent):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.child("body", x, mask) + self.child("shortcut", x, mask)


class Product(Parent):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x * self.child("body", x, mask)


class SelfAttention(Parent):
    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.heads = layer.heads

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.child("qkv", x, None).reshape(batch, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        where = None if mask is None else mask[:, None, None, :].bool()
        mixed = F.scaled_dot_product_attention(q, k, v, where)
        return self.child("out", mixed.transpose(1, 2).reshape(batch, tokens, width), None)


class Tokens(nn.Module):
    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, positions, width))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(2).transpose(1, 2)
        first = self.first.expand(x.shape[0], -1, -1)
        return torch.cat([first, rows], 1) + self.positions


class Embeddings(nn.Module):
    def __init__(self, vocabulary: int, positions: int, width: int) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.empty(vocabulary, width))
        self.kinds = nn.Parameter(torch.empty(2, width))
        self.positions = nn.Parameter(torch.empty(positions, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.words) + self.kinds[0] + self.positions[: x.shape[1]]


class FirstToken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]
